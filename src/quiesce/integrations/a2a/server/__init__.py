"""An A2A server that drains.

In reading order:

- `app`: a whole server in a few lines: card, routes, and a lifespan that drains.
- `request_handler`: the request handler around the SDK's: it knows when it is idle, and drains.
- `executor`: the executor around the user's: it knows what runs, and can cut it short.
- `task_tracker`: which tasks are in flight, and when they no longer are.
- `task_store`: the task store around the user's: no state is stored without its push.
- `event_queues`: the queues of 0.3 between an executor and what stores its events.
- `event_feed`: what a streaming client reads from.
- `shutdown`: how a server ends: what may finish does, the rest is told to stop.
- `recovery`: what a start does about what the process before has left.
"""
