"""What is left behind: `guard`, and the looks that find leaks.

In reading order:

- `guard`: a block that fails if something is left behind.
- `findings`: one thing that was left behind.
- `census`: what is there now and was not there before.
- `instrument`: which code started what, noted as it happens.
- `births`: what is noted of something when it starts.
- `started_at`: the line that started something.
- `loop_endings`: what is still there when an event loop ends, and what the loop complains about.
- `finished_tests`: attribute late findings to the finished test that caused them.
- `baseline`: what a project has left behind until now, test by test.
- `open_files`: file descriptors, and the files of unix sockets.
- `set_handlers`: handlers of signals, and of event loops' exceptions.
- `child_processes_left`: processes that this one has started.
- `running_threads`: threads.
- `trio_tasks`: tasks of a running trio program.
"""
