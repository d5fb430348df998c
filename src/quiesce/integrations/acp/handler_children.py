"""Processes that handlers start with asyncio and do not end: the session ends them.

While at least one session is open, the event loop's `subprocess_exec` and `subprocess_shell` are
replaced; `asyncio.create_subprocess_exec` and anyio's `open_process` call them. A process that any
task of a session starts is the session's service: it may outlive its request, and is ended with the
session. Processes that are started in other ways (`subprocess.Popen`, `os.fork`, `multiprocessing`)
and the children of such processes are not seen; `quiesce.start_process` owns the whole group.
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
    from types import CodeType

    from quiesce.core import callsites
    from quiesce.core.hold import Fate
    from quiesce.core.scope import Scope

__all__: list[str] = []

_TERM_SECONDS = 1.0  # between SIGTERM and SIGKILL
_DYING_SECONDS = 0.5  # how long a killed process may take to end
_sessions: set[TreeNode] = set()
_watches: dict[asyncio.AbstractEventLoop, _Watch] = {}


def watch_children(scope: Scope) -> Callable[[], None]:
    """Own the processes that are started in this scope from now on; return a function that stops it."""
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
        bond = getattr(node, "bond", None)  # set for a hop, which the session holds
        node = node.parent if bond is None else bond.owner_node
    return node


class _Watch:
    """The replacement of a loop's functions that start processes."""

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
            if session is not None and session.loop is self._loop:
                HandlerChild(session, transport, protocol, args[0])
            return transport, protocol

        return start_process

    def release(self) -> None:
        """End one use. The last one restores the loop's functions, unless other code has replaced them."""
        self.users -= 1
        if self.users:
            return
        del _watches[self._loop]
        for patch in self._patches:
            patch.remove()


class HandlerChild(Described):
    """A process that a handler has started; it is a hold of the session."""

    _kind = "process"
    place_code: CodeType | None = None  # unknown
    place_offset = 0
    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = True

    def __init__(self, node: TreeNode, transport: Any, protocol: Any, program: object) -> None:
        """Register the process as a service of the session until it has exited."""
        self.owner_node: TreeNode = node
        self._transport = transport
        self.name_given: str = (
            os.fsdecode(program) if isinstance(program, str | bytes) else str(program)
        )
        self._pid = transport.get_pid()
        self.began_at: float = node.backend.clock()
        self._kill_at = math.inf
        if transport.get_returncode() is not None:
            return
        node.services[self] = self
        self._tell = protocol.process_exited
        protocol.process_exited = self._exited  # asyncio calls this when the process exits
        if node.phase is ScopeState.CLOSED:
            self.request_stop(force=True)

    def _exited(self) -> None:
        self._tell()
        self.owner_node.discard_hold(self)
        if self._kill_at < math.inf:
            self._transport.close()  # a child of the process may still have its pipes open

    @property
    def details(self) -> Mapping[str, object]:
        return {"pid": self._pid}

    def request_stop(self, *, force: bool = False) -> float | None:
        now = self.owner_node.backend.clock()
        if force or now >= self._kill_at:
            self._kill_at = now
            self._send(signal.SIGKILL)
        elif self._kill_at == math.inf:
            self._kill_at = now + _TERM_SECONDS
            logger.warning(
                "process %s (%d) was left by a handler, and is ended with the session",
                self.name_given, self._pid,
            )  # fmt: skip
            self._send(signal.SIGTERM)
        return _DYING_SECONDS if force else None

    def _send(self, number: signal.Signals) -> None:
        """Send a signal without reaping: the transport's own method might take the exit status.

        asyncio would not find the status then, and code that waits for the process would get 255.
        """
        with suppress(ProcessLookupError):
            if not hasattr(os, "waitid"):  # macOS
                self._transport.send_signal(number)
            elif not has_exited(self._pid, None):
                os.kill(self._pid, number)

    def goes_on_regardless(self) -> bool:
        return self.owner_node.backend.clock() >= self._kill_at

    def list_frames(self) -> list[callsites.Frame]:
        return []

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node

    def reclassify(self) -> None:
        """Do nothing: the process is already a service."""
