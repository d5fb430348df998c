"""The ways by which work leaves a hop, and how the hop follows it.

A handler may leave work behind by other ways than tasks. While a node is open, the functions by which that is
done are replaced by ones that first look whether the running code works for a hop; if it does not, they only
call the original. What is housekeeping of libraries, and so is nobody's work, `quiesce.core.known` says. In reading
order:

- `following`: what a hop holds of work elsewhere, and where it was started.
- `timers`: `loop.call_later` and `loop.call_at`.
- `threads`: executors, threads and `threading.Timer`.
- `children`: child processes.
- `belts`: what a queue carries: items of hops, and the tasks that work on them.
- `queues`: `asyncio.Queue`, `queue.Queue` and their kinds, anyio's memory object streams, `Channel`.
- `events`: `asyncio.Event`, which wakes a worker.
- `installing`: when the replacements are there.
"""
