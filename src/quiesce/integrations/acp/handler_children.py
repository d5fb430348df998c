"""The processes that handlers start with asyncio, and do not end: the session ends them.

While at least one session is open, the event loop's `subprocess_exec` and `subprocess_shell` have
ours in their place: `asyncio.create_subprocess_exec` and anyio's `open_process` call them. A
process that was started in a session, by whatever task, is the session's service: it may outlive
its request, and is ended with the session if it is still there. What is started otherwise
(`subprocess.Popen`, `os.fork`, `multiprocessing`), and what such a process starts in turn, is not
seen; `quiesce.start_process` owns the whole group.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core.hold import Described
from quiesce.core.patches import Patch
from quiesce.core.tree import ScopeState, TreeNode, current, logger
from quiesce.processes.exit_watch import has_exited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quiesce.core import callsites
    from quiesce.core.hold import Fate
    from quiesce.core.scope import Scope

__all__: list[str] = []

_TERM_SECONDS = 1.0  # between asking a process to end and killing it
_DYING_SECONDS = 0.5  # that a killed process may take
_sessions: set[TreeNode] = set()
_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}


def watch_children(scope: Scope) -> Callable[[], None]:
    """Own the processes that are started in this scope from now on; return the way to end that."""
    loop = asyncio.get_running_loop()
    found = _watches.get(loop)
    if found is None:
        found = _watches[loop] = _Watch(loop)
    found.users += 1
    _sessions.add(scope)

    def end() -> None:
        if scope in _sessions:
            _sessions.discard(scope)
            found.release()

    return end


def _session_of(node: TreeNode | None) -> TreeNode | None:
    while node is not None and node not in _sessions:
        bond = getattr(node, "_bond", None)  # that of a hop, which the session holds
        node = node._parent if bond is None else bond._node
    return node


class _Watch:
    """What stands in for the functions of a loop that start processes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self._loop = loop
        self._patches = [
            Patch(loop, name, self._replacement) for name in ("subprocess_exec", "subprocess_shell")
        ]

    def _replacement(self, start: Any) -> Any:
        async def start_process(factory: Any, *args: Any, **options: Any) -> Any:
            transport, protocol = await start(factory, *args, **options)
            session = _session_of(current.get())
            if session is not None and session._loop is self._loop:
                HandlerChild(session, transport, protocol, args[0])
            return transport, protocol

        return start_process

    def release(self) -> None:
        """End one use; the last one leaves the loop as it was, unless other code has changed it."""
        self.users -= 1
        if self.users:
            return
        del _watches[self._loop]
        for patch in self._patches:
            patch.remove()


class HandlerChild(Described):
    """One such process, and the hold that the session has of it."""

    _kind = "process"
    _code = None  # not known
    _offset = 0
    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = True

    def __init__(self, node: TreeNode, transport: Any, protocol: Any, program: object) -> None:
        """Register as a service of the session from this step on, until the process has exited."""
        self._node = node
        self._transport = transport
        self._name = os.fsdecode(program) if isinstance(program, str | bytes) else str(program)
        self._pid = transport.get_pid()
        self._since = node._backend.clock()
        self._kill_at = math.inf
        if transport.get_returncode() is not None:
            return
        node._services[self] = self
        self._tell = protocol.process_exited
        protocol.process_exited = self._exited  # the protocol is asyncio's, and is told by it
        if node._state is ScopeState.CLOSED:
            self._stop(force=True)

    def _exited(self) -> None:
        self._tell()
        self._node._discard(self)
        if self._kill_at < math.inf:
            self._transport.close()  # a process of its own may have its pipes still

    @property
    def details(self) -> Mapping[str, object]:
        """Its process id."""
        return {"pid": self._pid}

    def _stop(self, *, force: bool = False) -> float | None:
        now = self._node._backend.clock()
        if force or now >= self._kill_at:
            self._kill_at = now
            self._send(signal.SIGKILL)
        elif self._kill_at == math.inf:
            self._kill_at = now + _TERM_SECONDS
            logger.warning(
                "process %s (%d) was left by a handler, and is ended with the session",
                self._name, self._pid,
            )  # fmt: skip
            self._send(signal.SIGTERM)
        return _DYING_SECONDS if force else None

    def _send(self, number: signal.Signals) -> None:
        """Send a signal, and no more: the transport's own way takes the exit status, if there is one by then.

        asyncio would not find it then, and whoever waits for the process would be told 255.
        """
        with suppress(ProcessLookupError):
            if not hasattr(os, "waitid"):  # macOS
                self._transport.send_signal(number)
            elif not has_exited(self._pid, None):
                os.kill(self._pid, number)

    def _swallowed(self) -> bool:
        return self._node._backend.clock() >= self._kill_at

    def _chain(self) -> list[callsites.Frame]:
        return []

    def _move(self, node: TreeNode) -> None:
        self._node = node

    def _reclassify(self) -> None:
        """Do nothing: it is a service already."""
