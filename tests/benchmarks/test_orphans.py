"""The comparison of ways to run child processes: it sees what is left, and quiesce leaves nothing."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from benchmarks import _orphan_census as census
from benchmarks import orphans
from benchmarks._orphan_steps import Cell, Seen
from benchmarks._orphan_ways import WAYS

CELL = Cell("quiesce", "asyncio", "native", "polite")
NAIVE = Cell("naive", "asyncio", "native", "polite")
CLEAN = Seen("turns", [1], delivered=1)
BAD = Seen("turns", [1, 2], delivered=2, faults=["leaked", "alive"])

pytestmark = pytest.mark.skipif(not census.available(), reason="it needs /proc")


def run(
    capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the program, and give its data, and what it says of the ways."""
    assert orphans.main(["--json", "--quick", *argv]) == code
    data = json.loads(capsys.readouterr().out)
    return data, data["ways"]


def test_a_slice_of_it_tells_the_ways_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Cancelled at each step, the naive way leaves children behind and quiesce leaves none."""
    chosen = ["--way", "naive", "--way", "quiesce", "--child", "polite", "--backend", "asyncio"]
    data, ways = run(capsys, *chosen)
    ours, naive = ways["quiesce"]["total"], ways["naive"]["total"]
    assert [ours[name] for name in ("faulty", *orphans.COLUMNS)] == [0] * 8
    assert data["faulty"] == []
    assert ours["cancelled"] > ours["twice"] > 0
    assert naive["alive"] >= naive["leaked"] > 0


@pytest.mark.parametrize(
    ("found", "code"), [((CELL, CLEAN), 0), ((CELL, BAD), 1), ((NAIVE, BAD), 0)]
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_exit_code_tells_of_a_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: tuple[Cell, Seen],
    code: int,
    options: list[str],
) -> None:
    """It is 1 if a run of quiesce went wrong, which is described, and 0 whatever the others do."""
    monkeypatch.setattr(orphans, "run_all", lambda *_: [found])
    assert orphans.main(options) == code
    shown = capsys.readouterr()
    assert ("quiesce is at fault" in shown.err) == bool(code)
    assert (found[0].way if options else WAYS[found[0].way].about) in shown.out


def test_runs_are_added_up_by_what_they_have_in_common() -> None:
    """A fault counts once a run, and under each heading."""
    twice = Seen("turns", [1, 2], delivered=2, phase="using", faults=["hung", "hung"])
    ways = orphans.gather([(CELL, CLEAN), (CELL, twice), (NAIVE, BAD)])
    assert (
        ways["quiesce"]["total"] | {"runs": 2, "cancelled": 2, "twice": 1, "hung": 1}
        == (ways["quiesce"]["total"])
    )
    assert ways["quiesce"]["phases"]["using"]["hung"] == 1
    assert ways["quiesce"]["times"]["once"]["hung"] == 0
    assert ways["naive"]["children"]["polite"]["leaked"] == 1


@pytest.mark.parametrize(
    ("program", "faults"),
    [("exit 3", ["hung", "wedged"]), ('read line; echo \'{"by": "turns", "at": []}\'', [])],
)
def test_a_worker_that_ends_without_an_answer_is_counted_as_hung(
    monkeypatch: pytest.MonkeyPatch, program: str, faults: list[str]
) -> None:
    """The run that ended it is at fault, and another worker goes on with the next."""
    starts = []

    def start(worker: orphans.Worker) -> subprocess.Popen[str]:
        starts.append(worker)
        return subprocess.Popen(
            ["/bin/sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    monkeypatch.setattr(orphans.Worker, "_start", start)
    worker = orphans.Worker(CELL, "never.")
    assert worker.run("turns", []).faults == faults
    assert (worker._program is None) == bool(faults)
    worker.end()
