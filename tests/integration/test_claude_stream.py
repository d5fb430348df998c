"""claude-agent-sdk, read half and left: what happens without quiesce, and with `quiesce.stream`.

Its `query()` is an async generator around another one, which owns the process of the CLI: 0.1.50 in
a task group, 0.2.182, the newest, in tasks of its own. The CLI is fake_cli.py, which takes a
second to flush when its input has ended; the programs are in claude_programs.py.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from quiesce.testing.leaks import child_processes_left
from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import Callable

    Outcomes: TypeAlias = Callable[[str, str], "Outcome"]

PROGRAMS = Path(__file__).with_name("claude_programs.py")
_ENDS = {"terminated", "flushed"}
PATIENCE_SECONDS = 60.0  # a guard against hangs, far above what anything takes

OLD = "claude-agent-sdk-0.1.50"
NEW = "claude-agent-sdk-0.2.182"
OWNED = ("collected", "closed", "left", "cancelled", "resumed", "overdue")
WITHOUT = {
    OLD: ("collected", "closed", "cancelled", "resumed"),
    NEW: ("collected", "closed", "left"),
}

# The first question starts them all; a CLI has noted its end some moments before it is gone.
pytestmark = pytest.mark.quiesce(allow=["process:python*"])
both_versions = pytest.mark.parametrize("version", [OLD, NEW])
both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@dataclass(frozen=True)
class Outcome:
    """What became of a program, and of the CLI that it started."""

    code: int
    said: list[str]
    complaints: str
    cli: list[str]


def wait_for_cli(journal: Path) -> list[str]:
    """Return what the CLI noted of its end, as soon as there is something, or it was killed: it may outlive its program."""
    pid = int(journal.read_text().split()[0])
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        state = child_processes_left.state_of(pid)
        events = [event for event in journal.read_text().split() if event in _ENDS]
        if events or state is None or state.letter in "ZX":
            return events  # one that is stubborn flushes although it was terminated: not waited for
        assert time.monotonic() < end, "the CLI does not end"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Run the programs of a version, all of them at the first question, and tell of one."""

    @functools.cache
    def run(version: str) -> Path:
        folder = tmp_path_factory.mktemp(version)
        # Otherwise older versions start the CLI twice, once to ask for its version.
        environment = subjects.environment(version, CLAUDE_AGENT_SDK_SKIP_VERSION_CHECK="1")
        names = [
            f"{scenario}:{backend}:{mode}"
            for mode, scenarios in (("owned", OWNED), ("bare", WITHOUT[version]))
            for scenario in scenarios
            for backend in ("asyncio", "trio")
        ]
        subprocess.run(
            [sys.executable, str(PROGRAMS), str(folder), *names],
            env=environment,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        return folder

    def outcome(version: str, name: str) -> Outcome:
        folder = run(version) / name
        return Outcome(
            code=int((folder / "code").read_text()),
            said=(folder / "out").read_text().splitlines(),
            complaints=(folder / "err").read_text(),
            cli=wait_for_cli(folder / "journal"),
        )

    return outcome


@both_backends
@both_versions
def test_a_stream_that_is_garbage_is_closed_by_its_own_task(
    outcomes: Outcomes, version: str, backend: str
) -> None:
    """After `break` and `gc.collect()` in another task the host goes on, and its scope waits for the CLI."""
    assert outcomes(version, f"collected:{backend}:owned") == Outcome(
        code=0,
        said=[
            "host goes on",
            "in flight: ['stream']",
            "at the end: CLI gone",
            "tasks left: 0",
        ],
        complaints="",
        cli=["flushed"],
    )


@pytest.mark.parametrize(
    ("backend", "complaint"),
    [
        ("asyncio", "RuntimeError: Attempted to exit cancel scope in a different task"),
        ("asyncio", "CancelledError: Cancelled"),
        ("trio", "TrioInternalError"),
    ],
)
def test_without_quiesce_garbage_of_the_old_version_breaks_the_host(
    outcomes: Outcomes, backend: str, complaint: str
) -> None:
    """The same `break` in 0.1.50 ends the program, by a cancel scope that was left in another task."""
    seen = outcomes(OLD, f"collected:{backend}:bare")
    assert (seen.code, seen.said) == (1, [])
    assert complaint in seen.complaints


def leaves_tasks(seen: Outcome) -> bool:
    """Return whether tasks are left; how many the SDK has just then depends on when one looks."""
    return re.fullmatch(r"tasks left: [1-9]\d*", seen.said[-1]) is not None


@both_backends
def test_without_quiesce_garbage_of_the_new_version_is_closed_by_nobody(
    outcomes: Outcomes, backend: str
) -> None:
    """The same `break` in the newest version leaves a task and the CLI behind, and a complaint."""
    seen = outcomes(NEW, f"collected:{backend}:bare")
    assert seen.said[:-1] == ["host goes on", "at the end: CLI alive"]
    assert leaves_tasks(seen)
    assert "aclose(): asynchronous generator is already running" in seen.complaints


@both_backends
@both_versions
def test_aclosing_returns_when_the_cli_is_gone(
    outcomes: Outcomes, version: str, backend: str
) -> None:
    """The end of `aclosing(quiesce.stream(query()))` is the end of the CLI, and it has flushed."""
    assert outcomes(version, f"closed:{backend}:owned") == Outcome(
        code=0,
        said=["after aclosing: CLI gone", "at the end: CLI gone", "tasks left: 0"],
        complaints="",
        cli=["flushed"],
    )


@both_backends
@both_versions
def test_without_quiesce_aclosing_returns_too_early(
    outcomes: Outcomes, version: str, backend: str
) -> None:
    """The end of `aclosing(query())` leaves the CLI running, and a task that nobody waits for."""
    seen = outcomes(version, f"closed:{backend}:bare")
    assert seen.said[:-1] == ["after aclosing: CLI alive", "at the end: CLI alive"]
    assert leaves_tasks(seen)


@both_backends
@both_versions
def test_a_program_that_ends_lets_the_cli_flush(
    outcomes: Outcomes, version: str, backend: str
) -> None:
    """After `break` at the very end of a program the scope waits until the CLI has flushed."""
    assert outcomes(version, f"left:{backend}:owned") == Outcome(
        code=0,
        said=["at the end: CLI gone", "tasks left: 0"],
        complaints="",
        cli=["flushed"],
    )


def test_without_quiesce_a_program_that_ends_kills_the_cli(outcomes: Outcomes) -> None:
    """The newest version terminates the CLI at the end of the interpreter, before it has flushed."""
    seen = outcomes(NEW, "left:asyncio:bare")
    assert seen.said[:-1] == ["at the end: CLI alive"]
    assert leaves_tasks(seen)
    assert seen.cli == ["terminated"]


@pytest.mark.parametrize(
    ("version", "backend"), [(OLD, "asyncio"), (NEW, "asyncio"), (NEW, "trio")]
)
def test_a_cancelled_reader_leaves_nothing_behind(
    outcomes: Outcomes, version: str, backend: str
) -> None:
    """A reader that was cancelled in mid-stream goes at once, and the scope waits for the CLI."""
    assert outcomes(version, f"cancelled:{backend}:owned") == Outcome(
        code=0,
        said=[
            "reader cancelled: True",
            "then: CLI alive",
            "at the end: CLI gone",
            "tasks left: 0",
        ],
        complaints="",
        cli=["flushed"],
    )


@pytest.mark.parametrize(
    ("backend", "mode"), [("asyncio", "bare"), ("trio", "bare"), ("trio", "owned")]
)
def test_what_the_old_version_cannot_do_when_it_is_cancelled(
    outcomes: Outcomes, backend: str, mode: str
) -> None:
    """In 0.1.50 the clean-up is not shielded, so a cancellation that lasts, as trio's do, leaves the CLI."""
    seen = outcomes(OLD, f"cancelled:{backend}:{mode}")
    assert (seen.code, seen.said[2:]) == (0, ["at the end: CLI alive", "tasks left: 0"])


@both_backends
@both_versions
def test_a_cancelled_reader_may_come_back(outcomes: Outcomes, version: str, backend: str) -> None:
    """The message that a reader was cancelled for is there for the next one."""
    assert outcomes(version, f"resumed:{backend}:owned") == Outcome(
        code=0,
        said=[
            "reader cancelled: True",
            "then: CLI alive",
            "then read: ResultMessage",
            "at the end: CLI gone",
            "tasks left: 0",
        ],
        complaints="",
        cli=["flushed"],
    )


@both_backends
def test_without_quiesce_a_cancelled_reader_has_ended_it_all(
    outcomes: Outcomes, backend: str
) -> None:
    """When the reader of `query()` itself is cancelled there is nothing to come back to."""
    seen = outcomes(OLD, f"resumed:{backend}:bare")
    assert "reader cancelled: True" in seen.said
    assert not [line for line in seen.said if line.startswith("then read")]


@both_versions
def test_a_cli_that_does_not_go_is_named(outcomes: Outcomes, version: str) -> None:
    """A scope with a deadline does not wait for a stubborn CLI, and says what it has given up."""
    seen = outcomes(version, "overdue:asyncio:owned")
    assert "WORK LOST" in seen.said[0]
    assert "stream query" in seen.said[1]
    assert "then: CLI alive" in seen.said
