"""The examples run, end by themselves, and print what their readers expect."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import example

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
    "escapes.py": """\
unseen: wakes the task at escapes.py:73 in Shop.cancel
  write: an asyncio.Queue or queue.Queue; or part = current_hop().working("…") here, and `async with part:` where the work is done
untracked: daemon thread at escapes.py:74 in Shop.cancel
  write: daemon=False; or `with quiesce.detached():` around it, if it serves the process and not this request
covered: item at escapes.py:65 in Shop.order
covered: task at escapes.py:66 in Shop.order
""",
    "leak_hunt.py": """\
Careless:
  guard: a task is left, listen, started at leak_hunt.py:40, gone moments later
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
    "asgi_server.py": """\
alone:
  asked: accepted
  exit code -15
with quiesce:
  asked: accepted
  ready: 503, draining
  a new request: 503, the server is shutting down
  the report is written
  exit code 0
""",
    "acp_websocket.py": """\
bridge: listening
idle client: connected
busy client: connected
operator: SIGTERM
idle client: closed by the bridge, 1001 shutting down
late client: refused, HTTP 503
busy client: the prompt has ended: end_turn
busy client: closed by the bridge, 1001 shutting down
bridge: closed, nothing lost
""",
    "claude_query.py": """\
query: You asked: What is the answer?
        (the CLI has written its session)
query: left; the CLI is gone
client: Why? 42
client: Really? 42
        (the CLI has written its session)
client: nothing lost
""",
    "mcp_sessions.py": """\
two sessions, closed in the order of opening, by other tasks:
  first: closed
  second: closed
a call that nobody waits for any more:
  gave up waiting
  the server has cancelled it, too
a crash:
  MCP server 'notes' is gone (exit code 3): call_tool crash has no answer
    thinking was cancelled
    out of memory, or so
  the next call: 1 kept, after 2 starts
while five tasks call:
  5 calls in flight, 1 server
nothing lost: True
""",
    "registry.py": """\
refused: a job with key 'ada' still runs in scope 'agents': use another key
stopped: True False
bob: leaving, and asks who is left: ['ada', 'bob', 'cyd']
refused: scope 'agents' is closing: nothing new may start in it
ada: leaving, and asks who is left: ['ada', 'cyd']
cyd: leaving, and asks who is left: ['ada', 'cyd']
withdrawn: 1, cancelled: ['ada', 'cyd']
""",
}

# What is told on stderr, where that is part of the story.
COMPLAINTS = {
    "asgi_server.py": r"quiesce: SIGTERM: draining, grace 10 s: .*nothing it owned was lost: 2 jobs completed\n",
    "acp_websocket.py": "quiesce: SIGTERM: draining.* request session/prompt .*nothing it owned was lost: .*\n",
    "mcp_sessions.py": r"quiesce: process notes \(\d+\) is a service but has ended by itself: exit code 3\n",
}


def run(name: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a reader does."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / name)],
        env=example.environment(name),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_prints_what_it_should(name: str) -> None:
    """Each example ends with 0, says what it should, and complains of nothing else."""
    done = run(name)
    assert (done.stdout, done.returncode) == (OUTPUTS[name], 0), done.stderr
    assert re.fullmatch(COMPLAINTS.get(name, ""), done.stderr, re.DOTALL)


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
    assert re.search("nothing it owned was lost: .*\n$", done.stderr)


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
    assert re.search("nothing it owned was lost: .*\n$", done.stderr)


def test_the_agent_is_quiet_where_the_sdk_alone_is_not() -> None:
    """The SDK leaves its tasks and its process, quiesce does not; a drain lets the prompt finish."""
    done = run("acp_agent.py")
    assert (done.stderr, done.returncode) == ("", 0)
    alone, cancelled, drained = re.split("^(?=quiesce's)", done.stdout, flags=re.MULTILINE)
    assert "has ended: False" in alone
    assert "its process is gone: False" in alone
    assert "has ended: True, with the cancellation: True" in cancelled
    assert "tasks left: []" in cancelled
    assert "its process is gone: True" in cancelled
    assert "of request 2: The agent is shutting down" in drained
    assert "of request 1: {'stopReason': 'end_turn'}" in drained
    assert "nothing it owned was lost" in drained


def test_no_task_is_left_working() -> None:
    """The short task is completed in the drain, the long one gets an end, and both are pushed."""
    done = run("a2a_agent.py")
    assert done.returncode == 0, done.stderr
    *_, short, long, last = done.stdout.splitlines()
    assert short == "  webhook: the short task is completed"
    assert long.startswith("  webhook: the long task is failed (The server was shut down")
    assert last == "the server has ended; nobody is left waiting"
    assert "WORK LOST" in done.stderr


def test_the_agents_of_a_mesh_settle_after_the_stream_has_closed() -> None:
    """The last work is that of an agent which the client has never heard of."""
    done = run("a2a_mesh.py")
    assert done.returncode == 0, done.stderr
    assert "the stream has closed" in done.stdout.splitlines()[0]
    assert re.search(r"settled after [\d.]+ s, 4 hops\n└─ you .*bank  done", done.stdout, re.DOTALL)


def test_every_example_is_tested() -> None:
    """There is no example that nobody runs."""
    names = {f"{name}.py" for name in example.names()}
    assert names == {
        *OUTPUTS, "server.py", "runner_harness.py", "acp_agent.py", "a2a_agent.py",
        "a2a_mesh.py",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "code"), [("registry", 0), ("nothing", 2)])
def test_an_example_is_run_by_its_name(name: str, code: int) -> None:
    """With the SDK that it needs; a name that is none is told what there is."""
    command = [sys.executable, str(FOLDER.parent / "tools" / "example.py"), name]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == code
    assert code == 0 or "one of: a2a_agent, " in done.stderr
