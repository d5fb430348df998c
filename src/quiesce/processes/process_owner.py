"""The owner task of one child process: stops, kills and reaps the process, even if callers are cancelled.

Invariants:

1. The scope holds the process from the step that forks it.
2. One owner task, which callers cannot cancel, manages the process until its end: it sends SIGKILL
   after the grace, waits for the exit, kills the rest of the group, reaps, and releases the hold.
   Callers only send requests to the owner, so cancelling a caller has no effect on it.
3. The owner notices the exit by a pidfd, never by the end of a pipe.
4. The owner kills the group before it reaps the leader, so the group's number is not reused yet.
5. The hold ends when no process of the group runs any more. If the process was asked to end, the owner
   also waits for strays: processes that have left the group and carry its mark.
6. Every wait is bounded: after the grace comes SIGKILL. If the process survives that, it counts as stuck,
   and the scope still holds it.
"""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from quiesce.core.hold import Described, Fate
from quiesce.core.latch import Latch
from quiesce.core.life import Life, State
from quiesce.core.tree import logger
from quiesce.errors import ProcessLost, UsageError
from quiesce.processes import exit_watch, process_spawn, watchdog
from quiesce.processes.output import Outputs
from quiesce.processes.raw_stdio import Input, RawOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType

    from quiesce.core import callsites
    from quiesce.core.backends.base import Backend
    from quiesce.core.tree import TreeNode
    from quiesce.processes.output import Sink
    from quiesce.processes.process_spawn import SpawnedChild
    from quiesce.processes.readiness.probe import Launch

_KILLED_SECONDS = 5.0  # a process that survives SIGKILL for this long counts as stuck
_HURRY_SECONDS = 0.5  # the grace when the event loop itself is ending
# How long to wait for a process that is killed at the end of a close. Dying takes about 0.001.
_DYING_SECONDS = 0.5
_RESERVE_SECONDS = 0.5  # the last part of a close's time, kept for killing and reaping
_RESERVE_SHARE = 0.25  # the most that this reserve may take of a close's time
# Looks in a row without strays. A program's exec takes less time than lies between two looks.
_LOOKS_MAX = 2
_TICK_SECONDS_MIN = 0.001
_TICK_SECONDS_MAX = 0.1
BY_THE_CLOSE = "the close of the scope"


class ProcessState(State):
    """The state of a child process."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    KILLED = "killed"
    EXITED = "exited"
    STUCK = "stuck"
    GONE = "gone"


_STARTING, _READY, _EXITED = ProcessState.STARTING, ProcessState.READY, ProcessState.EXITED
_STUCK, _GONE = ProcessState.STUCK, ProcessState.GONE

# Each state can go to gone, because the owner ends when its event loop is discarded.
PROCESS_LIFE: Life[ProcessState] = Life(
    "a process",
    {
        _STARTING: (_READY, ProcessState.STOPPING, ProcessState.KILLED, _EXITED, _GONE),
        _READY: (ProcessState.STOPPING, ProcessState.KILLED, _EXITED, _GONE),
        ProcessState.STOPPING: (ProcessState.KILLED, _EXITED, _GONE),
        ProcessState.KILLED: (_EXITED, _STUCK, _GONE),
        # After the leader's exit, a killed process of its group may be stuck.
        _EXITED: (_STUCK, _GONE),
        _STUCK: (_EXITED, _GONE),
        _GONE: (),
    },
)


class KillTime:
    """Computes when a process that was asked to stop must be killed, so that it ends before the close does."""

    __slots__ = ("_deadline", "_reserve")

    def __init__(self) -> None:
        self._deadline = math.inf  # the deadline of the scope's close
        self._reserve = 0.0  # seconds before the deadline that are kept for killing and reaping

    def in_time(self, node: TreeNode, now: float) -> float:
        """Return the time at which to kill, even if grace is left. A caller may shorten the close at any time."""
        closing = node.close_plan
        if closing is None or closing.join_by == math.inf:
            return math.inf
        if closing.join_by != self._deadline:
            self._deadline = closing.join_by
            self._reserve = min(_RESERVE_SECONDS, (closing.join_by - now) * _RESERVE_SHARE)
        return self._deadline - max(0.0, self._reserve)


class OwnedProcess(Described):
    """A child process with its owner task. It is also the hold of the process in its scope."""

    _kind = "process"
    fate: ClassVar[Fate] = "stuck"
    can_be_stopped: ClassVar[bool] = True

    def __init__(
        self,
        node: TreeNode,
        child: SpawnedChild,
        launch: Launch,
        name: str,
        grace: float,
        frame: FrameType | callsites.Callsite,
    ) -> None:
        """Describe a process that was forked in this step. The caller calls `begin_owning()` in the same step."""
        self.owner_node: TreeNode = node
        self.backend: Backend = node.backend
        self._child = child
        self.launch = launch
        self.outputs: Outputs = Outputs(node.backend, child, self.lost)
        self.name_given = name
        self.grace = grace
        self.began_at: float = node.backend.clock()
        self.place_code: CodeType = frame.f_code
        self.place_offset: int = frame.f_lasti
        self.state: ProcessState = _STARTING
        self.returncode: int | None = None
        self.asked: str | None = None  # who asked the process to stop
        self._stop_by = math.inf  # the time at which the owner kills it
        self._stuck_at = math.inf
        self._bell = node.backend.bell()
        self.gone: Latch = Latch(node.backend)
        self.settled: Latch = Latch(node.backend)  # opened when the process is gone or stuck
        self.on_exit: list[Callable[[], None]] = []
        self._unwatch: Callable[[], None] | None = None
        self.may_exit = False  # whether its input was closed, so that it may exit by itself
        self.input: Input = Input(node.backend, child.stdin)
        self.raw: RawOutput = RawOutput(node.backend, child.raw)
        self._kill_time = KillTime()
        self._lifeline = "none"
        self._mark = f"{watchdog.MARK}={launch.env.get(watchdog.MARK)}".encode()
        self._strays: list[int] = []  # processes that left its group and were killed
        self._looked = -math.inf
        self._looks_empty = 0  # looks in a row that found no stray

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session and of its process group."""
        return self._child.pid

    def __repr__(self) -> str:
        """Return the name, the pid and the state of the process."""
        return f"<Process {self.name_given!r} {self.pid} {self.state.value}>"

    def _enter(self, state: ProcessState) -> None:
        """Enter the next state; `PROCESS_LIFE` lists the allowed steps."""
        self.state = PROCESS_LIFE.step(self.state, state)

    def note_ready(self) -> None:
        """Record that the process is ready, unless it was asked to stop or has exited."""
        if self.state is _STARTING:
            self._enter(_READY)

    # Stopping.

    def ask(self, who: str, grace: float) -> None:
        """Ask the owner to stop the process within `grace`; a later request can only shorten the time."""
        if self.state is _GONE:
            return
        self.asked = self.asked or who
        self._stop_by = min(self._stop_by, self.backend.clock() + grace)
        self._advance()  # sends SIGTERM in this step
        self._bell.ring()

    # The owner.

    def begin_owning(self, sink: Sink | None) -> None:
        """Start the owner task, in the step of the fork."""
        child, backend = self._child, self.backend
        self._lifeline = watchdog.guard_group(child.pid)
        self.outputs.begin(sink)
        self.raw.begin()
        self._unwatch = exit_watch.watch_exit(backend, child.pid, child.exit_fd, self._saw_exit)
        if not backend.own(self._own, f"quiesce process {self.name_given}", self._interrupt):
            message = "the event loop is shutting down: no process can start any more"
            raise UsageError(message)

    def _interrupt(self) -> None:
        """Shorten all waits: the event loop is shutting down and cancels every task."""
        self._bell.interrupted = True
        self._bell.ring()

    def _saw_exit(self) -> None:
        """Record the exit. The loop calls this when the pidfd is readable."""
        self._stop_watching()
        self._bell.ring()
        for call in self.on_exit:
            call()
        self._enter(_EXITED)  # last, because it may raise

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    async def _own(self) -> None:
        """Wait for the exit, stop the process if asked to, then kill and reap the rest. The owner's body."""
        try:
            while self.state is not _EXITED and not self._left_behind():
                await self._bell.wait(self._advance())
            self._stop_watching()
            if self.state is _EXITED:
                watchdog.forget(self.pid)
                self.returncode = process_spawn.bury_group(self.pid)
                await self._outlive_the_group()
        finally:
            self._finish()

    def _left_behind(self) -> bool:
        """Return whether the owner must end before a stuck process does, because the loop is ending."""
        return self._bell.interrupted and self.settled.is_open

    def _advance(self) -> float | None:
        """Send the signals that are due; return when to call again, or None to wait for a ring."""
        now = self.backend.clock()
        if self._bell.interrupted and self.asked is None:
            self.asked = "the end of the event loop"
        if self._bell.interrupted:
            self._stop_by = min(self._stop_by, now + min(self.grace, _HURRY_SECONDS))
        if self.asked is None or self.was_seen_to_exit():
            return None
        kill_at = min(self._stop_by, self._kill_time.in_time(self.owner_node, now))
        if now >= kill_at:
            return self._kill(now)
        if self.state in {_STARTING, _READY}:
            self._enter(ProcessState.STOPPING)
            process_spawn.signal_group(self.pid, signal.SIGTERM)
        return min(kill_at, now + _TICK_SECONDS_MAX)  # a caller may shorten the close

    def _kill(self, now: float) -> float | None:
        if self.state not in {ProcessState.KILLED, _STUCK}:
            self._enter(ProcessState.KILLED)
            self._stuck_at = now + _KILLED_SECONDS
            process_spawn.signal_group(self.pid, signal.SIGKILL)
        return self._call_it_stuck(now)

    def _call_it_stuck(self, now: float) -> float | None:
        if now < self._stuck_at:
            return self._stuck_at
        if not self.settled.is_open:  # only once, for the leader or for the rest of its group
            self._enter(_STUCK)
            logger.warning(
                "process %s (%d) or its group has survived SIGKILL for %.0f s: it counts as stuck",
                self.name_given, self.pid, _KILLED_SECONDS,
            )  # fmt: skip
            self.settled.open()
        return None

    async def _outlive_the_group(self) -> None:
        """Wait until the killed processes of the group have died, then kill the strays."""
        clock, tick = self.backend.clock, _TICK_SECONDS_MIN
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
        """Kill the strays that are found; return whether to look again.

        If the process ended by itself, its strays may go on: it may be a program that starts a daemon.
        """
        if self.asked is None and not self.may_exit:
            return False
        seen = watchdog.strays.look(self._mark, self._looked)
        if seen is None:
            return True
        self._looked = time.monotonic()
        found, sure = seen
        for pid in found:
            with suppress(OSError):
                if watchdog.mark_of(pid) == self._mark:  # the pid may be reused by now
                    os.kill(pid, signal.SIGKILL)
        if set(found) - set(self._strays):
            logger.info(
                "process %s (%d) left processes outside of its group, which were killed: %s",
                self.name_given, self.pid, ", ".join(map(str, found)),
            )  # fmt: skip
        self._strays = found
        self._looks_empty = 0 if found else self._looks_empty + 1
        return bool(found) or not (sure or self._looks_empty == _LOOKS_MAX)

    def abort_process(self) -> None:
        """Kill and reap a process whose owner task could not start, in this step."""
        self._stop_watching()
        process_spawn.signal_group(self.pid, signal.SIGKILL)
        watchdog.forget(self.pid)
        process_spawn.reap_killed(self.pid)
        process_spawn.await_death(self.pid, _DYING_SECONDS)
        self._release_files()
        self._enter(_GONE)

    def _release_files(self) -> None:
        self.outputs.finish()
        self.raw.finish()
        self.input.close()
        if self._child.exit_fd is not None:
            os.close(self._child.exit_fd)
            self._child.exit_fd = None
        clean_up(self.launch)

    def _finish(self) -> None:
        """Release everything. The last step of the owner."""
        self._release_files()
        if self.returncode is None:  # a stuck process, or a defect of quiesce
            self.returncode = process_spawn.RETURNCODE_UNKNOWN
        self._enter(_GONE)  # allowed from any state
        self._let_go(is_starting=bool(self.on_exit))
        self.gone.open()
        self.settled.open()

    def _let_go(self, *, is_starting: bool) -> None:
        """Release the hold. With `is_starting`, the caller of `start_process` gets an error about the end."""
        node = self.owner_node
        service = self in node.services
        if self.asked is not None:
            node.note_cancelled(self, service=service)
        elif service:
            node.note_service_ended(self)
            if not is_starting and not self.may_exit:
                logger.warning(
                    "process %s (%d) is a service but has ended by itself: %s",
                    self.name_given, self.pid, process_spawn.exit_text(self.returncode),
                )  # fmt: skip
        else:
            node.completed_count += 1
        node.discard_hold(self)

    def lost(self, what: str) -> ProcessLost:
        message = f"process {self.name_given!r} ({self.pid}) {what}: {process_spawn.exit_text(self.returncode)}"
        return ProcessLost(message, self.returncode, self.outputs.tail())

    def was_seen_to_exit(self) -> bool:
        return self.state is _EXITED or self.returncode is not None

    def has_exited(self) -> bool:
        return self.was_seen_to_exit() or exit_watch.has_exited(self.pid, self._child.exit_fd)

    # As a hold of the scope.

    @property
    def details(self) -> Mapping[str, object]:
        """The pid, the state, the program, and (`lifeline`) what ends the process if this program is killed."""
        found: dict[str, object] = {
            "pid": self.pid,
            "state": self.state.value,
            "program": self.launch.argv[0],
            "arguments": len(self.launch.argv) - 1,  # only the number: arguments may have secrets
        }
        if self.returncode is not None:
            found["returncode"] = self.returncode
        if self._strays:
            found["strays"] = self._strays
        return {**found, "lifeline": self._lifeline}

    def request_stop(self, *, force: bool = False) -> float:
        self.ask(BY_THE_CLOSE, 0.0 if force else self.grace)
        return 0.0 if self.settled.is_open else _DYING_SECONDS

    def goes_on_regardless(self) -> bool:
        return False  # the owner kills a process that goes on

    def list_frames(self) -> list[callsites.Frame]:
        return []

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node

    def reclassify(self) -> None:
        """Do nothing: `start_process` says whether the process is a service."""


def clean_up(launch: Launch) -> None:
    """Call all cleanup functions of a launch; log those that raise."""
    calls, launch.cleanup[:] = launch.cleanup[:], []
    for call in reversed(calls):
        try:
            call()
        except Exception:  # noqa: BLE001 - it is logged, and the other functions are still called
            logger.exception("a cleanup function of process %s raised", launch.argv[0])
