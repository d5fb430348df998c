"""Channels, taps and pipes: queues between tasks, each owned by a scope.

Queued items count as work in flight of that scope.

In reading order:

- `channel`: a queue whose producers and readers stop together.
- `item_queue`: the queue itself with its waiting readers; a channel has one, and so has each tap.
- `read_loops`: the `async for` loops that read a queue, and the report entries for unread items.
- `tap`: an extra reader's queue that gets a copy of every item (fan-out).
- `pipe`: a producer and its reader, started and stopped as a pair.
- `channel_stats`: the figures of a channel or a tap.
"""
