"""`Report`: what became of everything that a scope owned."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce import DrainTimeout, Frontier, FrontierEntry, Report, ReportEntry, Scope, WorkLost
from quiesce.core.announce import write_stderr
from tests.loops import let_others_run

if TYPE_CHECKING:
    from collections.abc import Sequence


def report_of(**what: Any) -> Report:
    """Make a report, with nothing in it but what is given."""
    empty: dict[str, Any] = {"cancelled": (), "failed": (), "undelivered": (), "stuck": ()}
    return Report(**{"scope": "made", "completed": 0, "withdrawn": 0, **empty, **what})


def item(name: str = "x", **what: Any) -> ReportEntry:
    """Make something that ended."""
    return ReportEntry(**{"kind": "job", "scope": "made", "where": "app.py:1", "age": 1.0, "details": {},
                    "name": name, **what})  # fmt: skip


async def fail(message: str) -> None:
    """End badly."""
    raise LookupError(message)


async def everything() -> Report:
    """Make a real report that has some of everything but stuck."""
    scope = await Scope.open("all")
    child = scope.child("child")
    for where in (scope, child):
        where.spawn(anyio.lowlevel.checkpoint)
        where.spawn(fail, f"in {where.name}", name=f"failed in {where.name}")
        where.spawn(anyio.sleep_forever, name=f"cut in {where.name}")
        where.spawn(anyio.sleep_forever, name="withdrawn").cancel()
        where.spawn(anyio.sleep_forever, service=True)
    holds = [where.hold("request", f"lost in {where.name}", size=1) for where in (scope, child)]
    await let_others_run()
    report = await scope.aclose(cleanup=0.01)
    for hold in holds:
        hold.release()
    return report


async def test_the_numbers_add_up() -> None:
    """Each thing that was started is in the report once, those of child scopes too."""
    report = await everything()
    assert (report.completed, report.withdrawn, report.services) == (2, 2, 2)
    assert [one.name for one in report.failed] == ["failed in all", "failed in child"]
    assert [one.name for one in report.cancelled] == ["cut in all", "cut in child"]
    assert [one.name for one in report.undelivered] == ["lost in all", "lost in child"]
    assert [one.scope for one in report.undelivered] == ["all", "child"]
    assert len(report.stuck) == 0
    assert not report.ok


async def test_a_failure_is_reported_with_its_job() -> None:
    """The report has the exception itself, and who raised it, started where."""
    report = await everything()
    first = report.failed[0]
    assert isinstance(first.error, LookupError)
    assert str(first.error) == "in all"
    assert (first.kind, first.name, first.scope) == ("job", "failed in all", "all")
    assert first.where is not None
    assert first.where.startswith(__file__)


async def test_the_text_names_every_loss() -> None:
    """A head with the verdict and the counts, then a line for each loss."""
    report = await everything()
    head, *lines = str(report).splitlines()
    assert head.startswith("scope 'all' closed in ")
    assert head.endswith(
        "WORK LOST: 2 jobs completed, 2 withdrawn, 2 services stopped, 2 failed, 2 cancelled, "
        "2 undelivered"
    )
    assert len(lines) == 6
    assert lines[0].startswith("  failed: job failed in all · ")
    assert lines[0].endswith(" · LookupError: in all")
    assert lines[2].startswith("  cancelled: job cut in all · ")
    assert lines[4].startswith("  undelivered: request lost in all · ")
    assert all(f"started {__file__}:" in line for line in lines)


async def test_the_json_has_everything() -> None:
    """The JSON has every number, and every field of every loss."""
    report = await everything()
    data = json.loads(report.to_json())
    assert json.loads(report.to_json(indent=2)) == data
    assert data["ok"] is False
    assert (data["completed"], data["withdrawn"], data["services"]) == (2, 2, 2)
    assert [one["error"] for one in data["failed"]] == [
        "LookupError('in all')",
        "LookupError('in child')",
    ]
    assert [one["name"] for one in data["cancelled"]] == ["cut in all", "cut in child"]
    assert data["undelivered"][0]["details"] == {"size": 1}
    assert set(data) == {field.name for field in dataclasses.fields(report)} | {"ok"}


async def test_a_good_report() -> None:
    """Completed and withdrawn work, and stopped services, are no loss."""
    async with Scope("good") as scope:
        scope.spawn(anyio.lowlevel.checkpoint)
        scope.spawn(anyio.sleep_forever).cancel()
        scope.spawn(anyio.sleep_forever, service=True)
    report = scope.report
    assert report is not None
    assert report.ok
    report.raise_if_lost()
    assert str(report).endswith(
        "nothing it owned was lost: 1 job completed, 1 withdrawn, 1 service stopped"
    )
    assert json.loads(report.to_json())["ok"] is True


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ({"failed": (item(error=LookupError("lost")),)}, WorkLost),
        ({"cancelled": (item(),)}, DrainTimeout),
        ({"undelivered": (item(),)}, DrainTimeout),
        ({"stuck": (item(),)}, DrainTimeout),
    ],
    ids=["failed", "cancelled", "undelivered", "stuck"],
)
def test_each_loss_is_raised(what: dict[str, Any], error: type[WorkLost]) -> None:
    """Any one loss makes a report not ok, and `raise_if_lost` raises, with the report."""
    report = report_of(**what)
    assert not report.ok
    with pytest.raises(error) as caught:
        report.raise_if_lost()
    assert type(caught.value) is error
    assert caught.value.report is report
    assert str(caught.value) == str(report)


@pytest.mark.parametrize("what", [{}, {"completed": 3}, {"withdrawn": 1, "handed_over": 2}])
def test_nothing_else_is_a_loss(what: dict[str, Any]) -> None:
    """Without a loss nothing is raised."""
    report = report_of(**what)
    assert report.ok
    report.raise_if_lost()


def test_the_failures_are_the_cause() -> None:
    """The error of `raise_if_lost` comes from a group of all the jobs' errors."""
    errors = [LookupError("one"), LookupError("two")]
    report = report_of(failed=tuple(item(error=error) for error in errors), cancelled=(item(),))
    with pytest.raises(DrainTimeout) as caught:
        report.raise_if_lost()
    cause = caught.value.__cause__
    assert isinstance(cause, ExceptionGroup)
    assert list(cause.exceptions) == errors


def test_a_report_is_frozen() -> None:
    """Nobody can change what it says."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        report_of().completed = 5  # type: ignore[misc]  # the mistake is the point


def test_a_long_text_is_cut_and_says_so() -> None:
    """Of a thousand losses the text has some and the number of the rest; the JSON has all."""
    report = report_of(stuck=tuple(item(str(number)) for number in range(1000)))
    lines = str(report).splitlines()
    assert len(lines) < 30
    assert lines[-1] == "  stuck: … and 980 more"
    assert len(json.loads(report.to_json())["stuck"]) == 1000


def test_a_stack_is_shown_below_its_line() -> None:
    """What is stuck is shown with its stack, a line a frame, indented."""
    report = report_of(stuck=(item("deaf", stack=("app.py:1 in a", "app.py:2 in b")),))
    assert str(report).splitlines()[1:] == [
        "  stuck: job deaf · 1.00 s · started app.py:1",
        "      app.py:1 in a",
        "      app.py:2 in b",
    ]


def test_details_of_any_sort_are_plain_in_json() -> None:
    """What JSON has no word for is written as its repr."""
    details = {"text": "a", "number": 1, "none": None, "peer": ("host", 80), "raw": b"x"}
    data = json.loads(report_of(undelivered=(item(details=details),)).to_json())
    assert data["undelivered"][0]["details"] == {
        "text": "a", "number": 1, "none": None, "peer": "('host', 80)", "raw": "b'x'",
    }  # fmt: skip


async def cut(*, below: int) -> Sequence[ReportEntry]:
    """Return the `cancelled` of a real report: 3 of the scope itself, the rest of child scopes."""
    scope = await Scope.open("cut")
    for number in range(3):
        scope.spawn(anyio.sleep_forever, name=str(number))
    for number in range(3, 3 + below):
        scope.child("below").spawn(anyio.sleep_forever, name=str(number))
    return (await scope.aclose()).cancelled


@pytest.mark.parametrize("below", [0, 3], ids=["own", "with children"])
async def test_cancelled_is_a_sequence_like_any_other(below: int) -> None:
    """It is described only when read, but length, index, slice, order and search are a tuple's."""
    items = await cut(below=below)
    plain = tuple(items)
    names = [one.name for one in plain]
    assert len(items) == len(plain) == 3 + below
    assert bool(items)
    assert sorted(names) == [str(number) for number in range(3 + below)]
    assert [one.name for one in reversed(items)] == names[::-1]
    assert (items[0].name, items[-1].name) == (names[0], names[-1])
    for piece in (slice(None), slice(1, 3), slice(-2, None), slice(None, None, -1), slice(9, 12)):
        assert items[piece] == plain[piece]
        assert isinstance(items[piece], tuple)
    for index in (3 + below, -4 - below):
        with pytest.raises(IndexError):
            items[index]
    assert plain[1] in items
    assert items.index(plain[1]) == 1
    assert items.count(plain[1]) == 1
    assert repr(items) == repr(plain)


@pytest.mark.parametrize("below", [0, 3], ids=["own", "with children"])
async def test_cancelled_equals_a_tuple_of_the_same(below: int) -> None:
    """It may be compared as `failed` and `stuck` may; a lazy answer is no other answer."""
    items = await cut(below=below)
    assert items == tuple(items)
    assert items != ()
    assert items[:1] != items


async def test_nothing_cancelled_is_an_empty_sequence() -> None:
    """Each kind of loss is empty, false, and equal to an empty tuple when there was none."""
    scope = await Scope.open("empty")
    report = await scope.aclose()
    for kind in (report.cancelled, report.failed, report.undelivered, report.stuck):
        assert len(kind) == 0
        assert not kind
        assert kind == ()


async def test_a_report_does_not_change_after_it_was_given() -> None:
    """Not even for a job that closed its own scope, has the report, and is cancelled later."""
    scope = await Scope.open("frozen")
    given: list[tuple[Report, str]] = []

    async def close_and_linger() -> None:
        report = await scope.aclose(cleanup=0.05)
        given.append((report, report.to_json()))
        await anyio.sleep_forever()

    scope.spawn(anyio.sleep_forever)
    job = scope.spawn(close_and_linger)
    await let_others_run()
    final = await scope.aclose()
    assert job.done()
    ((report, before),) = given
    assert report.to_json() == before
    assert len(report.cancelled) == 1
    assert len(final.cancelled) == 2


async def test_ages_are_those_of_the_close(backend: str) -> None:
    """A report that is read late gives the ages that things had when the scope was closed."""
    scope = await Scope.open("ages")
    scope.spawn(anyio.sleep_forever)
    report = await scope.aclose()
    before = report.cancelled[0].age
    with anyio.move_on_after(0.02 if backend == "uvloop" else 3600):
        await anyio.sleep_forever()
    assert report.cancelled[0].age == before


EVIL = "boom\n  cancelled: job forged\r\x1b[31m\u2028"


@pytest.mark.parametrize(
    "what",
    [{"error": ValueError(EVIL)}, {"name": EVIL}, {"details": {"key": EVIL}}, {"stack": (EVIL,)}],
)
def test_a_text_of_the_program_cannot_forge_a_line(what: dict[str, Any]) -> None:
    """It may quote what a client has sent: it stays on its line, and a terminal obeys nothing in it."""
    lines = str(report_of(failed=(item(**what),))).split("\n")
    assert len(lines) == 2 + ("stack" in what)
    assert all(line.isprintable() for line in lines)
    assert "boom\\n  cancelled: job forged\\r\\x1b[31m\\u2028" in lines[-1]


def test_a_frontier_has_one_line_for_each_entry() -> None:
    """As a report has."""
    entry = FrontierEntry("job", EVIL, 1.0, None, None, service=False, details={})
    lines = str(Frontier("made", "open", (entry,))).split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_what_is_written_to_standard_error_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback keeps its lines; a terminal obeys nothing in it."""
    write_stderr("Traceback:\n\tat x\nValueError: boom\r\x1b[31m\x85\n")
    assert capsys.readouterr().err == (
        "quiesce: Traceback:\nquiesce:         at x\nquiesce: ValueError: boom\\r\\x1b[31m\\x85\n"
    )
