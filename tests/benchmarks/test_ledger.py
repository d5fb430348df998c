"""The benchmarks of shared stores run, with tiny sizes; no figure is judged here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks import _ledger_places, _ledger_rows, ledger
from benchmarks._ledger_sizes import STORES, LedgerSizes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real_time

TINY = LedgerSizes(
    rounds=1, rounds_large=1, batch_rows=(2,), batches=3, messages=4, at_once=(4,), writers=2, commits=2, verdicts=2,
    filled=(2, 4), cascades=2,
)  # fmt: skip
FIGURES: dict[str, dict[str, float | None]] = {
    "ratio": {"ratio_to_engine_2": 0.6},
    "edges": {"edges_4": None},
    "commits": {"commit_latency": None},
    "verdicts": {"verdict_round_trips": 3.0, "read_round_trips": 3.0},
    "flatness": {"row_flatness": 1.3},
    "memory": {"entries_left": None},
}


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Start the servers, and keep them until the last test."""
    with _ledger_places.running():
        for store in STORES:
            _ledger_places.places().address(store)
        yield


@pytest.mark.parametrize("name", ledger.SUITE.measures)
def test_a_measure_gives_its_figures(name: str) -> None:
    """Each store has each figure, with the limit that it has to have, and rows."""
    results = ledger.SUITE.measures[name]("asyncio", TINY)
    wanted = {
        f"{store}_{figure}": limit for store in STORES for figure, limit in FIGURES[name].items()
    }
    assert {result.name: result.limit for result in results} == wanted
    assert all(result.rows and result.value is not None for result in results)


def test_a_batch_ends_the_rows_of_the_one_before() -> None:
    """The batches are those of a node: claims of new rows, and puts of rows that are over."""
    first, second = _ledger_rows.batches(2, 3)
    assert (len(first.claims), len(first.puts)) == (3, 0)
    assert {row.key for row in second.puts} == {row.key for row in first.claims}
    assert {row.state for row in second.puts} == {"over"}


def test_one_store_alone_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options name the store, and more rows for it to have."""
    monkeypatch.setattr(ledger, "QUICK", TINY)
    given = ["--json", "--quick", "--backend", "asyncio", "--store", "sqlite", "--rows", "6"]
    assert ledger.main([*given, "--only", "flatness"]) == 0
    figures = json.loads(capsys.readouterr().out)["backends"]["asyncio"]
    assert list(figures) == ["sqlite_row_flatness"]
    assert [row["label"] for row in figures["sqlite_row_flatness"]["rows"]][2] == "6 rows"


def test_what_is_missing_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its driver or server a store is left out, with the packages that it needs."""
    monkeypatch.setitem(_ledger_places.NEEDS, "nats", ("nats-py", "no-such-package"))
    assert ledger.main(["--store", "nats"]) == 1
    assert capsys.readouterr().err == "nats is not measured: install no-such-package\n"
