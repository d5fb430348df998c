"""Programs for test_run.py: `run_programs.py NAME BACKEND [DRAIN [CLEANUP]]` runs one of them."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio

import quiesce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def say(line: object) -> None:
    """Print how far the program is, for the test."""
    print(line, flush=True)  # noqa: T201 - that is how it is told


def scope() -> quiesce.Scope:
    """Return the scope of the program."""
    found = quiesce.current_scope()
    assert found is not None
    return found


async def finish() -> None:
    """Work that is in flight when the signal comes, and ends well."""
    await scope().closing()
    await anyio.sleep(0.05)
    say("finished")


async def overrun() -> None:
    """Work that takes longer than anyone waits."""
    try:
        await anyio.sleep_forever()
    finally:
        say("cancelled")


async def swallow() -> None:
    """Work that does not let itself be cancelled."""
    said = False
    while True:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if not said:
                say("swallowed")
            said = True


async def swallow_in_main() -> None:
    """Run the stubborn code as main itself."""
    say("ready")
    await swallow()


in_thread = threading.Event()


def wait_for_ever() -> None:
    """Record that the thread has begun, and never return."""
    in_thread.set()
    threading.Event().wait()


async def block() -> None:
    """Work in a thread that nobody can stop."""
    await scope().to_thread(wait_for_ever)


async def fail() -> None:
    """Work that fails."""
    message = "of the job"
    raise ValueError(message)


async def leave() -> None:
    """Work that wants the process to end."""
    await anyio.lowlevel.checkpoint()
    sys.exit(5)


async def accept() -> None:
    """Accept work until cancelled, as a server's main does."""
    say("ready")
    try:
        await anyio.sleep_forever()
    finally:
        say("main stopped")


async def begun(job: object) -> None:
    """Wait until a job is at it: a thread that has not begun by the end never does."""
    await anyio.sleep(0.01)
    if job is block:
        await anyio.to_thread.run_sync(in_thread.wait)


def with_job(job: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[object]]:
    """Make a main that starts a job and ends when a drain begins."""

    async def main() -> str:
        scope().spawn(job)  # type: ignore[arg-type]  # an async function all the same
        await begun(job)
        say("ready")
        await scope().closing()
        return "main's value"

    return main


def and_then(job: Callable[[], Awaitable[Any]], last: Callable[[], object]) -> Any:
    """Make a main that starts a job and ends by itself."""

    async def main() -> object:
        scope().spawn(job)  # type: ignore[arg-type]  # an async function all the same
        await begun(job)
        return last()

    return main


def raise_error() -> None:
    """End main with an error."""
    message = "of main"
    raise KeyError(message)


def interrupt() -> None:
    """End main as Ctrl-C would, were it not handled."""
    raise KeyboardInterrupt


async def hold() -> None:
    """Take a hold and forget to release it."""
    scope().hold("request", "GET /forgotten")


async def tell_itself() -> None:
    """Report the drain on stdout, for there is no stderr."""
    scope().spawn(swallow)
    await anyio.sleep(0.01)
    say("ready")
    await scope().closing()
    say("draining")


async def look_at_handlers() -> None:
    """Tell, in the very first step, whether signals are handled."""
    say([signal.getsignal(which) not in OF_PYTHON for which in (signal.SIGINT, signal.SIGTERM)])


class Unspeakable:
    """A value that cannot be shown."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


async def finish_unspeakably() -> None:
    """Work with a detail that cannot be shown."""
    with scope().hold("request", "GET /", peer=Unspeakable()):
        await finish()


async def finish_silently() -> None:
    """Work in a program whose standard error is gone."""
    sys.stderr = None  # as under pythonw, or in a daemon
    await finish()


OF_PYTHON = (signal.SIG_DFL, signal.default_int_handler)

MAINS: dict[str, Callable[[], Awaitable[object]]] = {
    "finish": with_job(finish),
    "unspeakable": with_job(finish_unspeakably),
    "silent": with_job(finish_silently),
    "overrun": with_job(overrun),
    "swallow": with_job(swallow),
    "block": with_job(block),
    "fail": with_job(fail),
    "leave": with_job(leave),
    "hold": with_job(hold),
    "main-overruns": accept,
    "main-swallows": swallow_in_main,
    "service": accept,
    "returns": and_then(finish, lambda: "main's value"),
    "raises": and_then(finish, raise_error),
    "exits-3": and_then(finish, lambda: sys.exit(3)),
    "exits-0-with-loss": and_then(fail, lambda: sys.exit(0)),
    "exits-4-with-loss": and_then(fail, lambda: sys.exit(4)),
    "raises-with-stuck": and_then(block, raise_error),
    "interrupts": and_then(finish, interrupt),
    "returns-early": and_then(overrun, lambda: say("main ends")),
    "tells-itself": tell_itself,
    "handlers": look_at_handlers,
}


def run(name: str, backend: Any, drain: str = "60", cleanup: str = "60") -> None:
    """Run one of the programs, and tell what it returned."""
    main: Any = MAINS[name]
    seconds = {"grace": float(drain), "cleanup": float(cleanup)}
    value = quiesce.run(main, backend=backend, service=name == "service", **seconds)
    say(f"returned {value!r}")


if __name__ == "__main__":
    run(*sys.argv[1:])
