"""`make demo`: five agents, and verdicts that agree with what they have written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import subjects

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.mesh", "--once"]
# A shell's background job ignores SIGINT, and so does what it starts: CI may be one.
_HEED = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["demo", "--once"]
runpy.run_module("examples.mesh", run_name="__main__")
"""
HEEDING = [sys.executable, "-c", _HEED]
ENVIRONMENT = {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def environment() -> dict[str, str]:
    """Give the demo what `make demo` installs for it."""
    return subjects.environment("a2a-sdk-1.3.0", **ENVIRONMENT)


@pytest.mark.timeout(300)
def test_every_verdict_agrees_with_the_truth() -> None:
    """Also after a kill, a shutdown and a cancellation; the exit code says so."""
    done = subprocess.run(
        [*COMMAND, "--json"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    verdicts = {act["act"]: act["verdict"] for act in told["acts"]}
    assert verdicts == {
        "trip": "settled",
        "stranger": "unknown",
        "kill": "settled with losses",
        "shutdown": "settled",
        "cancel": "settled",
    }


@pytest.mark.timeout(300)
def test_it_is_interrupted_and_leaves_nothing_behind() -> None:
    """Ctrl-C ends the agents, too."""
    with subprocess.Popen(
        HEEDING, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, encoding="utf-8"
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "planner  waits" in line:
                break
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text(encoding="utf-8")
        agents = [int(pid) for pid in children.split()]
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait(60) == 130
    assert len(agents) == 5
    assert [pid for pid in agents if is_there(pid)] == []


def is_there(pid: int) -> bool:
    """Tell whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
