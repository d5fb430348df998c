"""Probes that wait until a child process is ready, and listeners that the parent binds.

`quiesce.ready` exports the public names. In reading order:

- `probe`: the contract of all probes, and the probes without sockets.
- `connect`: `Tcp`, `UnixSocket` and `Http`, which connect to the child until it answers.
- `listener`: a listening socket that the parent binds and the child inherits.
- `addresses`: checks of addresses, and of whether a process listens at an address.
"""
