"""The hold, the scope, the job and the report: everything in flight has an owner.

In reading order:

- `hold`: one thing in flight, in exactly one scope.
- `job`: a hold with a task behind it.
- `life`: state tables, and the allowed steps between states.
- `tree`: the tree of scopes: what each holds, whether it is busy, whether work may start. No I/O, no waiting.
- `graveyard`: references to stuck tasks whose scope is closed.
- `scope`: the public owner of everything in flight in one part of a program.
- `closing`: the close of one scope, run by a closing task that callers cannot cancel.
- `close_callers`: the tasks that ask for a close: outside, inside, or cancelled while they wait.
- `block_end`: the exceptions that the end of an `async with Scope(...)` block raises.
- `failures`: how a scope handles the failure of a job.
- `contexts`: async context managers that one host job enters and leaves.
- `threads`: work in threads, and calls from threads.
- `frontier`: the list of everything a scope has in flight now, as text and as JSON.
- `report`: how everything that a closed scope owned has ended.
- `harmless_text`: foreign text without control characters.
- `handler_naming`: the name of an ASGI request, and the place of its handler.
- `named_once`: keeps one loss from appearing twice in a report.
- `current`: the scope that the running code is in.
- `owner`: the choice of the scope that owns a new resource.
- `roots`: the open scopes that have no parent.
- `run`: the entry point of a program: signals drain it, and exit code 1 reports lost work.
- `forked_signals`: restores signal handlers in forked children.
- `lock_files`: lock files that forked children do not keep locked.
- `signals`: listeners for SIGTERM and SIGINT beside the server's own handlers.
- `server_drain`: the one drain of a server, and the parts that join it.
- `process_exit`: makes a server exit with code 1 if work was lost.
- `exit_threads`: names the threads that keep a process from exiting after a drain.
- `stuck_exit`: ends a process in which nothing but stuck tasks is left.
- `announce`: messages to the operator about a drain, by logging or on standard error.
- `light_scope`: a cheap scope for one request, which makes most of its parts at their first use.
- `visitors`: work of tasks in a scope that does not own them, and scopes of another tree.
- `errand`: work for a hop in a scope that is not the hop's own.
- `latch`: a one-time event that any number of tasks may wait for.
- `callsites`: the places where tasks were started, and where they wait.
- `libraries`: the housekeeping tasks of well-known libraries, which are not their callers' work.
- `python_private`: the private names of the standard library that quiesce needs, and the reasons.
- `patches`: temporary replacements of functions of other libraries.
- `asgi_types`: the types of an ASGI application's arguments.
- `platform_check`: refuses features that need system calls this platform lacks.
- `arguments`: checks of the arguments that users pass in.
- `later_names`: public names that are imported at their first use.
- `extras`: the install command for an optional part of quiesce.
- `backends`: the event loops that quiesce runs on.
"""
