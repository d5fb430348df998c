"""Items in flight between tasks: channels, taps and pipes, each owned by a scope.

In reading order:

- `channel`: producers and readers that stop together.
- `item_queue`: one queue of a channel, with its readers: the channel's own, or a tap's.
- `readers`: the tasks that read a queue, and what they left unread.
- `tap`: fan-out from a channel.
- `pipe`: a producer and its reader, started and stopped as a pair.
- `channel_stats`: how a channel stands.
"""
