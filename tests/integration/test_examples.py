"""The examples run, end by themselves, and print what their readers expect."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SECONDS_MAX = 60  # a guard against hangs

SESSIONS = """\
  files: open
  mail: open
  web: open
  files: closed
  web: closed
  mail: closed
  nothing lost: True
"""

# What each prints; the lines of the server come from several tasks, so it has a test of its own.
OUTPUTS = {
    "adopt_sdk.py": """\
in flight: request 1
in flight: request 2
service: sdk.sender
service: sdk.heartbeat
sent: answer to request 1
sent: answer to request 2
the SDK is quiet
tasks left over: 0
completed: 2, services stopped: 2
""",
    "contexts.py": f"asyncio:\n{SESSIONS}trio:\n{SESSIONS}",
    "event_queues.py": """\
refused: scope 'requests' is draining: nothing new may start in it
completed: 2
failed: ['hung up reader']
cancelled: ['endless producer', 'endless reader']
forwarded: ['short: event 0', 'hung up: event 0', 'short: event 1', 'hung up: event 1']
""",
    "leak_hunt.py": """\
Careless:
  guard: a task is left, listen, started at leak_hunt.py:41, gone moments later
  sweep: 2 runs, 2 failed
    asyncio:task:undisturbed: late:task:listen
    asyncio:task:native:1: leak:task:listen
  gate: task: survived silently
  gate: stubborn task: survived silently
  gate: late start: survived silently
Careful:
  guard: nothing is left
  sweep: 3 runs, 0 failed
  gate: task: reported
  gate: stubborn task: reported
  gate: late start: refused
""",
    "streams.py": """\
echo 0
echo 1
left; in flight: ['stream']
the process has ended with 0
quiet
echo 0
the process has ended with 0
closed
""",
    "registry.py": """\
refused: a job with key 'ada' is still in flight in scope 'agents'
stopped: True False
bob: leaving, and asks who is left: ['ada', 'bob', 'cyd']
refused: scope 'agents' is closing: nothing new may start in it
ada: leaving, and asks who is left: ['ada', 'cyd']
cyd: leaving, and asks who is left: ['ada', 'cyd']
withdrawn: 1, cancelled: ['ada', 'cyd']
""",
}


def run(name: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a reader does."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / name)],
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_prints_what_it_should(name: str) -> None:
    """Each example ends with 0, says what it should, and complains of nothing."""
    done = run(name)
    assert (done.stdout, done.stderr, done.returncode) == (OUTPUTS[name], "", 0)


def test_the_server_answers_whom_it_has_and_takes_nobody_more() -> None:
    """On SIGTERM the server finishes two answers, turns a latecomer away, and ends with 0."""
    done = run("server.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "latecomer: the server takes no more visitors",
        "server: no more visitors, please",
        "visitor 1: hello, visitor 1",
        "visitor 2: hello, visitor 2",
    ]
    assert re.match("quiesce: SIGTERM: draining for up to 10 s", done.stderr)
    assert len(re.findall("job answer · ", done.stderr)) == 2
    assert re.search("nothing lost: .*\n$", done.stderr)


def test_the_harness_replaces_a_runner_and_answers_what_it_has() -> None:
    """Each conversation has a runner, a crash costs its history alone, and SIGTERM no message."""
    done = run("runner_harness.py")
    assert done.returncode == 0, done.stderr
    *before, last, next_to_last, left = done.stdout.splitlines()
    assert before == [
        "red's message 1 was 'hello'",
        "blue's message 1 was 'good morning'",
        "red's message 2 was 'how are you?'",
        "red's runner has exited with 3",
        "red's message 1 was 'are you there?'",
        "blue's message 2 was 'and you?'",
        "2 runners, 3 started, 1 crashed",
    ]
    assert {last, next_to_last} == {"no more messages, please", "blue's message 3 was 'think'"}
    assert left == "sockets left: []"
    assert re.search("lease blue · .* · state=held", done.stderr)
    assert len(re.findall("process .service. (red|blue) · ", done.stderr)) == 2
    assert re.search("nothing lost: .*\n$", done.stderr)


def test_every_example_is_tested() -> None:
    """There is no example that nobody runs."""
    names = {path.name for path in FOLDER.glob("*.py")}
    assert names == {*OUTPUTS, "server.py", "runner_harness.py"}
