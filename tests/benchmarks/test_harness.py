"""The benchmarks' own machinery: directions, ratios, the command line; and that each piece runs.

No figure is judged here: sizes are tiny, and the machine that tests is not the one that measures.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest

from benchmarks import _channels, _queues, _streams, resources
from benchmarks.__main__ import SUITES
from benchmarks._command import Suite, run
from benchmarks._harness import Result, Samples, compare, interleave, run_fresh
from benchmarks._sizes import ResourceSizes
from benchmarks._subjects import Memory

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = ResourceSizes(
    rounds=2, rounds_peers=1, items=250, items_streamed=250, items_peers=250, queued=250
)
PEERS = [
    pytest.param(
        peer,
        marks=pytest.mark.skipif(not peer.found, reason=f"{peer.name} is not here"),
        id=peer.name,
    )
    for peer in (_queues.QUEUE, *_queues.QUEUE_PEERS)
]


def result(value: float, limit: float | None, *, at_least: bool, name: str = "figure") -> Result:
    """Make a figure without rows."""
    return Result(name, "about", (), value=value, limit=limit, at_least=at_least)


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (result(1.0, 1.0, at_least=False), "pass"),
        (result(1.1, 1.0, at_least=False), "over"),
        (result(1.0, 1.0, at_least=True), "pass"),
        (result(0.9, 1.0, at_least=True), "under"),
        (result(0.9, None, at_least=True), ""),
    ],
)
def test_a_limit_has_a_direction(figure: Result, verdict: str) -> None:
    """A limit is the most a cost may be, or the least a speed may be; equal passes."""
    assert figure.verdict == verdict
    assert figure.missed == (verdict in {"over", "under"})


def test_costs_are_compared() -> None:
    """A figure of costs is ours divided by the base, from the best turns, with the spread."""
    found = {"bare": Samples((2.0, 4.0)), "quiesce": Samples((3.0, 5.0))}
    figure = compare("f", "about", found, unit="us", limit=1.5)
    assert (figure.value, figure.low, figure.high) == (1.5, 1.25, 1.5)
    assert [row.ratio for row in figure.rows] == [1.0, 1.5]
    assert figure.verdict == "pass"


def test_speeds_are_compared() -> None:
    """A figure of speeds is the other way round, and names its base and the other bases."""
    found = {"slow": Samples((4.0, 6.0)), "fast": Samples((1.0, 1.0)), "ours": Samples((2.0, 2.0))}
    figure = compare(
        "f",
        "about",
        found,
        unit="us",
        limit=2.5,
        ours="ours",
        base="slow",
        against=("fast",),
        at_least=True,
    )
    assert (figure.value, figure.low, figure.high) == (2.0, 2.0, 3.0)
    assert [row.ratio for row in figure.rows] == [1.0, 4.0, 2.0]
    assert figure.base == "slow"
    assert figure.against == {"fast": 0.5}
    assert figure.verdict == "under"


def test_pieces_take_turns() -> None:
    """Every other round runs backwards, and seldom pieces take part in the first rounds only."""
    seen: list[str] = []

    def piece(name: str) -> float:
        seen.append(name)
        return float(len(seen))

    pieces = {name: partial(piece, name) for name in "abc"}
    found = interleave("test", pieces, 3, seldom={"b"}, rounds_seldom=1)
    assert "".join(seen) == "abc" + "ca" + "ac"
    assert found["b"].values == (2.0,)


# --- the command line ---------------------------------------------------------------------------


def suite(name: str, *figures: Result) -> Suite[ResourceSizes]:
    """Make a suite with one measure a figure, which has the figure's name."""

    def measure(figure: Result) -> Callable[[str, ResourceSizes], list[Result]]:
        return lambda backend, sizes: [figure]

    return Suite(
        name=name,
        description="A test.",
        rounds_note="",
        warm_up=lambda backend: None,
        measures={figure.name: measure(figure) for figure in figures},
        peers=(_queues.QUEUE,),
        full=TINY,
        quick=TINY,
    )


GOOD = result(1.2, 1.0, at_least=True, name="speed")
SLOW = result(0.8, 1.0, at_least=True, name="slow")
DEAR = result(1.2, 1.0, at_least=False, name="cost")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--strict"], 1),
        (["--strict", "--only", "speed"], 0),
        (["--strict", "--only", "slow"], 1),
        (["--strict", "--only", "cost"], 1),
    ],
)
def test_strict_fails_for_a_missed_limit(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --strict the exit code tells of a limit that is missed, in either direction."""
    assert run([suite("s", GOOD, SLOW, DEAR)], [*arguments, "--backend", "asyncio"]) == code
    assert "quiesce s on CPython" in capsys.readouterr().out


def test_the_table_shows_the_direction(capsys: pytest.CaptureFixture[str]) -> None:
    """A limit that is a least is marked, one that is a most is a plain number."""
    run([suite("s", GOOD, DEAR)], ["--backend", "asyncio"])
    lines = capsys.readouterr().out.splitlines()
    assert next(line.split() for line in lines if line.startswith("speed")) == [
        "speed",
        ">=1.00",
        "1.20",
        "pass",
    ]
    assert next(line.split() for line in lines if line.startswith("cost")) == [
        "cost",
        "1.00",
        "1.20",
        "over",
    ]


def test_one_suite_prints_its_data_bare(capsys: pytest.CaptureFixture[str]) -> None:
    """The data of one suite is one document, with the verdict of each figure."""
    run([suite("s", GOOD)], ["--json", "--repeat", "5", "--backend", "asyncio"])
    data = json.loads(capsys.readouterr().out)
    assert data["rounds"] == 5
    assert data["backends"]["asyncio"]["speed"]["verdict"] == "pass"
    assert data["backends"]["asyncio"]["speed"]["at_least"] is True


def test_several_suites_print_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """The data of several suites is one document too, by suite; one that is not asked for is left out."""
    suites = [suite("a", GOOD), suite("b", SLOW), suite("c", DEAR)]
    run(suites, ["--json", "--only", "slow", "--only", "cost", "--backend", "asyncio"])
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["b", "c"]
    assert list(data["c"]["backends"]["asyncio"]) == ["cost"]


def test_measures_have_their_own_names() -> None:
    """No two suites have a measure of the same name, so that --only is clear."""
    assert {suite.name for suite in SUITES} == {
        "core",
        "resources",
        "process",
        "testing",
        "adapters",
        "a2a",
        "asgi",
        "imports",
        "mesh",
    }
    names = [name for suite in SUITES for name in suite.measures]
    assert len(names) == len(set(names))


# --- each piece runs ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", [pytest.param(w, id=n) for n, w in _channels.WAYS.items()])
def test_items_go_through(way: _channels.Way) -> None:
    """Each way through a channel or a queue delivers everything, and takes some time."""
    assert run_fresh("asyncio", partial(way, 100, 250)) > 0


@pytest.mark.parametrize("way", [pytest.param(w, id=n) for n, w in _streams.WAYS.items()])
def test_a_generator_is_read(way: _streams.Way) -> None:
    """Each way to read a generator delivers everything, and takes some time."""
    assert run_fresh("asyncio", partial(way, 250)) > 0


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_takes_part(peer: _queues.QueuePeer) -> None:
    """The queue of each peer that is installed can be filled, gone through, and fed by a generator."""
    marks = Memory()
    run_fresh("asyncio", partial(_channels.fill_peer, peer, 250, marks))
    assert marks.bytes_live > 0
    assert run_fresh("asyncio", partial(_queues.queue_peer, peer, 100, 250)) > 0
    assert run_fresh("asyncio", partial(_queues.generator_peer, peer, 1, 250)) > 0


@pytest.mark.parametrize("name", resources.SUITE.measures)
def test_a_measure_gives_its_figures(name: str) -> None:
    """Every measure of the resources gives figures with a limit, and rows for those compared."""
    for figure in resources.SUITE.measures[name]("asyncio", TINY):
        assert figure.limit is not None
        assert figure.value is not None
        assert figure.base in {row.label for row in figure.rows}
