"""Frameworks and libraries that people use, unmodified, inside of `node.asgi`: right verdicts, quick exits.

Each scenario runs in processes of its own, with the packages as they are on PyPI; the programs are in unmodified/.
Handlers answer and leave work behind, which goes on until the driver lets it end. So a verdict before that is wrong,
and so is one that does not come because of the sessions, pools, threads and timers that libraries keep.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import subjects
from tests.integration.unmodified.uses import USES

pytestmark = pytest.mark.usual

_ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 110.0  # a guard against hangs
_SUBJECTS = {"libraries": "libraries-1", "adk": "google-adk-2.13.0"}
_OTHERS = "frameworks-1"
_AFTERWARDS = ("background", "starlette_background", "dependency")


@functools.cache  # also if it fails: a scenario is run once
def run(scenario: str) -> subprocess.CompletedProcess[str]:
    """Run a scenario."""
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.unmodified.drive", scenario],
        cwd=_ROOT,
        env=subjects.environment(_SUBJECTS.get(scenario, _OTHERS)),
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )


def outcomes(scenario: str) -> dict[str, dict[str, Any]]:
    """Return what became of the cascades of a scenario, by name; it is run at the first question."""
    ran = run(scenario)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {line["name"]: line for line in map(json.loads, ran.stdout.splitlines())}


def assert_right(outcome: dict[str, Any], *held: str) -> None:
    """Check that the hop was held by the work that was left, by nothing else, and that the verdict came after it."""
    assert outcome["answer"].startswith("200"), outcome
    assert len(outcome["held"]) == len(held), outcome
    for entry, wanted in zip(outcome["held"], held, strict=True):
        assert entry.startswith(f"{wanted} since "), outcome
        assert ";" not in entry, outcome
    assert (outcome["verdict"], outcome["ok"]) == ("Settled", True), outcome
    assert outcome["ended"] < outcome["at"], outcome


def assert_ended_well(outcome: dict[str, Any], agents: int = 1) -> None:
    """Check that agents have ended by SIGTERM alone, without a word of lost work."""
    assert outcome["codes"] == [-15] * agents, outcome
    assert "WORK LOST" not in outcome["log"], outcome
    assert "Traceback" not in outcome["log"], outcome
    assert outcome["errors"] == [], outcome


@pytest.mark.timeout(115)  # it starts real servers
@pytest.mark.parametrize("library", USES)
def test_the_first_use_of_a_library_ends_with_its_work(library: str) -> None:
    """What is left behind, and uses the library again, holds the hop; what the library keeps does not."""
    assert_right(outcomes("libraries")[library], "agent: task again")


@pytest.mark.timeout(115)  # as above
@pytest.mark.parametrize("way", _AFTERWARDS)
def test_what_fastapi_and_starlette_do_after_the_answer_is_the_handlers_work(way: str) -> None:
    """Background tasks, and what dependencies clean up."""
    assert_right(outcomes("libraries")[way], f"agent: handler POST /{way}")


@pytest.mark.timeout(115)  # as above
def test_an_agent_with_the_threads_and_pools_of_all_libraries_ends_at_once() -> None:
    """The housekeeping of libraries is nobody's work, so the drain does not wait for it."""
    assert_ended_well(outcomes("libraries")["exit"])


@pytest.mark.parametrize("kind", ["mcp", "mcp_stateless", "fastmcp"])
def test_a_session_of_mcp_that_stays_open_holds_no_hop(kind: str) -> None:
    """A tool's work belongs to the request that called it, also that of two calls of one session at a time."""
    found = outcomes(kind)
    for name in ("first", "second", "third"):
        assert_right(found[name], "agent: task work")
    assert found["second"]["early"] == "Unknown"
    assert found["third"]["at"] < found["second"]["ended"]
    assert_ended_well(found["exit"])


def test_what_a_worker_of_fasta2a_does_belongs_to_the_message() -> None:
    """The request was answered long before; the worker was there before the request."""
    found = outcomes("fasta2a")
    for name in ("first", "second"):
        assert found[name]["answer"].startswith("200"), found[name]
        assert "item taken from anyio.MemoryObjectSendStream" in found[name]["held"][0]
        assert found[name]["verdict"] == "Settled", found[name]
        assert found[name]["ended"] < found[name]["at"], found[name]
    assert found["second"]["early"] == "Unknown"
    assert found["first"]["at"] < found["second"]["ended"]
    assert_ended_well(found["exit"])


def test_agents_of_google_adk_settle_in_a_chain() -> None:
    """Each has left work behind; the verdict comes after all of it, and every agent ends at once."""
    found = outcomes("adk")
    assert_right(found["a"], *(f"{name}: task work" for name in "abc"))
    assert sorted(found["exit"]["all_ended"]) == ["a", "b", "c"]
    assert max(found["exit"]["all_ended"].values()) < found["a"]["at"]
    assert_ended_well(found["exit"], agents=3)
