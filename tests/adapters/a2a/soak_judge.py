"""What became of the tasks of a soak: judged by its clients, the store's files and the receiver.

Nothing here asks the adapter. A task was accepted if a client was told its id, or if the store has
one that begins with a client's message. Each of these has to end, once, and its receiver to hear so.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.adapters.a2a import kit
from tests.adapters.a2a.server import told_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

WRONG = (
    "its client knows it, the store does not",
    "no terminal state",
    "more than one terminal state",
    "its client was told another end",
    "the final state was never pushed",
    "another end was pushed",
    "pushed out of order",
    "a state in between was never pushed",
)
LEAKS = ("asyncio tasks left", "open files left", "processes left")
_ARTIFACT = "artifact"


@dataclass
class Sent:
    """A message of a client, and what the client has heard of it."""

    number: int
    kind: str
    text: str
    rest: bool
    message_id: str = ""
    task_id: str = ""
    outcome: str = "cut off"
    told: list[str] = field(default_factory=list)

    def hear(self, told: dict[str, Any]) -> str:
        """Keep what an answer, or an event of a stream, says; gives the state, if it has one."""
        told = told_in(told.get("result", told))
        self.task_id = self.task_id or told.get("taskId") or told.get("id", "")
        if "status" not in told:
            return ""
        self.told.append(kit.state_of(told))
        return self.told[-1]


@dataclass
class Judged:
    """All tasks that were accepted, and what is wrong with each that something is wrong with."""

    accepted: int
    untold: int
    """Accepted, although no client has heard of it: it had left, or the server went."""
    ends: Counter[str]
    wrong: Counter[str]
    samples: list[str]
    """Some of those that something is wrong with."""
    again: int
    """Final states that were pushed more than once."""


def judged(
    log: Iterable[Sent], stored: dict[str, dict[str, Any]], heard: Iterable[tuple[int, Any]]
) -> Judged:
    """Bring together what the clients, the store and the receiver have."""
    sent = list(log)
    by_message = {one.message_id: one for one in sent}
    clients = {one.task_id: one for one in sent if one.task_id}
    for task_id, found in stored.items():
        messages = (message.get("messageId") for message in found.get("history", ()))
        owner = next((by_message[one] for one in messages if one in by_message), None)
        if owner is not None:
            clients.setdefault(task_id, owner)
    pushed = pushed_states(heard)
    result = Judged(0, 0, Counter(), Counter(dict.fromkeys(WRONG, 0)), [], 0)
    for task_id in sorted(clients.keys() | stored.keys()):
        client = clients.get(task_id)
        had = stored.get(task_id, {}).get("states", [])
        states = pushed.get(task_id, [])
        result.accepted += 1
        result.untold += client is None or not client.task_id
        result.ends[had[-1] if had else "not stored"] += 1
        result.again += bool(had) and had[-1] in kit.TERMINAL and states.count(had[-1]) > 1
        faults = list(_faults(had, states, client.told if client else ()))
        result.wrong.update(faults)
        if faults:
            told = client.told if client else None
            kind = f"{client.kind} '{client.text}'" if client else "nobody's"
            result.samples.append(
                f"{task_id} ({kind}): {faults}; stored {had}, pushed {states}, told {told}"
            )
    return result


def pushed_states(heard: Iterable[tuple[int, Any]]) -> dict[str, list[str]]:
    """Return the states that were pushed of each task, in the order in which they came."""
    pushed: dict[str, list[str]] = {}
    for _, payload in sorted(heard, key=lambda one: one[0]):
        told = told_in(payload)
        state = kit.state_of(told) if "status" in told else _ARTIFACT
        pushed.setdefault(told.get("taskId") or told["id"], []).append(state)
    return pushed


def _faults(had: Sequence[str], pushed: Sequence[str], told: Sequence[str]) -> Iterator[str]:
    """Name what is wrong with a task that has had some states, and whose client and receiver heard others."""
    known, endless, twice, lied, silent, other, disorder, gaps = WRONG
    if not had:
        yield known
    end = had[-1] if had else ""
    if end not in kit.TERMINAL:
        yield endless
    if len([state for state in had if state in kit.TERMINAL]) > 1:
        yield twice
    if any(state in kit.TERMINAL and state != end for state in told):
        yield lied
    if end in kit.TERMINAL and end not in pushed:
        yield silent
    if any(state in kit.TERMINAL and state != end for state in pushed):
        yield other
    if not _in_order(had, pushed):
        yield disorder
    if any(state not in pushed for state in had[:-1]):
        yield gaps


def _in_order(had: Sequence[str], pushed: Sequence[str]) -> bool:
    """Return whether pushes came as the states did; each may come again before the next one does."""
    rest = iter(had)
    last = ""
    for state in pushed:
        if state == _ARTIFACT:
            if last in kit.TERMINAL:
                return False
        elif state != last:
            if state not in rest:  # it goes on where the one before was found
                return False
            last = state
    return True


@dataclass
class Lives:
    """What the servers had left when they ended by themselves."""

    ended: int = 0
    leaks: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(LEAKS, 0)))
    growth: int = 0
    """How many kilobytes the memory of a server has grown by, at most."""
    names: Counter[str] = field(default_factory=Counter)
    """Of tasks that were left."""


def lives(folder: Path) -> Lives:
    """Read what the servers of a folder have left."""
    found = Lives()
    for file in folder.glob("lives/*.json"):
        life = json.loads(file.read_text(encoding="utf-8"))
        start, end = life["start"], life["end"]
        found.ended += 1
        found.names.update(life["tasks"])
        found.leaks[LEAKS[0]] += len(life["tasks"])
        found.leaks[LEAKS[1]] += max(0, end["files"] - start["files"])
        found.leaks[LEAKS[2]] += end["processes"]
        found.growth = max(found.growth, end["kilobytes"] - start["kilobytes"])
    return found
