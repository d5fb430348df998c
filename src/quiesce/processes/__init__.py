"""Child processes that a cancellation cannot orphan.

In reading order:

- `process`: the public process, and `start_process`.
- `process_owner`: the owner task of one child process: stops, kills and reaps it with its process group.
- `process_spawn`: starts a program in one synchronous step; signals and reaps it.
- `fork_queue`: allows one fork in each turn of the event loop.
- `exit_watch`: notices the exit of a process without waiting for the end of a pipe.
- `watchdog`: ends the children if this program is killed.
- `output`: the lines that a process writes, kept within a bound.
- `output_pipe`: how the event loop reads one pipe.
- `raw_stdio`: standard input and output as bytes, for protocols.
- `descriptors`: waits until a file descriptor can be read or written.
- `readiness`: probes that wait until a child is ready, and listeners that the parent binds.
"""
