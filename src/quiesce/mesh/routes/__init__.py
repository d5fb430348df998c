"""The ways by which work leaves a hop, and how the hop follows it.

A handler may leave work behind by other ways than tasks. While a node is open, the functions by which that is
done are replaced. The replacement first checks whether the running code works for a hop; if it does not, the
replacement only calls the original. `quiesce.core.libraries` lists the housekeeping of libraries, which is not
work of a hop. In reading order:

- `following`: what a hop holds of work elsewhere, and where that was started.
- `timers`: `loop.call_later` and `loop.call_at`, and `sched.scheduler`.
- `call_futures`: how a call in an executor ended, and whether other code knows of its failure.
- `executors`: executors and the callbacks of their futures, threads and `threading.Timer`.
- `process_pools`: `multiprocessing.Pool` and `ThreadPool`.
- `child_processes`: child processes, and forks.
- `other_loops`: event loops of other threads.
- `takers`: the tasks and threads that have items of hops, and for which hops they work.
- `two_hops`: takers that are a part of another hop than their items.
- `belts`: what one queue carries of hops, and when the work on an item is over.
- `batches`: whether a worker collects items before it works on them.
- `bytecode_flow`: what the code of a function does next.
- `queues`: `asyncio.Queue`, `queue.Queue` and their kinds, anyio's memory object streams, `Channel`.
- `simple_queue`: `queue.SimpleQueue`, and queues that are shut down.
- `waits_once`: waits for events that are not a worker's.
- `drivers`: the tasks that begin cascades, which are not workers of these.
- `early_sets`: events that a hop sets before a worker has waited for them.
- `events`: events and conditions, which wake a worker.
- `shared_sends`: a message that is sent for several hops at once.
- `handovers`: task queues of other systems, which are noticed.
- `installing`: when the replacements are there.
"""
