"""Cancelling a cascade while an agent in its middle is dead, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import subjects

_ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 200.0  # a guard against hangs


def run(folder: Path, known: str) -> dict[str, Any]:
    """Run the program, and give what it was told."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.cancelling", "root", str(folder), known],
        cwd=_ROOT,
        env=subjects.environment("a2a-sdk-1.3.0"),  # which has uvicorn and httpx
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.timeout(_SECONDS_MAX + 30.0)
def test_a_cancel_passes_an_agent_that_was_killed(tmp_path: Path) -> None:
    """The last agent ends while the one between is dead; when that is back, all is known."""
    told = run(tmp_path, "all")
    assert told["before"] == ["working", "told to end"]
    assert f"what {told['middle']} does: it was not reached" in told["early"]
    assert f"; told to end below it: {told['last']}" in told["early"]
    assert (told["verdict"], told["cancelled"]) == ("Settled", 1)


@pytest.mark.timeout(_SECONDS_MAX + 30.0)
def test_an_agent_that_is_back_passes_the_cancel_on(tmp_path: Path) -> None:
    """The last agent is no peer of the first, so it works on until the one between is back; the verdict says so."""
    told = run(tmp_path, "direct")
    assert told["before"] == ["working"]
    assert "and was not told to end" in told["early"]
    assert f"not told to end below it: {told['last']}" in told["early"]
    assert told["after"] == ["working", "told to end"]
    assert (told["verdict"], told["cancelled"]) == ("Settled", 1)
