"""The ways by which work leaves a hop, and how the hop follows that work.

A handler can leave work in threads, timers, queues, child processes and other event loops. While a node is open,
replacements stand in for the functions that start such work. A replacement first checks whether the running code
works for a hop. If it does not, the replacement only calls the original. `quiesce.core.libraries` lists the
housekeeping of libraries, which is not work of a hop. In reading order:

- `following`: the hold that keeps a hop open for work elsewhere, and where that work was started.
- `timers`: `loop.call_later` and `loop.call_at`, and `sched.scheduler`.
- `call_futures`: how a call in an executor ended, and whether other code has read its failure.
- `executors`: executors and the callbacks of their futures, threads and `threading.Timer`.
- `process_pools`: `multiprocessing.Pool` and `ThreadPool`.
- `child_processes`: child processes, and forks.
- `other_loops`: event loops of other threads.
- `thread_ends`: the end of a thread.
- `takers`: the holds of queued items; the tasks and threads that have taken items, and for which hops they work.
- `two_hops`: takers that belong to one hop and have taken an item of another hop.
- `belts`: the items of hops in one queue, and when the work on each item is over.
- `batches`: whether a worker collects items before it works on them.
- `bytecode_flow`: what the code of a function does next.
- `timeout_flow`: what the code of a function does when the time of a wait is up.
- `timed_waits`: loops that look for jobs when the time of a wait is up.
- `queues`: `asyncio.Queue`, `queue.Queue` and their kinds, anyio's memory object streams, `Channel`.
- `simple_queue`: `queue.SimpleQueue`, and queues that are shut down.
- `waits_once`: waits for events by code that is not a worker.
- `drivers`: the tasks that begin cascades. They are not workers of their own cascades.
- `early_sets`: events that a hop sets before a worker has waited for them.
- `bystanders`: loops outside of hops whose way to wait is not followed.
- `joined_work`: work that one message starts and a later message may add to.
- `reached_code`: which functions a handler may call, by the names in its code.
- `events`: events and conditions that wake a worker.
- `shared_sends`: a message that a worker sends for several hops at once.
- `handovers`: work that a hop gives to task queues of other systems.
- `installing`: puts the replacements in place while a node is open.
"""
