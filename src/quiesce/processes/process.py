"""The public interface of child processes: `Process`, and `start_process` that starts one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import anyio

from quiesce.core import arguments, callsites
from quiesce.core.current import place_for
from quiesce.core.owner import owner_of
from quiesce.core.platform_check import check_posix
from quiesce.core.python_private import get_frame
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

_TOO_EARLY = "exited before it was ready"  # the text after the process's name


class Process:
    """A child process. Its scope holds it until every process of its group has ended.

    `start_process()` makes it.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: OwnedProcess) -> None:
        self._owner = owner

    # State.

    @property
    def name(self) -> str:
        """The process's name in reports."""
        return self._owner.name_given

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session and of its process group."""
        return self._owner.pid

    @property
    def where(self) -> str | None:
        """The file and line that started it."""
        return self._owner.where

    @property
    def details(self) -> Mapping[str, object]:
        """The pid, the state, the program, and (`lifeline`) what ends the process if this program is killed."""
        return self._owner.details

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return tuple(self._owner.launch.argv)

    @property
    def returncode(self) -> int | None:
        """The exit code, as in `subprocess` (negative for a signal); None while the process runs."""
        return self._owner.returncode

    @property
    def state(self) -> str:
        """The state: starting, ready, stopping, killed, exited, stuck or gone."""
        return self._owner.state.value

    @property
    def stdout(self) -> Output:
        """The lines of its standard output: `async for line in process.stdout`."""
        return self._owner.outputs.stdout

    @property
    def stderr(self) -> Output:
        """The lines of its standard error: `async for line in process.stderr`."""
        return self._owner.outputs.stderr

    @property
    def raw(self) -> RawOutput:
        """Its standard output as bytes, if it was started with `stdout="bytes"`."""
        return self._owner.raw

    @property
    def lines(self) -> Outputs:
        """Both outputs, to wait for a line: `await process.lines.line_matching(pattern)`."""
        return self._owner.outputs

    async def wait(self) -> int:
        """Wait until every process of its group has ended, and return the exit code.

        *Cancel safety*: may be cancelled at any time; the process goes on.
        """
        await self._owner.gone.wait()
        assert self._owner.returncode is not None  # noqa: S101 - the gate is opened after it
        return self._owner.returncode

    def __repr__(self) -> str:
        return repr(self._owner)

    @property
    def may_exit(self) -> bool:
        """Whether no warning is logged if the process is a service and exits by itself."""
        return self._owner.may_exit

    @may_exit.setter
    def may_exit(self, value: bool) -> None:
        self._owner.may_exit = value

    # Signals and input. The owner reaps in one step, so until then the pid cannot belong to another process.

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, not to its group; do nothing if the process has exited."""
        self._check_here()
        if not self._owner.was_seen_to_exit():
            os.kill(self._owner.pid, number)

    def terminate(self) -> None:
        """Ask the process to stop: send SIGTERM to its group now, and SIGKILL after its grace."""
        self._check_here()
        self._owner.ask("terminate()", self._owner.grace)

    def kill(self) -> None:
        """Send SIGKILL to its group now."""
        self._check_here()
        self._owner.ask("kill()", 0.0)

    async def stop(self, grace: float | None = None) -> int:
        """Stop the process, wait until its whole group has ended, and return the exit code.

        The group gets SIGTERM now, and SIGKILL after `grace` seconds.

        *Cancel safety*: if cancelled, `stop()` waits until the process has ended, then passes the
        cancellation on.

        *Raises*: `ProcessStuck` if the process survives SIGKILL.
        """
        self._check_here()
        seconds = self._owner.grace if grace is None else arguments.seconds("grace", grace)
        self._owner.ask("stop()", seconds)
        await self._owner.settled.outlast()
        if self._owner.returncode is None or not self._owner.gone.is_open:
            message = (
                f"process {self._owner.name_given!r} ({self._owner.pid}) or its group has survived SIGKILL: "
                "it may wait for a disk or a network file system"
            )
            raise ProcessStuck(message)
        return self._owner.returncode

    async def send(self, data: bytes) -> None:
        """Write `data` to its standard input. The process must have been started with `stdin="pipe"`.

        Several tasks may send at the same time: each piece of data is written whole, in the order of the calls.

        *Cancel safety*: if cancelled, either all of `data` will be written or none.

        *Raises*: `ProcessLost` if the process no longer reads; `UsageError` if it was started without the pipe.
        """
        if not await self._owner.input.written(self.post(data)):
            raise self._deaf()

    def post(self, data: bytes) -> int:
        """Send without waiting. Data that the pipe has no room for is queued and written later.

        The queue has no bound, so await `room()` between many calls. The return value is for
        internal use by `send()`.

        *Raises*: the same exceptions as `send()`.
        """
        self._check_here()
        if not self._owner.input.is_open:
            raise self._deaf()
        mark = self._owner.input.post(data)
        if self._owner.input.broken:
            raise self._deaf()
        return mark

    async def room(self) -> None:
        """Wait while more than 1 MiB of posted data is not written yet.

        *Cancel safety*: may be cancelled at any time.
        """
        await self._owner.input.room()

    def _deaf(self) -> ProcessLost | UsageError:
        if self._owner.input.broken:
            return self._owner.lost("no longer reads its standard input")
        message = f"process {self._owner.name_given!r} has no open standard input: use stdin='pipe'"
        if self._owner.gone.is_open:
            return self._owner.lost("has ended")
        return UsageError(message)

    @property
    def reads(self) -> bool:
        """Whether its standard input is a pipe, and as far as is known open at both ends."""
        return self._owner.input.is_open

    def close_stdin(self) -> None:
        """Close its standard input when all posted data is written. Idempotent.

        From now on `send()` and `post()` raise `UsageError`. If a service exits after this, no warning is logged.
        """
        self._check_here()
        self._owner.may_exit = True
        self._owner.input.finish()

    def _check_here(self) -> None:
        if not self._owner.backend.here():
            message = (
                f"process {self._owner.name_given!r} was used from another thread or event loop: "
                "use scope.from_thread(...)"
            )
            raise UsageError(message)


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
    """Start a program as a child process of a scope, and return it when it is ready.

    The process leads a new session and a new process group. Its scope is busy while the process
    runs. The scope's close stops the whole group: SIGTERM, then SIGKILL after `grace` seconds.

    Args:
        argv: The program and its arguments. They are not passed through a shell.
        scope: The scope that owns the process; the current scope by default.
        name: The process's name in reports; the program's name by default.
        ready: How to wait until the process is ready: a probe, or an async function that takes the
            process and returns when it is ready. None: do not wait.
        ready_within: How many seconds the process may take to be ready.
        grace: How many seconds the process has between SIGTERM and SIGKILL.
        env: The whole environment of the process; None: the environment of this program.
        cwd: The working folder of the process; None: that of this program.
        stdin: `"pipe"`, for `send()`; a file descriptor; None: an empty input.
        stdout: `"bytes"`: read the output as bytes from `raw`. Then `logs` is only for standard error.
        logs: Where the output goes. `"keep"`: keep the last lines, readable by `stdout` and `stderr`.
            A `pathlib.Path`, a logger, or a function (called with the stream's name and the line):
            keep the last lines, and pass each line on. `"log"`: the same with the logger
            `quiesce.process`. `"inherit"`: the outputs of this program. `"discard"`: nowhere.
        user: The user that the process runs as, by name or number. This program needs the permission.
        pass_fds: File descriptors that the process inherits.
        listen: A listener that the process inherits.
        service: Whether the process is a server rather than work. The scope can be idle while a
            service runs, and a drain stops the service when the work is done.

    *Cancel safety*: if cancelled while it waits for readiness, `start_process` stops the process and
    waits until its whole group has ended, then passes the cancellation on.

    *Raises*: `SpawnFailed` if the program cannot be started; `ProcessLost` if the process exits before
    it is ready; `NotReady` at the deadline; `ScopeClosed` if the closing of the scope has begun.
    """
    check_posix("start_process()")
    with _handed_over(listen):
        node = owner_of("a process", scope)
        seconds = arguments.seconds("ready_within", ready_within)
        probe = None if ready is None else ready_of(ready)
        place = callsites.starting_code(get_frame(1), node.backend.current())
        await fork_queue.of(node.backend).take()
        owner = _start(
            node, Launch(process_spawn.words_of(argv)),
            [part for part in (listen, probe) if part is not None],
            name=name, env=process_spawn.environment(env), grace=arguments.seconds("grace", grace),
            cwd=cwd, stdin=stdin, stdout=stdout, logs=logs, user=process_spawn.user_of(user),
            pass_fds=pass_fds, service=service, frame=place,
        )  # fmt: skip
    process = Process(owner)
    await _become_ready(process, owner, probe, seconds)
    return process


def _start(  # noqa: PLR0913 - the options of start_process
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
) -> OwnedProcess:
    """Fork, and make the scope hold the process, in one step."""
    called = (
        os.path.basename(launch.argv[0])  # noqa: PTH119 - a plain string
        if name is None
        else arguments.check_text("name", name)
    )
    wiring = output.wiring(logs)
    raw = arguments.one_of("stdout", stdout, ("lines", "bytes")) == "bytes"
    if wiring != "pipe" and any(isinstance(part, Line) for part in parts):
        message = f"ready=Line(…) must read the output, but logs={logs!r} prevents that: use 'keep'"
        raise ArgumentError(message)
    folder, reading = process_spawn.folder_of(cwd), process_spawn.stdin_of(stdin)
    launch.pass_fds += process_spawn.open_fds("pass_fds", pass_fds)
    node.check_may_start()
    try:
        _prepare(launch, parts)
        sink = output.sink_of(logs, called, launch.cleanup)
        watchdog.mark_environment(launch.env)
        child = process_spawn.spawn(launch, env, folder, reading, wiring, raw=raw, user=user)
    except BaseException:
        clean_up(launch)
        raise
    node = node if service else place_for(node)
    owner = OwnedProcess(node, child, launch, called, grace, frame)
    try:
        owner.begin_owning(sink)
    except BaseException:
        owner.abort_process()
        raise
    if service:
        node.services[owner] = owner
    else:
        node.insert_hold(owner, owner)
    return owner


@contextmanager
def _handed_over(listen: Listener | None) -> Iterator[None]:
    """Close the listener if the start is refused or cancelled, so that no process gets the listener."""
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


# Readiness.


async def _become_ready(
    process: Process, owner: OwnedProcess, ready: Ready | None, within: float
) -> None:
    """Wait until the process is ready; raise if it exits first or the deadline passes.

    Before an exception is raised, the process is stopped.
    """
    if ready is None:
        owner.note_ready()
        return
    try:
        await _race(process, owner, ready, within)
    except BaseException as error:
        by_exit = isinstance(error, Exception) and owner.has_exited()
        owner.ask("a start that failed", owner.grace)
        if isinstance(error, GeneratorExit):
            raise  # this coroutine is being closed, so it cannot wait; the owner goes on
        if isinstance(error, Exception):
            await owner.settled.outlast()  # a cancellation during this wait replaces the error
        else:
            await owner.settled.wait_shielded()
        if by_exit and not isinstance(error, ProcessLost | ScopeClosed):
            raise owner.lost(_TOO_EARLY) from error  # the exit made the probe fail
        raise
    finally:
        owner.on_exit.clear()


async def _race(process: Process, owner: OwnedProcess, ready: Ready, within: float) -> None:
    """Wait in the caller's task for readiness, the exit or the deadline, whichever is first."""
    with anyio.CancelScope(deadline=owner.backend.clock() + within) as race:
        owner.on_exit.append(race.cancel)
        try:
            await ready.wait(process)
        except ProcessLost:  # a probe that reads the process's lines may notice the exit first
            if not owner.has_exited():
                raise
    if owner.has_exited():
        await owner.settled.wait()
        if owner.asked == BY_THE_CLOSE:
            message = (
                f"scope {owner.owner_node.name!r} was closed while {owner.name_given} was starting"
            )
            raise ScopeClosed(message)
        raise owner.lost(_TOO_EARLY)
    if race.cancelled_caught:
        obstacle = getattr(ready, "obstacle", None)
        why = "" if obstacle is None else f": {obstacle}"
        message = f"process {owner.name_given!r} ({owner.pid}) was not ready in {within:g} s{why}"
        raise NotReady(message, owner.outputs.tail())
    owner.note_ready()
