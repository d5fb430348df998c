"""The ways by which work leaves a hop, and how the hop follows it.

A handler may leave work behind by other ways than tasks. While a node is open, the functions by which that is
done are replaced by ones that first look whether the running code works for a hop; if it does not, they only
call the original. What is housekeeping of libraries, and so is nobody's work, `quiesce.core.known` says. In reading
order:

- `following`: what a hop holds of work elsewhere, and where it was started.
- `timers`: `loop.call_later` and `loop.call_at`, and `sched.scheduler`.
- `threads`: executors and the callbacks of their futures, threads and `threading.Timer`.
- `pools`: `multiprocessing.Pool` and `ThreadPool`.
- `children`: child processes, and forks.
- `loops`: event loops of other threads.
- `takers`: the tasks and threads that have items of hops, and for whom they work.
- `belts`: what one queue carries of hops, and when the work on an item is over.
- `batches`: whether a worker collects items before it works on them; `flow`: what its code does next.
- `queues`: `asyncio.Queue`, `queue.Queue` and their kinds, anyio's memory object streams, `Channel`.
- `events`: events and conditions, which wake a worker.
- `sharing`: a message that is sent for several hops at once.
- `simple`: `queue.SimpleQueue`, and queues that are shut down.
- `handovers`: task queues of other systems, which are noticed.
- `installing`: when the replacements are there.
"""
