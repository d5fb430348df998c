"""Who a replica is: what proves that its process has ended, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from quiesce.errors import UsageError
from quiesce.mesh.store import replica_identity
from quiesce.mesh.store.rows import Replica

OWN = Replica(
    incarnation="1", agent="a", name="a-0", host="here", boot="b1", pid=10, started=100, lease=10.0
)
OTHER = replace(OWN, incarnation="2", pid=20, started=200)
PROCESSES = {10: 100, 20: 200}


def proof(other: Replica, *, is_starting: bool = False, is_one_machine: bool = False) -> str:
    """Return the proof that a replica has ended, while the processes of both run."""
    return replica_identity.proof_of_death(
        other, OWN, is_starting=is_starting, is_one_machine=is_one_machine, start_of=PROCESSES.get
    )


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"pid": 21, "name": "a-1"}, "its process 21 has ended"),
        ({"pid": 10, "name": "a-1"}, "its process 10 has ended"),  # which is another one now
        ({"fences": True, "age": 15.1}, "its lease of 10 s is over, and it fences itself"),
    ],
)
def test_a_replica_that_has_ended_is_proven_dead(facts: dict[str, Any], why: str) -> None:
    """Each proof stands alone, and says what is known."""
    assert proof(replace(OTHER, **facts)) == why


def test_after_a_start_of_the_machine_nothing_runs() -> None:
    """The proof holds for a store of one machine alone: elsewhere, another boot may be another machine."""
    before = replace(OTHER, boot="b0", host="b0", name="a-1")
    assert proof(before, is_one_machine=True) == "its machine has started again since"
    assert proof(before) == ""


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"incarnation": "1", "pid": 21},
        {"age": 1e9},
        {"fences": True, "age": 14.9},
        {"host": "there", "pid": 21},
        {"host": "there", "boot": "b0"},
        {"host": "", "pid": 21},
        {"boot": ""},
    ],
)
def test_a_replica_that_may_run_is_not_dead(facts: dict[str, Any]) -> None:
    """Silence is no proof, nor is what another machine cannot see."""
    assert proof(replace(OTHER, **facts)) == ""


def test_the_same_replica_started_again_is_a_proof_once() -> None:
    """Only the later start of a name proves that the earlier one has ended, and only for the same agent."""
    elsewhere = replace(OTHER, host="there")
    assert proof(elsewhere, is_starting=True) == "replica a-0 has started again"
    assert proof(elsewhere) == ""
    assert proof(OWN, is_starting=True) == ""
    assert proof(replace(OTHER, name="a-1"), is_starting=True) == ""
    assert proof(replace(OTHER, agent="b"), is_starting=True) == ""


def test_a_second_process_of_a_name_is_refused() -> None:
    """Workers of one server that have the same name would bury each other, one after the other."""
    with pytest.raises(UsageError, match="runs already, as process 20: give each process its own"):
        proof(OTHER, is_starting=True)
    assert proof(replace(OTHER, pid=21), is_starting=True) == "its process 21 has ended"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_zombie_has_ended() -> None:
    """A process that nobody has waited for is in the table, and runs no code."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert replica_identity.start_of_process(process.pid) is None
    finally:
        process.wait()
    assert replica_identity.start_of_process(process.pid) is None


def test_a_process_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a program stands in parentheses, and may have some itself."""
    fields = " ".join(map(str, range(4, 40)))
    line = f"7 (a) Z (b) S {fields}"
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: line)
    assert replica_identity.start_of_process(7) == 22


def test_a_process_that_does_not_know_its_start_names_no_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it, the others would take the process for another one of the same number, and this one for dead."""

    def fail(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(replica_identity, "start_of_process", fail)
    found = replica_identity.this_replica("a", None, lease=10.0, fences=False)
    assert (found.host, found.started) == ("", 0)


def test_a_process_that_cannot_be_looked_at_is_not_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lack of file descriptors, or a hidden process, is no proof that the process has ended."""
    own = replica_identity.this_replica("a", None, lease=10.0, fences=False)
    other = replica_identity.this_replica("a", None, lease=10.0, fences=False)
    assert replica_identity.proof_of_death(other, own) == ""

    def fail(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", fail)
        assert replica_identity.proof_of_death(other, own) == ""

    def hide(*_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No such file or directory")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", hide)
        assert replica_identity.proof_of_death(other, own) == ""
