"""A program and its options: what a pool needs to start a process as a runner."""

from __future__ import annotations

import inspect
import os
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from quiesce.core import arguments
from quiesce.errors import ArgumentError
from quiesce.pool.slot import checked_runner
from quiesce.processes import output, process_spawn
from quiesce.processes.process import start_process
from quiesce.processes.readiness.connect import Connecting
from quiesce.processes.readiness.probe import ready_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from quiesce.core.scope import Scope
    from quiesce.processes.output import Logs
    from quiesce.processes.process import Process
    from quiesce.processes.readiness.listener import Listener

__all__ = ["Program"]

KEY_VARIABLE = "QUIESCE_RUNNER_KEY"
GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Program:
    """A program that can be started any number of times; the options are those of `start_process`.

    ```python
    worker = Program([sys.executable, "worker.py"], ready=Line("ready"))
    process = await worker.start()
    ```

    The options are checked when the object is created. How long a process may take to end is not an
    option here: it is an option of `start()`, and of a pool.

    Args:
        argv: The program and its arguments. There is no shell.
        ready: What to wait for before the process counts as started: a probe, or an async function
            that is called with the process. None: no wait.
        ready_within: How many seconds the process may take to be ready.
        env: The whole environment of the process; None: the environment of this program.
        cwd: The working directory; None: the one of this program.
        stdin: `"pipe"`, a file descriptor, or None: nothing to read.
        logs: Where the output goes.
        pass_fds: File descriptors that the process inherits.
        listen: A listener that the process inherits; without `keep=True` only one process can have it.

    *Raises*: `ArgumentError`.
    """

    argv: Sequence[str | os.PathLike[str]]
    _: KW_ONLY
    ready: Any = None
    ready_within: float = 10.0
    env: Mapping[str, str] | None = field(default=None, repr=False)  # it may contain secrets
    cwd: str | os.PathLike[str] | None = None
    stdin: int | Literal["pipe"] | None = None
    logs: Logs = "keep"
    pass_fds: Sequence[int] = ()
    listen: Listener | None = None

    def __post_init__(self) -> None:
        """Check the options, and copy those that the caller might change later."""
        own = {
            "argv": tuple(process_spawn.words_of(self.argv)),
            "env": process_spawn.environment(self.env),
            "pass_fds": tuple(self.pass_fds),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)
        arguments.seconds("ready_within", self.ready_within)
        process_spawn.stdin_of(self.stdin)
        output.wiring(self.logs)
        if self.ready is not None:
            ready_of(self.ready)

    def start(
        self, *, scope: Scope | None = None, name: str | None = None, grace: float = GRACE_SECONDS
    ) -> Coroutine[Any, Any, Process]:
        """Start a process as a service: `process = await program.start()`.

        Args:
            scope: The owning scope; the current one by default.
            name: The name of the process; the program's name by default.
            grace: How many seconds the process has between SIGTERM and SIGKILL.

        *Cancel safety*: as of `start_process`: if cancelled while it waits for readiness, the
        process and all of its group are gone before the cancellation is passed on.

        *Raises*: the errors of `start_process`.
        """
        # A coroutine: the task that awaits it starts the process.
        return self._start(scope, name, grace, self.env)

    def _start(
        self,
        scope: Scope | None,
        name: str | None,
        grace: float,
        env: Mapping[str, str] | None,
    ) -> Coroutine[Any, Any, Process]:
        options: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        options |= {"scope": scope, "name": name, "grace": grace, "env": env}
        return start_process(**options, service=True)

    def start_for_key(
        self, key: object, scope: Scope, grace: float
    ) -> Coroutine[Any, Any, Process]:
        """Start the process as the runner of a key; the key is in its environment."""
        base = os.environ if self.env is None else self.env
        return self._start(scope, str(key), grace, {**base, KEY_VARIABLE: str(key)})


def check_shared(program: Program) -> None:
    """Raise `ArgumentError` if a program for all keys has options that only one process can use."""
    owned = {
        "listen": program.listen is not None,
        "ready": isinstance(program.ready, Connecting),  # connects to one address
        "logs": isinstance(program.logs, os.PathLike),
    }
    names = [name for name, is_owned in owned.items() if is_owned]
    if names:
        message = (
            f"a Program for all keys cannot have {' and '.join(names)}, which only one process can use: "
            "give RunnerPool a function that makes a Program for each key"
        )
        raise ArgumentError(message)


async def runner_of(
    factory: Program | Callable[[Any], Any], key: object, scope: Scope, grace: float
) -> Any:
    """Start the runner of a key with the factory that the pool was given.

    The factory's result decides how: any callable may return a `Program` or a runner.
    """
    made: Any = factory if isinstance(factory, Program) else factory(key)
    if inspect.isawaitable(made):
        made = await made
    elif not isinstance(made, Program):
        name = arguments.name_of(factory)
        message = (
            f"{name} returned {made!r}: RunnerPool needs a Program, a function that returns a Program, or "
            "an async function that returns a runner"
        )
        raise ArgumentError(message)
    if isinstance(made, Program):
        return await made.start_for_key(key, scope, grace)
    return checked_runner(made, factory)
