"""KeyboardInterrupt and SystemExit of a job get out of the event loop, and the work is ended.

These run as programs do: asyncio and uvloop let such an exception out in the middle of a turn,
and only then is the loop shut down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from quiesce import Job, Scope
from tests.loops import BACKENDS
from tests.stress import failing, failing_when_cancelled, lasting, run_bounded, turns, unclosed

if TYPE_CHECKING:
    from collections.abc import Sequence

FATAL: Sequence[type[BaseException]] = [KeyboardInterrupt, SystemExit]
on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.quiesce(allow=["task*:*.main", "task:*.sibling", "task:*.nested"])
@pytest.mark.parametrize("fatal", FATAL)
@pytest.mark.parametrize("where", ["block", "child", "nested", "service", "opened", "cleanup"])
@on_each_backend
def test_what_ends_the_program_gets_out(
    backend: str, where: str, fatal: type[BaseException]
) -> None:
    """KeyboardInterrupt and SystemExit of a job come out of the loop, and the work is ended."""
    ended: list[str] = []

    async def sibling() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if where != "cleanup":  # there, the end of the loop would cut it short on asyncio
                await lasting(0.001)
            ended.append("sibling")

    async def main() -> None:
        if where == "opened":
            await fill(await Scope.open("a"))
            return
        async with Scope("a") as scope:
            await fill(scope)

    async def fill(scope: Scope) -> None:
        scope.spawn(sibling)
        await turns(3)
        if where == "child":
            scope.child("b").spawn(failing, fatal())
        elif where == "nested":
            scope.spawn(nested)
        elif where == "cleanup":
            scope.spawn(failing_when_cancelled, fatal())
            await turns(3)
            raise KeyError
        else:
            scope.spawn(failing, fatal(), service=where == "service")
        await anyio.sleep_forever()

    async def nested() -> None:
        async with Scope("b") as inner:
            inner.spawn(failing, fatal())
            await anyio.sleep_forever()

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which, is the question
        run_bounded(backend, main)
    if backend == "trio" and where == "opened":  # nobody is there to raise it: trio's own, then
        assert isinstance(caught.value, trio.Cancelled)
    else:
        assert only_fatal(caught.value, fatal), repr(caught.value)
    assert ended == ["sibling"]
    unclosed()


def only_fatal(error: BaseException, fatal: type[BaseException]) -> bool:
    """Return whether an error is the fatal one, or a group (of a nursery, say) with it inside."""
    if isinstance(error, BaseExceptionGroup):
        return any(only_fatal(inner, fatal) for inner in error.exceptions)
    return type(error) is fatal


@pytest.mark.quiesce(allow=["task*:*.main"])
@on_each_backend
def test_the_exit_code_of_a_job_is_the_programs(backend: str) -> None:
    """`sys.exit(3)` in a job is `sys.exit(3)`."""

    async def main() -> None:
        async with Scope("a") as scope:
            scope.spawn(failing, SystemExit(3))

    with pytest.raises(SystemExit) as caught:
        run_bounded(backend, main)
    assert caught.value.code == 3
    unclosed()


@pytest.mark.quiesce(allow=["task:*.main", "task:sleep_forever"])
@on_each_backend
def test_a_function_for_failures_may_end_the_program(backend: str) -> None:
    """`sys.exit()` in `on_error` gets out like that of a job, at once."""

    def leave(_: Job[Any], __: BaseException) -> None:
        raise SystemExit(3)

    async def main() -> None:
        async with Scope("a", on_error=leave) as scope:
            scope.spawn(anyio.sleep_forever)
            scope.spawn(failing, KeyError())
            await anyio.sleep_forever()

    with pytest.raises(SystemExit) as caught:
        run_bounded(backend, main, seconds=4.0)
    assert caught.value.code == 3
    unclosed()
