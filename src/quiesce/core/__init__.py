"""Everything in flight has an owner: the hold, the scope, the job, the report.

In reading order:

- `hold`: one thing in flight, in exactly one scope.
- `job`: a hold with a task behind it.
- `life`: the states of something, and the steps between them, as a table.
- `tree`: which scope holds what, which is busy, what may still start; no I/O, no waiting.
- `graveyard`: where what is stuck goes after the close of its scope.
- `scope`: the public owner of everything in flight in one part of a program.
- `closing`: the closing of one scope, carried out by an owner task that no caller can cancel.
- `close_callers`: the tasks that ask for a close: outside, inside, or cancelled while they wait.
- `block_end`: what the end of an `async with Scope(...)` block raises.
- `failures`: what a job's failure does to its scope.
- `contexts`: async context managers that one owner task enters and leaves.
- `threads`: work in threads, and calls from threads.
- `frontier`: what a scope has in flight now, for people and for machines.
- `report`: what became of everything that a scope owned.
- `current`: the scope that the running code is in.
- `owner`: the scope that owns what is about to be made.
- `roots`: the open scopes that have no parent.
- `run`: the entry point of a program: signals drain it, the exit code tells whether work was lost.
- `signals`: the signals that end a process, heard beside other handlers.
- `server_drain`: the one drain of a server, and what takes part in it.
- `process_exit`: the exit code 1 if work was lost.
- `exit_threads`: threads that keep a process from its exit after a drain.
- `announce`: what an operator is told of a drain.
- `light_scope`: a scope for one request, most of which is made when it is first used.
- `visitors`: work of other tasks in a light scope, and scopes of another tree.
- `errand`: work for a hop in a scope that is not the hop's own.
- `latch`: a fact that any number of tasks may wait for.
- `callsites`: where something was started, and what it waits on.
- `libraries`: the housekeeping of well-known libraries, which is not the work of their callers.
- `patches`: functions of other libraries that are replaced for a while.
- `arguments`: checks of what users pass in.
- `backends`: the event loops that quiesce runs on.
"""
