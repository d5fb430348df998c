"""When is a child process ready? Probes for `start_process(ready=…)`, and listeners that the parent binds.

| probe | the child is ready when |
|---|---|
| `Line(text)` | it writes a line with this text |
| `Fd(...)` | it writes to, or closes, a file descriptor that it was given |
| `Tcp(port)` | it accepts connections at a port |
| `UnixSocket(path)` | it accepts connections at a socket file |
| `Http(url)` | it answers a request with a certain status |
| `Notify()` | it says so, by the protocol of systemd's services |

`Listener(...)` needs no probe: the parent binds the socket before the child starts, and hands it down. An async function
is a probe, too.
"""

from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.notify import Notify
from quiesce.processes.readiness.probe import Fd, Line

__all__ = ["Fd", "Http", "Line", "Listener", "Notify", "Tcp", "UnixSocket"]
