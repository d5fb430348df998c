"""Child processes that no cancellation can orphan."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import anyio

from quiesce.core import arguments, callsites
from quiesce.core.current import place_for
from quiesce.core.owner import owner_of
from quiesce.errors import (
    ArgumentError,
    NotReady,
    ProcessLost,
    ProcessStuck,
    ScopeClosed,
    SpawnFailed,
    UsageError,
)
from quiesce.processes import fork_queue, output, process_spawn, watchdog
from quiesce.processes.process_owner import BY_THE_CLOSE, OwnedProcess, clean_up
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Launch, Line, ready_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from quiesce.core.scope import Scope
    from quiesce.processes.output import Logs, Output, Outputs
    from quiesce.processes.raw_stdio import RawOutput
    from quiesce.processes.readiness.probe import Ready

__all__ = ["Process", "start_process"]

_TOO_EARLY = "exited before it was ready"


class Process(OwnedProcess):
    """A program that runs, held by a scope until nothing of its process group is left.

    Made by `start_process()`.
    """

    # Asking.

    @property
    def argv(self) -> tuple[str, ...]:
        """What was started."""
        return tuple(self._launch.argv)

    @property
    def returncode(self) -> int | None:
        """How it exited, as in `subprocess` (negative: the signal); None while it runs."""
        return self._returncode

    @property
    def state(self) -> str:
        """Where it is: starting, ready, stopping, killed, stuck or gone."""
        return self._state

    @property
    def stdout(self) -> Output:
        """What it writes: `async for line in process.stdout`."""
        return self._outputs.stdout

    @property
    def stderr(self) -> Output:
        """What it writes to its standard error: `async for line in process.stderr`."""
        return self._outputs.stderr

    @property
    def raw(self) -> RawOutput:
        """What it writes, as bytes, if that was asked for by `stdout="bytes"`."""
        return self._raw

    @property
    def lines(self) -> Outputs:
        """Both outputs, to look for a line: `await process.lines.line_matching(pattern)`."""
        return self._outputs

    async def wait(self) -> int:
        """Wait until nothing of it is left, and give its exit code.

        *Cancel safety*: may be cancelled at any time; it has no effect on the process.
        """
        await self._gone.wait()
        assert self._returncode is not None  # noqa: S101 - the gate is opened after it
        return self._returncode

    def __repr__(self) -> str:
        """Name the process and its state."""
        return f"<Process {self._name!r} {self.pid} {self._state}>"

    # Acting on it. The pid is ours as long as the owner has not reaped it, in a step of its own.

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing happens if it has exited."""
        self._check_here()
        if self._returncode is None and not self._exited:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to stop: SIGTERM to its group, SIGKILL after its grace."""
        self._check_here()
        self._ask("terminate()", self._grace)

    def kill(self) -> None:
        """Kill its group, now."""
        self._check_here()
        self._ask("kill()", 0.0)

    async def stop(self, grace: float | None = None) -> int:
        """Stop it, and wait until nothing of it is left: SIGTERM, then SIGKILL after `grace`.

        Return the exit code.

        *Cancel safety*: the stop goes on, and is waited for, before the cancellation is passed
        on.

        *Raises*: `ProcessStuck` if it outlives SIGKILL.
        """
        self._check_here()
        seconds = self._grace if grace is None else arguments.seconds("grace", grace)
        self._ask("stop()", seconds)
        await self._settled.outlast()
        if self._returncode is None or not self._gone.is_open:
            message = f"process {self._name!r} ({self.pid}) was killed, and has not ended"
            raise ProcessStuck(message)
        return self._returncode

    async def send(self, data: bytes) -> None:
        """Write all of `data` to its standard input, which was asked for by `stdin="pipe"`.

        Many tasks may send at once: each one's data is written whole, in the order of the calls.

        *Cancel safety*: all of it is written nevertheless, or nothing.

        *Raises*: `ProcessLost` if it does not read any more; `UsageError` without such a pipe.
        """
        if not await self._input.written(self.post(data)):
            raise self._deaf()

    def post(self, data: bytes) -> int:
        """Send without waiting: what the pipe does not take now is written when it does.

        There is no bound: whoever posts a lot awaits `room()` now and then. What it gives is for
        `send()`.

        *Raises*: as `send()`.
        """
        self._check_here()
        if not self._input.is_open:
            raise self._deaf()
        mark = self._input.post(data)
        if self._input.broken:
            raise self._deaf()
        return mark

    async def room(self) -> None:
        """Wait while more than 1 MiB of what was posted is unwritten.

        *Cancel safety*: may be cancelled at any time.
        """
        await self._input.room()

    def _deaf(self) -> ProcessLost | UsageError:
        if self._input.broken:
            return self._lost("does not read its standard input any more")
        message = f"process {self._name!r} has no open standard input: use stdin='pipe'"
        if self._gone.is_open:
            return self._lost("has ended")
        return UsageError(message)

    @property
    def reads(self) -> bool:
        """Whether its standard input is a pipe that is open at both ends, as far as is known."""
        return self._input.is_open

    def close_stdin(self) -> None:
        """Close its standard input as soon as what was posted is written. Idempotent.

        From now on `send()` and `post()` raise `UsageError`. A service that exits then is not reported.
        """
        self._check_here()
        self._dismissed = True
        self._input.finish()

    def _check_here(self) -> None:
        if not self._backend.here():
            message = (
                f"process {self._name!r} was used from another thread or event loop: "
                "use scope.from_thread(...)"
            )
            raise UsageError(message)

    # Readiness.

    async def _become_ready(self, ready: Ready, within: float) -> None:
        """Wait until it is ready; raises if it exits first, or the deadline passes.

        However it is left, but by being ready, the process is stopped before.
        """
        self._state = "starting"
        try:
            await self._race(ready, within)
        except BaseException as error:
            by_exit = isinstance(error, Exception) and self._has_exited()
            self._ask("a start that failed", self._grace)
            if isinstance(error, GeneratorExit):
                raise  # it was thrown away, and may not wait; the owner goes on
            if isinstance(error, Exception):
                await self._settled.outlast()  # a cancellation that comes now goes before the error
            else:
                await self._settled.wait_shielded()
            if by_exit and not isinstance(error, ProcessLost | ScopeClosed):
                raise self._lost(_TOO_EARLY) from error  # that is why the probe has failed
            raise
        finally:
            self._on_exit.clear()

    async def _race(self, ready: Ready, within: float) -> None:
        """Wait for readiness, for the exit, or for the deadline, in the caller's own task."""
        with anyio.CancelScope(deadline=self._backend.clock() + within) as race:
            self._on_exit.append(race.cancel)
            try:
                await ready.wait(self)
            except ProcessLost:  # a probe that reads its lines may notice the exit first
                if not self._has_exited():
                    raise
        if self._has_exited():
            await self._settled.wait()
            if self._asked == BY_THE_CLOSE:
                message = f"scope {self._node.name!r} was closed while {self._name} was starting"
                raise ScopeClosed(message)
            raise self._lost(_TOO_EARLY)
        if race.cancelled_caught:
            obstacle = getattr(ready, "obstacle", None)
            why = "" if obstacle is None else f": {obstacle}"
            message = f"process {self._name!r} ({self.pid}) was not ready in {within:g} s{why}"
            raise NotReady(message, self._outputs.tail())
        if self._state == "starting":
            self._state = "ready"


async def start_process(  # noqa: PLR0913 - options are keyword-only, and named by the caller
    argv: Sequence[str | os.PathLike[str]],
    *,
    scope: Scope | None = None,
    name: str | None = None,
    ready: Any = None,
    ready_within: float = 10.0,
    grace: float = 5.0,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdin: int | Literal["pipe"] | None = None,
    stdout: Literal["lines", "bytes"] = "lines",
    logs: Logs = "keep",
    user: str | int | None = None,
    pass_fds: Sequence[int] = (),
    listen: Listener | None = None,
    service: bool = False,
) -> Process:
    """Start a program as a child process of a scope.

    It leads a session and a process group of its own. Its scope is busy while it runs, and the
    scope's close stops it, and all of its group: SIGTERM, then SIGKILL after `grace`.

    Args:
        argv: The program, and its arguments. There is no shell.
        scope: Whose it is; the current one by default.
        name: What it is called; the program's name by default.
        ready: What to wait for before it is given out: a probe, or an async function that is
            called with the process and returns when it is ready. None: nothing.
        ready_within: How many seconds it may take to be ready.
        grace: How many seconds it has between SIGTERM and SIGKILL.
        env: Its whole environment; None: that of this program.
        cwd: Where it runs; None: where this program does.
        stdin: `"pipe"`, for `send()`; a file descriptor; None: nothing to read.
        stdout: `"bytes"`: what it writes is for `raw`, for a protocol that it speaks; then `logs` is
            about its standard error alone.
        logs: Where its output goes: `"keep"` the last of it, to be read from `stdout` and
            `stderr`; likewise, and to a `pathlib.Path`, a logger, a function that is called with
            the stream's name and the line, or the logger `quiesce.process` (`"log"`). Or
            `"inherit"` this program's, or `"discard"` it.
        user: As whom it runs, by name or number; this program has to be allowed to.
        pass_fds: File descriptors that it inherits.
        listen: A listener that it inherits.
        service: Whether it is a server rather than work: it does not keep the scope from being
            idle, and a drain stops it when the work is done.

    *Cancel safety*: cancelled while it waits for readiness, the process is stopped, and all of
    its group is gone, before the cancellation is passed on.

    *Raises*: `SpawnFailed` if it cannot be started; `ProcessLost` if it exits before it is ready;
    `NotReady` at the deadline; `ScopeClosed`.
    """
    with _handed_over(listen):
        node = owner_of("a process", scope)
        seconds = arguments.seconds("ready_within", ready_within)
        probe = None if ready is None else ready_of(ready)
        place = callsites.starting_code(sys._getframe(1), node._backend.current())
        await fork_queue.of(node._backend).take()
        process = _start(
            node, Launch(process_spawn.words_of(argv)),
            [part for part in (listen, probe) if part is not None],
            name=name, env=process_spawn.environment(env), grace=arguments.seconds("grace", grace),
            cwd=cwd, stdin=stdin, stdout=stdout, logs=logs, user=process_spawn.user_of(user),
            pass_fds=pass_fds, service=service, frame=place,
        )  # fmt: skip
    if probe is not None:
        await process._become_ready(probe, seconds)
    return process


def _start(  # noqa: PLR0913 - those of start_process
    node: Scope,
    launch: Launch,
    parts: list[Listener | Ready],
    *,
    name: str | None,
    env: Mapping[Any, Any] | None,
    grace: float,
    cwd: str | os.PathLike[str] | None,
    stdin: int | Literal["pipe"] | None,
    stdout: Literal["lines", "bytes"],
    logs: Logs,
    user: str | int | None,
    pass_fds: Sequence[int],
    service: bool,
    frame: FrameType | callsites.Callsite,
) -> Process:
    """Fork, and hold what was forked, in one step."""
    called = (
        os.path.basename(launch.argv[0])  # noqa: PTH119 - a plain string
        if name is None
        else arguments.check_text("name", name)
    )
    wiring = output.wiring(logs)
    raw = arguments.one_of("stdout", stdout, ("lines", "bytes")) == "bytes"
    if wiring != "pipe" and any(isinstance(part, Line) for part in parts):
        message = f"ready=Line(…) has to read what the process writes: not with logs={logs!r}"
        raise ArgumentError(message)
    folder, reading = process_spawn.folder_of(cwd), process_spawn.stdin_of(stdin)
    launch.pass_fds += process_spawn.open_fds("pass_fds", pass_fds)
    node._admit()
    try:
        _prepare(launch, parts)
        sink = output.sink_of(logs, called, launch.cleanup)
        watchdog.mark_environment(launch.env)
        child = process_spawn.spawn(launch, env, folder, reading, wiring, raw=raw, user=user)
    except BaseException:
        clean_up(launch)
        raise
    node = node if service else place_for(node)
    process = Process(node, child, launch, called, grace, frame)
    try:
        process._begin(sink)
    except BaseException:
        process._abort()
        raise
    if service:
        node._services[process] = process
    else:
        node._insert(process, process)
    return process


@contextmanager
def _handed_over(listen: Listener | None) -> Iterator[None]:
    """Close the listener if no process takes it: the start was refused, or cancelled before its turn."""
    if listen is not None:
        arguments.instance("listen", listen, Listener)
    try:
        yield
    except BaseException:
        if listen is not None:
            listen.let_go()
        raise


def _prepare(launch: Launch, parts: list[Listener | Ready]) -> None:
    for part in parts:
        try:
            part.prepare(launch)
        except OSError as error:
            message = f"cannot start {launch.argv[0]!r} with {part!r}: {error}"
            raise SpawnFailed(message) from error
