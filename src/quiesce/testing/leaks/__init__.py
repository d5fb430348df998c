"""`guard`, and the checks behind it that find what a block of code leaves behind.

In reading order:

- `guard`: the context manager that fails if its block leaves something behind.
- `findings`: one leftover thing, and how it is named.
- `census`: compares what exists now with what existed at the beginning.
- `instrument`: records which code starts tasks, threads, processes and the like.
- `births`: the record of one start.
- `started_at`: the line of code that started something.
- `loop_endings`: the tasks left when an event loop ends, and the event loop's own complaints.
- `finished_tests`: attributes late findings to the finished test that caused them.
- `baseline`: the known leftovers of a project's tests.
- `open_files`: file descriptors, and the files of unix sockets.
- `set_handlers`: handlers of signals and of event loops' exceptions.
- `child_processes_left`: child processes and their descendants.
- `running_threads`: threads.
- `trio_tasks`: tasks of a running trio program.
"""
