"""When is a child process ready? The probes, and listeners that the parent binds.

In reading order:

- `probe`: the contract of all probes, and those that need no socket.
- `connect`: probes that connect until the child answers.
- `listener`: a listener that the parent binds and hands down.
- `addresses`: checks of addresses, and whether a process listens at one.
"""
