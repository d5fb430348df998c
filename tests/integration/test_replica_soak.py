"""Replicas in real processes: a small soak, and that it finds a library that is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_SECONDS_MAX = (
    400.0  # a guard against hangs: it takes 20 s on a machine that has nothing else to do
)
_SMALL = "--agents 2 --replicas 2 --seed 7"


def soak(arguments: str) -> dict[str, Any]:
    """Run a soak in a process of its own, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.replicas.soak", "--json", *arguments.split()],
        cwd=_ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert done.returncode in {0, 1}, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert bool(told["findings"]) == done.returncode
    return told


@pytest.mark.usual
@pytest.mark.timeout(_SECONDS_MAX + 60.0)  # of its own: it is a run of many processes
def test_no_verdict_is_wrong_whatever_is_done_to_replicas() -> None:
    """Replicas are killed, stopped and ended, and messages come again to others: each runs once, and no verdict is wrong."""
    told = soak(
        f"{_SMALL} --cascades 60 --width 10 --faults kill,term,stop,copy,repeat,lose --fault-share 1"
    )
    assert told["findings"] == []
    assert told["false_greens"] == told["run_twice"] == told["needless_unknowns"] == 0
    assert told["no_verdict"] == told["left"] == 0
    assert {"kill", "stop"} <= set(told["faults"])


@pytest.mark.usual
@pytest.mark.timeout(_SECONDS_MAX + 60.0)
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("claims --faults copy,repeat", "run_twice"),
        ("proofs --faults stop --long-share 1", "false_greens"),
        ("heirs --faults kill --long-share 1", "no_verdict"),
    ],
)
def test_the_soak_sees_a_library_that_is_broken(broken: str, found: str) -> None:
    """Claims that all win, deaths without a proof, and work that nobody inherits."""
    told = soak(f"{_SMALL} --cascades 20 --verdict-seconds 20 --fault-share 1 --mutant {broken}")
    assert told[found] > 0
