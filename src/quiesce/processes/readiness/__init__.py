"""When is a child process ready? The probes, and listeners that the parent binds.

In reading order:

- `probe`: the contract of all probes, and those that need no socket.
- `connect`: probes that connect until the child answers.
- `notify`: the child says that it is ready, by systemd's protocol.
- `listener`: a listener that the parent binds and hands down.
- `peer_identity`: whether the child is at the other end of a socket, or a stranger.
- `addresses`: checks of addresses.
"""
