"""The gate: a shutdown drains what is planted, or names it, or fails with a table."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from quiesce import ArgumentError, Report, Scope, UsageError
from quiesce.testing import Gate, GateFailed, GateRow, assert_gate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LONG = 600.0


async def close(scope: Scope) -> Report:
    """Shut down by cancelling."""
    return await scope.aclose(cleanup=0.2)


async def drain(scope: Scope) -> Report:
    """Shut down by waiting first."""
    return await scope.drain(grace=0.5, cleanup=0.1)


def verdicts(gate: Gate) -> dict[str, str]:
    """Return the verdicts by kind."""
    return {row.kind: row.verdict for row in gate.rows}


# --- quiesce's own -------------------------------------------------------------------------------


async def test_the_close_of_a_scope_passes_the_gate() -> None:
    """What it cuts short is in its report."""
    gate = await assert_gate(Scope.open, close, seconds=LONG)
    assert verdicts(gate) == {
        "task": "reported",
        "stubborn task": "reported",
        "late start": "refused",
    }
    assert gate.ok


async def test_the_drain_of_a_scope_passes_the_gate() -> None:
    """What comes to an end by itself is waited for, and the rest is in the report."""
    gate = await assert_gate(Scope.open, drain, seconds=0.05)
    assert verdicts(gate) == {
        "task": "drained",
        "stubborn task": "reported",
        "late start": "drained",
    }


async def test_the_end_of_a_scopes_block_passes_the_gate() -> None:
    """`raise_if_lost` names it in an exception, which is as good as a report."""

    async def shutdown(scope: Scope) -> None:
        (await close(scope)).raise_if_lost()

    gate = await assert_gate(Scope.open, shutdown, seconds=LONG)
    told = {row.kind: row.told for row in gate.rows}
    assert told["stubborn task"] == "report: stuck"


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_scope_that_adopts_passes_the_gate_with_plain_tasks() -> None:
    """An app of plain tasks passes when a scope that adopts is open around it."""

    class App:
        scope: Scope

    async def start() -> App:
        app = App()
        app.scope = await Scope.open("app", adopt=True)
        return app

    def plain(app: App, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        app.scope.spawn(begin, work)

    async def begin(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tasks.append(asyncio.create_task(work()))

    tasks: list[asyncio.Task[None]] = []
    kinds = ("task", "stubborn task")
    gate = await assert_gate(
        start, lambda app: close(app.scope), kinds=kinds, by=plain, seconds=LONG
    )
    assert verdicts(gate) == {"task": "reported", "stubborn task": "reported"}


# --- shutdowns that are decoration ---------------------------------------------------------------


class Server:
    """An app with a set of tasks, as many are written."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def start_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start work, and keep a reference."""
        task = asyncio.create_task(work())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


async def serve() -> Server:
    """Start the app."""
    return Server()


async def cancel_all(server: Server) -> None:
    """Shut down as a first version does."""
    for task in list(server.tasks):
        task.cancel()


async def cancel_and_gather(server: Server) -> None:
    """Shut down as a second version does."""
    tasks = list(server.tasks)
    await cancel_all(server)
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather(server: Server) -> None:
    """Wait for everything, for ever."""
    while server.tasks:
        await asyncio.gather(*server.tasks, return_exceptions=True)


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize(
    ("shutdown", "expected"),
    [
        (
            cancel_all,
            {
                "task": "survived silently",  # it has not even been told yet
                "stubborn task": "survived silently",
                "late start": "survived silently",
            },
        ),
        (
            cancel_and_gather,
            {
                "task": "lost silently",
                "stubborn task": "hung",
                "late start": "survived silently",
            },
        ),
    ],
)
async def test_a_naive_shutdown_fails_the_gate(
    shutdown: Callable[[Server], Coroutine[Any, Any, None]], expected: dict[str, str]
) -> None:
    """The error carries the table, with what each planted thing came to."""
    with pytest.raises(GateFailed) as caught:
        await assert_gate(serve, shutdown, by=Server.start_task, seconds=LONG, within=0.2)
    assert verdicts(caught.value.gate) == expected
    assert "FAILED, work was lost or left running without a report" in str(caught.value)
    assert "SURVIVED SILENTLY" in str(caught.value)


@pytest.mark.backends("asyncio", "uvloop")
async def test_losing_work_and_saying_nothing_fails_the_gate() -> None:
    """A task that was cancelled and awaited is gone, and so is its work."""
    with pytest.raises(GateFailed, match="LOST SILENTLY"):
        await assert_gate(
            serve, cancel_and_gather, kinds=["task"], by=Server.start_task, seconds=LONG
        )


@pytest.mark.backends("asyncio", "uvloop")
async def test_waiting_for_everything_drains_what_ends() -> None:
    """A shutdown that gathers in a loop has also what starts late."""
    gate = await assert_gate(
        serve, gather, kinds=["task", "late start"], by=Server.start_task, seconds=0.01
    )
    assert verdicts(gate) == {"task": "drained", "late start": "drained"}


@pytest.mark.backends("trio")
async def test_a_cancelled_nursery_loses_its_tasks_silently() -> None:
    """A nursery ends nothing but what it has told to end, and tells nobody."""

    class App:
        def __init__(self, group: anyio.abc.TaskGroup) -> None:
            self.group = group

    async def start() -> App:
        group = await anyio.create_task_group().__aenter__()
        return App(group)

    async def shutdown(app: App) -> None:
        app.group.cancel_scope.cancel()
        await app.group.__aexit__(None, None, None)

    by = lambda app, work: app.group.start_soon(work)  # noqa: E731 - as one would write it
    with pytest.raises(GateFailed) as caught:
        await assert_gate(start, shutdown, by=by, within=0.1)
    assert verdicts(caught.value.gate) == {
        "task": "lost silently",
        "stubborn task": "hung",
        "late start": "lost silently",
    }


# --- who has told --------------------------------------------------------------------------------


async def anything(_: object) -> None:
    """Shut nothing down."""


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_shutdown_that_raises_the_cancellation_of_a_task_is_judged() -> None:
    """To cancel tasks and await them raises what the first of them ended with."""

    async def cancel_and_wait(server: Server) -> None:
        for task in list(server.tasks):
            task.cancel()
            await task

    with pytest.raises(GateFailed, match=r"raised CancelledError\(\), which does not") as caught:
        await assert_gate(serve, cancel_and_wait, kinds=["task"], by=Server.start_task)
    assert verdicts(caught.value.gate) == {"task": "lost silently"}


@pytest.mark.backends("asyncio", "uvloop")
async def test_naming_it_in_what_is_returned_is_a_report() -> None:
    """A list of the tasks that were cut short names them."""

    async def shutdown(server: Server) -> list[asyncio.Task[None]]:
        tasks = list(server.tasks)
        await cancel_and_gather(server)
        return tasks

    gate = await assert_gate(serve, shutdown, kinds=["task"], by=Server.start_task, seconds=LONG)
    assert gate.rows == (GateRow("task", "reported", "returned: list"),)


@pytest.mark.backends("asyncio", "uvloop")
async def test_naming_it_in_an_exception_is_a_report() -> None:
    """It may also be raised, in a group or as a cause."""

    async def shutdown(server: Server) -> None:
        errors = [RuntimeError(f"{task!r} still runs") for task in server.tasks]
        raise ExceptionGroup("at shutdown", errors)

    gate = await assert_gate(serve, shutdown, kinds=["task"], by=Server.start_task, seconds=LONG)
    assert gate.rows == (GateRow("task", "reported", "raised: ExceptionGroup"),)


@pytest.mark.backends("asyncio", "uvloop")
@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
async def test_naming_it_in_a_warning_is_a_report(level: int) -> None:
    """A log record that names it tells whoever reads the log."""

    async def shutdown(server: Server) -> None:
        logging.getLogger("server").log(level, "still there: %r", server.tasks)

    gate = await assert_gate(serve, shutdown, kinds=["task"], by=Server.start_task, seconds=LONG)
    name = logging.getLevelName(level)
    assert gate.rows == (GateRow("task", "reported", f"logged: {name} server"),)


@pytest.mark.backends("asyncio", "uvloop")
async def test_naming_it_in_a_debug_record_is_no_report() -> None:
    """What is logged for developers alone tells nobody."""

    async def shutdown(server: Server) -> None:
        logging.getLogger("server").info("still there: %r", server.tasks)

    with pytest.raises(GateFailed):
        await assert_gate(serve, shutdown, kinds=["task"], by=Server.start_task, seconds=LONG)


@pytest.mark.backends("asyncio", "uvloop")
async def test_an_exception_that_does_not_name_it_is_no_report_but_is_shown() -> None:
    """The table says what was raised."""

    async def shutdown(_: Server) -> None:
        message = "something went wrong"
        raise OSError(message)

    with pytest.raises(GateFailed, match=r"something went wrong.*does not name it"):
        await assert_gate(serve, shutdown, kinds=["task"], by=Server.start_task, seconds=LONG)


# --- arguments, and the system under test --------------------------------------------------------


async def test_each_kind_gets_a_system_of_its_own_and_one_task() -> None:
    """Start and shutdown are called once for each kind, both in the same task."""
    started: list[object] = []
    stopped: list[object] = []

    async def start() -> Scope:
        scope = await Scope.open("app")
        started.append((scope, anyio.get_current_task().id))
        return scope

    async def shutdown(scope: Scope) -> Report:
        stopped.append((scope, anyio.get_current_task().id))
        return await scope.aclose(cleanup=0.05)

    await assert_gate(start, shutdown, kinds=["task", "stubborn task"])
    assert started == stopped
    assert len(set(started)) == 2


@pytest.mark.backends("trio")
async def test_a_gate_at_which_nothing_can_be_planted_is_not_green() -> None:
    """Nothing proven is an error, not a pass; the system is shut down all the same."""
    stopped: list[object] = []

    async def shutdown(server: Server) -> None:
        stopped.append(server)

    with pytest.raises(UsageError, match="pass by=, a function"):
        await assert_gate(serve, shutdown)
    assert len(stopped) == 1


async def test_no_kinds_at_all_are_refused() -> None:
    """An empty list would be green."""
    with pytest.raises(ArgumentError, match="kinds is empty"):
        await assert_gate(serve, anything, kinds=[])


async def test_unknown_kinds_are_refused() -> None:
    """A kind that does not exist is an error, and the message lists those that do."""
    with pytest.raises(ArgumentError, match="stubborn task"):
        await assert_gate(serve, anything, kinds=["tree"])


async def test_what_start_raises_is_raised_as_it_is() -> None:
    """There is no group around it."""

    async def start() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await assert_gate(start, anything)


@pytest.mark.backends("asyncio", "trio")
async def test_a_shutdown_that_hangs_is_cancelled_when_it_does_not_end_without_the_plant() -> None:
    """A gate does not wait for ever."""
    cancelled: list[bool] = []

    async def shutdown(scope: Scope) -> None:
        try:
            await anyio.Event().wait()
        finally:
            cancelled.append(True)
            with anyio.CancelScope(shield=True):
                await scope.aclose()

    with pytest.raises(GateFailed, match=r"HUNG +did not return within 3 s"):
        await assert_gate(Scope.open, shutdown, kinds=["task"], within=3)
    assert cancelled == [True]


async def test_a_cancelled_gate_takes_everything_out() -> None:
    """Whoever cancels the gate gets the cancellation, and nothing stays."""
    with anyio.CancelScope() as cancelling:

        async def shutdown(scope: Scope) -> None:
            cancelling.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            finally:
                with anyio.CancelScope(shield=True):
                    await scope.aclose(cleanup=0.05)

        await assert_gate(Scope.open, shutdown, kinds=["stubborn task"])
    assert cancelling.cancelled_caught


def test_the_table_is_made_for_human_eyes() -> None:
    """A line for each thing, and the failures cry."""
    gate = Gate(
        (
            GateRow("task", "drained"),
            GateRow("stubborn task", "reported", "report: stuck"),
            GateRow("late start", "survived silently"),
        )
    )
    assert str(gate).splitlines() == [
        "FAILED, work was lost or left running without a report: 1 drained, 1 reported, 1 survived silently",
        "  planted                                  outcome",
        "  a task in the middle of an await         drained",
        "  a task that swallows cancellation        reported           report: stuck",
        "  a task that is started during the close  SURVIVED SILENTLY",
    ]
    assert str(Gate(gate.rows[:2])).startswith("the gate holds: 1 drained, 1 reported")


async def test_a_gate_that_fails_does_not_show_library_code() -> None:
    """The frames of the library say that pytest is to leave them out."""
    assert "__tracebackhide__" in assert_gate.__code__.co_varnames
