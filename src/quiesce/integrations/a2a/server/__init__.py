"""An A2A server that drains.

In reading order:

- `app`: a whole server in a few lines: card, routes, and a lifespan that drains.
- `request_handler`: the request handler around the SDK's. It accepts messages, can wait until it is idle, and drain.
- `executor`: the executor around the user's. It accepts tasks, tracks those that run, and can cancel them.
- `task_tracker`: which tasks are in flight, and when they have ended.
- `task_store`: the task store around the user's. It writes the push of each state before the state.
- `event_queues`: the queues of 0.3 between an executor and the task that stores its events.
- `event_feed`: the event stream that a streaming client reads from.
- `shutdown`: how a server ends: it waits for tasks to finish, then cancels the rest.
- `recovery`: ends the tasks and sends the pushes that an earlier process has left.
"""
