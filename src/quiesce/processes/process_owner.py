"""The owner of one child process: what sees it to its end, whoever is cancelled meanwhile.

What holds:

1. The scope holds the process from the step that forks it; until that step nothing exists.
2. One owner task, which nobody can cancel, sees the process to its end: the SIGKILL after the
   grace, the exit, the rest of its group, the reaping, the hold. Callers ask, and may be cancelled.
3. The exit is seen by a pidfd, never by the end of a pipe.
4. The group is killed before the leader is reaped: its number cannot be somebody else's.
5. The hold ends when nothing of the group runs any more, nor, if the process was asked to end, anything
   that has left the group and has its mark.
6. Every wait is bounded: grace, then SIGKILL, then the process is called stuck, and still held.
"""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Literal

from quiesce.core.hold import Described, Fate
from quiesce.core.latch import Latch
from quiesce.core.tree import logger
from quiesce.errors import ProcessLost, UsageError
from quiesce.processes import exit_watch, process_spawn, watchdog
from quiesce.processes.output import Outputs
from quiesce.processes.raw_stdio import Input, RawOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType

    from quiesce.core import callsites
    from quiesce.core.tree import TreeNode
    from quiesce.processes.output import Sink
    from quiesce.processes.process_spawn import SpawnedChild
    from quiesce.processes.readiness.probe import Launch

_KILLED_SECONDS = 5.0  # that a killed process may take to be gone, before it is called stuck
_HURRY_SECONDS = 0.5  # of grace, when the event loop itself is ending
_DYING_SECONDS = (
    0.5  # to wait for a process killed at the very end of a close: it takes about 0.001
)
_RESERVE_SECONDS = 0.5  # of a close's time, for killing and reaping what has not stopped
_RESERVE_SHARE = 0.25  # of a short one's
_LOOKS_MAX = 2  # for strays, that find none: an exec takes less time than lies between them
_TICK_SECONDS_MIN = 0.001
_TICK_SECONDS_MAX = 0.1
BY_THE_CLOSE = "the close of the scope"


class KillTime:
    """When something that was asked to stop has to be killed, so that it is gone by the end of a close."""

    __slots__ = ("_deadline", "_reserve")

    def __init__(self) -> None:
        self._deadline = math.inf  # of the scope's close, and
        self._reserve = 0.0  # of the time until then, what killing and reaping may take

    def in_time(self, node: TreeNode, now: float) -> float:
        """Return the time at which to kill, whatever grace is left; a close may be made shorter meanwhile."""
        closing = node._closing
        if closing is None or closing.join_by == math.inf:
            return math.inf
        if closing.join_by != self._deadline:
            self._deadline = closing.join_by
            self._reserve = min(_RESERVE_SECONDS, (closing.join_by - now) * _RESERVE_SHARE)
        return self._deadline - max(0.0, self._reserve)


class OwnedProcess(Described):
    """A child process, its owner, and the hold that the scope has of it."""

    _kind = "process"
    _fate: ClassVar[Fate] = "stuck"
    _stops: ClassVar[bool] = True

    def __init__(
        self,
        node: TreeNode,
        child: SpawnedChild,
        launch: Launch,
        name: str,
        grace: float,
        frame: FrameType | callsites.Callsite,
    ) -> None:
        """Describe what was forked in this step; `begin()` follows in the same."""
        self._node: TreeNode = node
        self._backend = node._backend
        self._child = child
        self._launch = launch
        self._outputs = Outputs(node._backend, child, self._lost)
        self._name = name
        self._grace = grace
        self._since: float = node._backend.clock()
        self._code: CodeType = frame.f_code
        self._offset: int = frame.f_lasti
        self._state: Literal["starting", "ready", "stopping", "killed", "stuck", "gone"] = "ready"
        self._returncode: int | None = None
        self._exited = False
        self._asked: str | None = None  # by whom it was asked to stop
        self._stop_by = math.inf  # then it is killed
        self._stuck_at = math.inf
        self._bell = node._backend.bell()
        self._gone = Latch(node._backend)
        self._settled = Latch(node._backend)  # gone, or stuck
        self._on_exit: list[Callable[[], None]] = []
        self._unwatch: Callable[[], None] | None = None
        self._dismissed = False  # its input was closed: it may go
        self._input = Input(node._backend, child.stdin)
        self._raw = RawOutput(node._backend, child.raw)
        self._kill_time = KillTime()
        self._lifeline = "none"
        self._mark = f"{watchdog.MARK}={launch.env.get(watchdog.MARK)}".encode()
        self._strays: list[int] = []  # what has left its group, and was killed
        self._looked = -math.inf
        self._looks_empty = 0  # in a row

    @property
    def pid(self) -> int:
        """The process id; also that of its session and of its process group."""
        return self._child.pid

    # Stopping.

    def _ask(self, who: str, grace: float) -> None:
        """Ask the owner to stop it, or to do so sooner. In one step; the owner does the rest."""
        if self._gone.is_open:
            return
        self._asked = self._asked or who
        self._stop_by = min(self._stop_by, self._backend.clock() + grace)
        self._advance()  # at once, before anything else runs
        self._bell.ring()

    # The owner.

    def _begin(self, sink: Sink | None) -> None:
        """Start an owner for it, in the step of the fork."""
        child, backend = self._child, self._backend
        self._lifeline = watchdog.guard_group(child.pid)
        self._outputs.begin(sink)
        self._raw.begin()
        self._unwatch = exit_watch.watch_exit(backend, child.pid, child.exit_fd, self._saw_exit)
        if not backend.own(self._own, f"quiesce process {self._name}", self._interrupt):
            message = "the event loop is shutting down: nothing new may start"
            raise UsageError(message)

    def _interrupt(self) -> None:
        """Hurry: the loop is being shut down, and wants every task to end."""
        self._bell.interrupted = True
        self._bell.ring()

    def _saw_exit(self) -> None:
        """See the exit; called by the loop."""
        self._exited = True
        self._stop_watching()
        self._bell.ring()
        for call in self._on_exit:
            call()

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    async def _own(self) -> None:
        """Wait for the exit, help it along when asked to, and bury what is left."""
        try:
            while not self._exited and not self._left_behind():
                await self._bell.wait(self._advance())
            self._stop_watching()
            if self._exited:
                watchdog.forget(self.pid)
                self._returncode = process_spawn.bury_group(self.pid)
                await self._outlive_the_group()
        finally:
            self._finish()

    def _left_behind(self) -> bool:
        """Return whether the owner has to go without having seen the end."""
        return self._bell.interrupted and self._state == "stuck"

    def _advance(self) -> float | None:
        """Do to a running process what is due; return when to look again."""
        now = self._backend.clock()
        if self._bell.interrupted and self._asked is None:
            self._asked = "the end of the event loop"
        if self._bell.interrupted:
            self._stop_by = min(self._stop_by, now + min(self._grace, _HURRY_SECONDS))
        if self._asked is None or self._exited:
            return None
        kill_at = min(self._stop_by, self._kill_time.in_time(self._node, now))
        if now >= kill_at:
            return self._kill(now)
        if self._state in {"starting", "ready"}:
            self._state = "stopping"
            process_spawn.signal_group(self.pid, signal.SIGTERM)
        return min(kill_at, now + _TICK_SECONDS_MAX)  # a close may be made shorter meanwhile

    def _kill(self, now: float) -> float | None:
        if self._state not in {"killed", "stuck"}:
            self._state = "killed"
            self._stuck_at = now + _KILLED_SECONDS
            process_spawn.signal_group(self.pid, signal.SIGKILL)
        return self._call_it_stuck(now)

    def _call_it_stuck(self, now: float) -> float | None:
        if now < self._stuck_at:
            return self._stuck_at
        if self._state != "stuck":
            self._state = "stuck"
            logger.warning("process %s (%d) has outlived SIGKILL", self._name, self.pid)
            self._settled.open()
        return None

    async def _outlive_the_group(self) -> None:
        """Wait until what was killed in the group has died: that takes it a moment. Then kill its strays."""
        clock, tick = self._backend.clock, _TICK_SECONDS_MIN
        self._stuck_at = clock() + _KILLED_SECONDS
        self._looked = time.monotonic()
        while process_spawn.group_lives(self.pid) and not self._left_behind():
            self._call_it_stuck(clock())
            await self._bell.wait(clock() + tick)
            tick = min(tick * 2, _TICK_SECONDS_MAX)
        while self._may_have_strays() and not self._left_behind():
            if self._strays:
                self._call_it_stuck(clock())
            await self._bell.wait(clock() + _TICK_SECONDS_MIN)

    def _may_have_strays(self) -> bool:
        """Kill what has left the group, as far as it is seen; tell whether to look again.

        What a process has left that ended by itself may go on: a daemon that it was to start.
        """
        if self._asked is None and not self._dismissed:
            return False
        seen = watchdog.strays.look(self._mark, self._looked)
        if seen is None:
            return True
        self._looked = time.monotonic()
        found, sure = seen
        for pid in found:
            with suppress(OSError):
                if watchdog.mark_of(pid) == self._mark:  # the number may be another's by now
                    os.kill(pid, signal.SIGKILL)
        if set(found) - set(self._strays):
            logger.info(
                "process %s (%d) has left %s, outside of its group: killed",
                self._name, self.pid, ", ".join(map(str, found)),
            )  # fmt: skip
        self._strays = found
        self._looks_empty = 0 if found else self._looks_empty + 1
        return bool(found) or not (sure or self._looks_empty == _LOOKS_MAX)

    def _abort(self) -> None:
        """Kill a process that cannot be owned after all, in this step."""
        self._stop_watching()
        process_spawn.signal_group(self.pid, signal.SIGKILL)
        watchdog.forget(self.pid)
        process_spawn.reap_killed(self.pid)
        process_spawn.await_death(self.pid, _DYING_SECONDS)
        self._release_files()

    def _release_files(self) -> None:
        self._outputs.finish()
        self._raw.finish()
        self._input.close()
        if self._child.exit_fd is not None:
            os.close(self._child.exit_fd)
            self._child.exit_fd = None
        clean_up(self._launch)

    def _finish(self) -> None:
        """Release everything. The last step of the owner."""
        self._release_files()
        if self._returncode is None:  # it is left behind, or quiesce is broken
            self._returncode = process_spawn.RETURNCODE_UNKNOWN
        was, self._state = self._state, "gone"
        self._let_go(told=was == "starting")
        self._gone.open()
        self._settled.open()

    def _let_go(self, *, told: bool) -> None:
        """Release the hold. `told`: the caller that started the process is about to be told how it ended."""
        node = self._node
        service = self in node._services
        if self._asked is not None:
            node._job_cancelled(self, service=service)
        elif service:
            node._service_ended(self)
            if not told and not self._dismissed:
                logger.warning(
                    "process %s (%d), a service, has ended by itself: %s",
                    self._name, self.pid, process_spawn.exit_text(self._returncode),
                )  # fmt: skip
        else:
            node._completed += 1
        node._discard(self)

    def _lost(self, what: str) -> ProcessLost:
        message = f"process {self._name!r} ({self.pid}) {what}: {process_spawn.exit_text(self._returncode)}"
        return ProcessLost(message, self._returncode, self._outputs.tail())

    def _has_exited(self) -> bool:
        fd = self._child.exit_fd
        return self._exited or self._gone.is_open or exit_watch.has_exited(self.pid, fd)

    # As a hold of the scope.

    @property
    def details(self) -> Mapping[str, object]:
        """What it is, and who would end it if this program were killed."""
        found: dict[str, object] = {
            "pid": self.pid,
            "state": self._state,
            "program": self._launch.argv[0],
            "arguments": len(self._launch.argv) - 1,  # not themselves: there may be secrets in them
        }
        if self._returncode is not None:
            found["returncode"] = self._returncode
        if self._strays:
            found["strays"] = self._strays
        return {**found, "lifeline": self._lifeline}

    def _stop(self, *, force: bool = False) -> float:
        self._ask(BY_THE_CLOSE, 0.0 if force else self._grace)
        return 0.0 if self._settled.is_open else _DYING_SECONDS

    def _swallowed(self) -> bool:
        return False  # the owner sees to that

    def _chain(self) -> list[callsites.Frame]:
        return []

    def _move(self, node: TreeNode) -> None:
        self._node = node

    def _reclassify(self) -> None:
        """Do nothing: whoever started it said whether it is a service."""


def clean_up(launch: Launch) -> None:
    """Remove what was made for a process, each of it whatever becomes of the others."""
    calls, launch.cleanup[:] = launch.cleanup[:], []
    for call in reversed(calls):
        try:
            call()
        except Exception:  # noqa: BLE001 - logged; the rest has to go on
            logger.exception("cleaning up after %s failed", launch.argv[0])
