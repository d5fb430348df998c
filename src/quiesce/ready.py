"""Probes that tell when a child process is ready, for `start_process(ready=…)`, and listeners to pass to it.

| probe | the child is ready when |
|---|---|
| `Line(pattern)` | it writes a line that the pattern matches |
| `Fd()` | it writes a line to an inherited pipe |
| `Tcp(host, port)`, `UnixSocket(path)` | it accepts connections there |
| `Http(url, status=200)` | it answers a request with that status |

A `Listener(...)` needs no probe: the parent binds the socket before the child starts, and passes it to the child. An
async function can be a probe, too.
"""

from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Fd, Line

__all__ = ["Fd", "Http", "Line", "Listener", "Tcp", "UnixSocket"]
