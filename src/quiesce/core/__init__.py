"""The hold, the scope, the job and the report: everything in flight has an owner.

In reading order:

- `hold`: one thing in flight, in exactly one scope.
- `job`: a hold with a task behind it.
- `life`: tables of states, and of the steps between them.
- `tree`: which scope holds what, which is busy, what may still start; no I/O, no waiting.
- `graveyard`: keeps stuck tasks after the close of their scope.
- `scope`: the public owner of everything in flight in one part of a program.
- `closing`: the closing of one scope, carried out by a closing task that no caller can cancel.
- `close_callers`: the tasks that ask for a close: outside, inside, or cancelled while they wait.
- `block_end`: what the end of an `async with Scope(...)` block raises.
- `failures`: what a job's failure does to its scope.
- `contexts`: async context managers that one host job enters and leaves.
- `threads`: work in threads, and calls from threads.
- `frontier`: what a scope has in flight now, for people and for machines.
- `report`: what became of everything that a scope owned.
- `harmless_text`: texts of others without control characters.
- `named_once`: one loss, one entry in a report.
- `current`: the scope that the running code is in.
- `owner`: which scope owns a new resource.
- `roots`: the open scopes that have no parent.
- `run`: the entry point of a program: signals drain it, the exit code tells whether work was lost.
- `signals`: listeners for SIGTERM and SIGINT beside the server's own handlers.
- `server_drain`: the one drain of a server, and the parts that join it.
- `process_exit`: exit code 1 if work was lost.
- `exit_threads`: names the threads that keep a process from exiting after a drain.
- `announce`: messages to the operator about a drain, by logging or on standard error.
- `light_scope`: a scope for one request, most of which is made when it is first used.
- `visitors`: work of tasks in a scope that does not own them, and scopes of another tree.
- `errand`: work for a hop in a scope that is not the hop's own.
- `latch`: a one-time event that any number of tasks may wait for.
- `callsites`: where something was started, and what it waits on.
- `libraries`: the housekeeping of well-known libraries, which is not their callers' work.
- `patches`: functions of other libraries that are replaced for a while.
- `arguments`: checks of the arguments that users pass in.
- `backends`: the event loops that quiesce runs on.
"""
