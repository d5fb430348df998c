"""`make demo`: five agents, and verdicts that agree with what they have written down."""

from __future__ import annotations

import json
import os
import re
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
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.argv = ["demo", "--once"]
runpy.run_module("examples.mesh", run_name="__main__")
"""
HEEDING = [sys.executable, "-c", _HEED]
ENVIRONMENT = {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def environment() -> dict[str, str]:
    """Return the demo what `make demo` installs for it."""
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


def test_the_changes_and_the_facts_have_one_clock() -> None:
    """What is told after the stream has closed is not earlier than that, and each change is one line."""
    done = subprocess.run(
        [*COMMAND, "--act", "a_trip"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    drawn = re.search(r"^ +([\d.]+) s  at work: ", done.stdout, re.MULTILINE)
    closed = re.search(r"the stream closed after ([\d.]+) s", done.stdout)
    assert drawn is not None, done.stdout
    assert closed is not None, done.stdout
    assert float(drawn[1]) >= float(closed[1]) > 0
    changes = re.findall(r"^ +[\d.]+ s  (.*)", done.stdout, re.MULTILINE)
    assert all(line.startswith(("at work: ", "not reached: ")) for line in changes)
    assert len(done.stdout.splitlines()) < 30  # a line a change: the verdict is found at a glance


@pytest.mark.timeout(300)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_is_interrupted_and_leaves_nothing_behind(end: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C ends the agents, too, and so does whatever else ends the demo; nobody waits for it."""
    with subprocess.Popen(
        HEEDING,
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "at work" in line:
                break
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text(encoding="utf-8")
        agents = [int(pid) for pid in children.split()]
        demo.send_signal(end)
        left = []
        try:
            assert demo.wait(60) == 130
        finally:
            for pid in filter(is_there, agents):
                os.kill(pid, signal.SIGKILL)
                left.append(pid)
    assert len(agents) == 5
    assert left == []
    assert list(tmp_path.iterdir()) == []


def is_there(pid: int) -> bool:
    """Return whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
