"""The guard and the sweep on real packages: bugs that are in released versions, found by their lines.

Each program runs in a process of its own, with the package as it is on PyPI, and tells what the guard
has found; the programs are in guard_acp.py, guard_a2a.py and guard_claude.py. The same programs pass
with a version that is fixed, or when quiesce owns what the package starts.
"""

from __future__ import annotations

import functools
import json
import linecache
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from tests.integration import subjects

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0  # a guard against hangs, far above what anything takes

ACP_NEW = "agent-client-protocol-0.12.1"
A2A = "a2a-sdk-1.3.0"
CLAUDE_OLD = "claude-agent-sdk-0.1.50"
CLAUDE_NEW = "claude-agent-sdk-0.2.182"

both_forms = pytest.mark.parametrize("form", ["inside", "outside"])
both_claudes = pytest.mark.parametrize("version", [CLAUDE_OLD, CLAUDE_NEW])


class Found(NamedTuple):
    """What the guard found, and the line that it names: the file's name, and what is written there."""

    kind: str
    name: str
    file: str
    line: str

    @classmethod
    def of(cls, finding: dict[str, Any]) -> Found:
        """Read the line that a finding names."""
        file, line = place(finding["where"])
        return cls(finding["kind"], finding["name"], file, line)


def place(where: str | None) -> tuple[str, str]:
    """Return the last parts of a file's path, from its package on, and the text of the line."""
    if where is None:
        return "", ""
    path, _, number = where.rpartition(":")
    parts = Path(path).parts
    package = max(
        (parts.index(name) for name in ("acp", "a2a", "claude_agent_sdk") if name in parts),
        default=len(parts) - 1,
    )
    return "/".join(parts[package:]), linecache.getline(path, int(number)).strip()


@functools.cache
def tellings(program: str, subject: str | None, names: tuple[str, ...]) -> dict[str, Any]:
    """Run a program with a test subject, and give what it told, by name."""
    skip = {"CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK": "1"}  # or the CLI is started twice
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.integration.{program}", *names],
        cwd=ROOT,
        env=os.environ | skip if subject is None else subjects.environment(subject, **skip),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    told = {line["name"]: line for line in map(json.loads, ran.stdout.splitlines())}
    for outcome in told.values():
        end_processes(outcome.get("findings", []))
    assert ran.returncode == 0, ran.stderr
    return told


def end_processes(findings: list[dict[str, Any]]) -> None:
    """End the agents that were left, which do not go by themselves."""
    for finding in findings:
        pid = re.match(r"pid (\d+)", finding["details"])
        if finding["kind"] == "process" and pid is not None:
            with suppress(ProcessLookupError):
                os.kill(int(pid[1]), signal.SIGKILL)


def tell(program: str, subject: str | None, names: tuple[str, ...], name: str) -> dict[str, Any]:
    """Return what a program told of one scenario; all of them are run at the first question."""
    assert name in names
    told = dict(tellings(program, subject, names)[name])
    del told["name"]
    return told


def both_forms_of(*scenarios: str) -> tuple[str, ...]:
    """Name scenarios in both forms."""
    return tuple(f"{name}:{form}:asyncio" for name in scenarios for form in ("inside", "outside"))


ACP_PROCESS = both_forms_of("once", "twice", "owned_twice")  # 0.12.1 only


def findings_of(told: dict[str, Any]) -> list[Found]:
    """Return what the guard has raised."""
    assert told["raised"] == "LeakError", told
    return [Found.of(finding) for finding in told["findings"]]


# --- seed 000 -----------------------------------------------------------------------------------


def acp(version: str | None, scenario: str, form: str) -> dict[str, Any]:
    """Run the programs with an agent that is cancelled; None is the version of our environment."""
    names = both_forms_of("served", "owned_served") + (ACP_PROCESS if version else ())
    return tell("guard_acp", version, names, f"{scenario}:{form}:asyncio")


@both_forms
def test_the_tasks_that_a_cancelled_agent_leaves_are_found(form: str) -> None:
    """Seed 000: agent-client-protocol 0.8.1 leaves its sender and its dispatcher."""
    helper = ("acp/task/supervisor.py", "task = asyncio.create_task(coroutine, name=name)")
    assert sorted(findings_of(acp(None, "served", form))) == [
        Found("task", "acp.Dispatcher.loop", *helper),
        Found("task", "acp.Sender.loop", *helper),
    ]


@both_forms
@pytest.mark.parametrize(
    ("version", "scenario"),
    [(ACP_NEW, "served"), (None, "owned_served"), (ACP_NEW, "owned_served")],
)
def test_a_cancelled_agent_that_leaves_nothing_passes(
    version: str | None, scenario: str, form: str
) -> None:
    """0.12.1 is fixed; 0.8.1 is clean in a scope that adopts."""
    assert acp(version, scenario, form) == {}


# --- seed 002 -----------------------------------------------------------------------------------


CLAUDE_LEFT = {
    CLAUDE_OLD: ("left:patient:asyncio", "left:outside:asyncio", "left:outside:trio"),
    CLAUDE_NEW: ("left:inside:asyncio", "left:outside:asyncio"),
}
CLAUDE_CLEAN = (
    "ended:outside:asyncio",
    "ended:outside:trio",
    "owned_left:inside:asyncio",
    "owned_left:outside:trio",
)


def claude(version: str, name: str) -> dict[str, Any]:
    """Run the programs with claude-agent-sdk."""
    return tell("guard_claude", version, CLAUDE_LEFT[version] + CLAUDE_CLEAN, name)


QUERY = Found("generator", "query", "guard_claude.py", "async for message in ask():")


def test_a_query_that_is_left_is_found_with_all_that_comes_of_it() -> None:
    """Seed 002: 0.1.50 closes what is inside the generator in a task that may not do so, and fails."""
    told = claude(CLAUDE_OLD, "left:outside:asyncio")
    found = findings_of(told)
    assert QUERY in found
    assert {finding[1:3] for finding in found if finding.kind == "generator"} == {
        ("query", "guard_claude.py"),
        ("InternalClient.process_query", "claude_agent_sdk/query.py"),
        ("Query.receive_messages", "claude_agent_sdk/_internal/client.py"),
    }
    failures = [f["details"] for f in told["findings"] if f["kind"] == "task failure"]
    assert len(failures) == 1
    assert "exit cancel scope in a different task than it was entered in" in failures[0]


def test_a_query_that_is_left_is_told_although_it_cancels_the_guard() -> None:
    """Seed 002 cancels the task that asked, at its next await: here in the guard itself."""
    told = claude(CLAUDE_OLD, "left:patient:asyncio")
    assert told["raised"] == "CancelledError"
    assert is_told(QUERY, told)


def test_a_query_that_is_left_is_told_although_it_corrupts_trio() -> None:
    """Seed 002 breaks trio's nurseries; what was left is a note to whatever trio raises."""
    told = claude(CLAUDE_OLD, "left:outside:trio")
    assert told["raised"] in {"RuntimeError", "TrioInternalError"}
    assert is_told(QUERY, told)


def is_told(found: Found, told: dict[str, Any]) -> bool:
    """Return whether a note names something, and the line."""
    lines = re.findall(r"(.+) '(.+)', started at (\S+:\d+)", "\n".join(told["notes"]))
    return found in [Found(kind.strip(), name, *place(where)) for kind, name, where in lines]


@both_forms
def test_the_fixed_version_breaks_nothing_but_is_not_done_either(form: str) -> None:
    """0.2.182 neither fails nor cancels; but when the loop has been left, the rest is still going on."""
    told = claude(CLAUDE_NEW, f"left:{form}:asyncio")
    found = findings_of(told)
    assert QUERY in found
    assert "task failure" not in {finding.kind for finding in found}


@both_claudes
@pytest.mark.parametrize("name", CLAUDE_CLEAN)
def test_a_query_that_is_read_to_its_end_or_owned_passes(version: str, name: str) -> None:
    """Nothing is left if nobody leaves the loop, nor of a `quiesce.stream` that somebody left."""
    assert claude(version, name) == {}


# --- a2a-sdk ------------------------------------------------------------------------------------


def a2a(scenario: str, form: str) -> dict[str, Any]:
    """Run the programs with a2a-sdk."""
    names = both_forms_of("one", "three", "answered", "owned_three")
    return tell("guard_a2a", A2A, names, f"{scenario}:{form}:asyncio")


@both_forms
@pytest.mark.parametrize(("scenario", "messages"), [("one", 1), ("three", 3)])
def test_each_message_to_a_completed_task_leaves_two_dispatchers(
    scenario: str, messages: int, form: str
) -> None:
    """a2a-sdk 1.3.0 makes two queues, each with a task, before it refuses; closing it ends none."""
    dispatcher = Found(
        "task",
        "EventQueueSource._dispatch_loop",
        "a2a/server/events/event_queue_v2.py",
        "self._dispatcher_task = asyncio.create_task(self._dispatch_loop())",
    )
    assert findings_of(a2a(scenario, form)) == [dispatcher] * 2 * messages


@both_forms
@pytest.mark.parametrize("scenario", ["answered", "owned_three"])
def test_a_message_that_is_answered_or_refused_in_a_scope_passes(scenario: str, form: str) -> None:
    """Nothing is left of a message to a new task, nor of refused ones in a scope that adopts."""
    assert a2a(scenario, form) == {}


# --- an agent's process -------------------------------------------------------------------------

PYTHON = Path(sys.executable).name
SPAWN = ("acp/transports.py", "process = await asyncio.create_subprocess_exec(")


def acp_process(scenario: str, form: str) -> dict[str, Any]:
    """Run the programs with an agent in a process of its own, which does not go by itself."""
    return acp(ACP_NEW, scenario, form)


@both_forms
def test_a_process_that_a_second_cancellation_leaves_is_found(form: str) -> None:
    """agent-client-protocol 0.12.1 leaves a stubborn agent, and what asyncio has opened for it."""
    found = findings_of(acp_process("twice", form))
    assert [finding for finding in found if finding.kind != "file"] == [
        Found("process", PYTHON, *SPAWN)
    ]
    assert {finding.name for finding in found if finding.kind == "file"} <= {"pipe", "pidfd"}


@both_forms
@pytest.mark.parametrize("scenario", ["once", "owned_twice"])
def test_a_process_that_is_ended_passes(scenario: str, form: str) -> None:
    """The SDK ends it if it is cancelled once; in a scope, `enter` does however often it is."""
    assert acp_process(scenario, form) == {}


def test_a_sweep_finds_the_second_cancellation_by_itself() -> None:
    """It names both awaits; its id brings the process back, and the first cancellation alone does not."""
    told = tell("guard_acp_sweep", ACP_NEW, ("bare", "owned"), "bare")
    places = cast("list[str]", told["places"])
    assert [place(where)[0] for where in places] == ["guard_acp.py", "acp/transports.py"]
    assert [(label, place(where)) for label, where in told["again"] if "process" in label] == [
        (f"leak:process:{PYTHON}", SPAWN)
    ]
    assert told["once"] == []


def test_a_sweep_of_an_owned_process_finds_nothing() -> None:
    """In a scope the same use stands every single and double cancellation."""
    told = tell("guard_acp_sweep", ACP_NEW, ("bare", "owned"), "owned")
    assert told == {"failed": 0, "not_covered": []}
