"""When is a child process ready? Probes for `start_process(ready=…)`, and listeners that the parent binds.

| probe | the child is ready when |
|---|---|
| `Line(pattern)` | it writes a line that the pattern matches |
| `Fd()` | it writes a line to a pipe that it has inherited |
| `Tcp(host, port)`, `UnixSocket(path)` | it accepts connections there |
| `Http(url, status=200)` | it answers a request with that status |

`Listener(...)` needs no probe: the parent binds the socket before the child starts, and hands it down. An async function
is a probe, too.
"""

from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Fd, Line

__all__ = ["Fd", "Http", "Line", "Listener", "Tcp", "UnixSocket"]
