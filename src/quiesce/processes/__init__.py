"""Child processes that no cancellation can orphan.

In reading order:

- `process`: the public process, and `start_process`.
- `process_owner`: the owner of one child process, from its start until nothing of its group is left.
- `process_spawn`: start a program in one synchronous step; signal and reap it.
- `fork_queue`: one fork a turn of the event loop.
- `exit_watch`: see that a process has exited, without waiting for the end of a pipe.
- `watchdog`: end the children if this program is killed.
- `output`: what a process writes: read as it comes, kept within a bound.
- `output_pipe`: the event loop's reading of one pipe.
- `raw_stdio`: standard input and output as bytes, for protocols.
- `descriptors`: wait until a file descriptor can be read or written.
- `readiness`: when is a child ready? the probes, and listeners that the parent binds.
"""
