"""A program and how to start it: what a pool needs to know of the runners that it is to start."""

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
    """A program that may be started any number of times; the options are those of `start_process`.

    ```python
    worker = Program([sys.executable, "worker.py"], ready=Line("ready"))
    process = await worker.start()
    ```

    What is given here is checked here. How long a process may take to end is for its owner to say:
    it is an option of `start()`, and of a pool.

    Args:
        argv: The program, and its arguments. There is no shell.
        ready: What to wait for before it is given out: a probe, or an async function that is
            called with the process. None: nothing.
        ready_within: How many seconds it may take to be ready.
        env: Its whole environment; None: that of this program.
        cwd: Where it runs; None: where this program does.
        stdin: `"pipe"`, a file descriptor, or None: nothing to read.
        logs: Where its output goes.
        pass_fds: File descriptors that it inherits.
        listen: A listener that it inherits; one without `keep=True` can be one process's only.

    *Raises*: `ArgumentError`.
    """

    argv: Sequence[str | os.PathLike[str]]
    _: KW_ONLY
    ready: Any = None
    ready_within: float = 10.0
    env: Mapping[str, str] | None = field(default=None, repr=False)  # there may be secrets in it
    cwd: str | os.PathLike[str] | None = None
    stdin: int | Literal["pipe"] | None = None
    logs: Logs = "keep"
    pass_fds: Sequence[int] = ()
    listen: Listener | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work, and keep copies of what may be changed by others."""
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
        """Start it, as a service: `process = await program.start()`.

        Args:
            scope: Whose it is; the current one by default.
            name: What it is called; the program's name by default.
            grace: How many seconds it has between SIGTERM and SIGKILL.

        *Cancel safety*: as of `start_process`: cancelled while it waits for readiness, the process
        is stopped, and all of its group is gone, before the cancellation is passed on.

        *Raises*: what `start_process` raises.
        """
        return self._start(scope, name, grace, self.env)  # whoever awaits it has started it

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

    def _start_for(self, key: object, scope: Scope, grace: float) -> Coroutine[Any, Any, Process]:
        """Start it as the runner of a key, which it is told."""
        base = os.environ if self.env is None else self.env
        return self._start(scope, str(key), grace, {**base, KEY_VARIABLE: str(key)})


def check_shared(program: Program) -> None:
    """Refuse what only one process can have, in a program that is to be started for all keys."""
    owned = {
        "listen": program.listen is not None,
        "ready": isinstance(program.ready, Connecting),  # at one address
        "logs": isinstance(program.logs, os.PathLike),
    }
    names = [name for name, is_owned in owned.items() if is_owned]
    if names:
        message = (
            f"the {' and '.join(names)} of a Program for all keys would be that of many processes: "
            "give RunnerPool a function that makes a Program of a key"
        )
        raise ArgumentError(message)


async def runner_of(
    factory: Program | Callable[[Any], Any], key: object, scope: Scope, grace: float
) -> Any:
    """Start the runner of a key, by whatever a pool was given for that.

    What the factory gives decides, not what it is: it may be any callable.
    """
    made: Any = factory if isinstance(factory, Program) else factory(key)
    if inspect.isawaitable(made):
        made = await made
    elif not isinstance(made, Program):
        name = arguments.name_of(factory)
        message = (
            f"{name} gave {made!r}: a RunnerPool needs a Program, a function that gives one, or an "
            "async function that gives a runner"
        )
        raise ArgumentError(message)
    if isinstance(made, Program):
        return await made._start_for(key, scope, grace)
    return checked_runner(made, factory)
