"""The mesh in real processes: a small soak, and that its judge finds what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mesh import compare, judge, plans, truth

_ROOT = Path(__file__).parents[2]
_SECONDS_MAX = (
    500.0  # a guard against hangs: it takes 20 s on a machine that has nothing else to do
)
_FAULTS = "kill,refuse,cut,hang,slow,lose,copy,stop,clock,forget,restore,full,repeat"
# What a worker sends for items of two hops that have woken it at once is an edge of one: docs/evidence/mesh.md.
_PATTERNS = ",".join(name for name in plans.PATTERNS if name != "deque-send")
# Nodes wait for longer than a busy machine may take to start an agent again.
_ARGUMENTS = (
    "--cascades 42 --seed 164 --width 7 --agents 3 --fault-share 0.8 --long-share 0 --give-up 120"
    f" --faults {_FAULTS} --patterns {_PATTERNS}"
)
_BROKEN = "--cascades 6 --width 6 --seed 3 --agents 2 --faults none --cancel-share 0"


def soak(arguments: str) -> dict[str, Any]:
    """Run a soak in a process of its own, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.mesh.soak", "--json", *arguments.split()],
        cwd=_ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    assert done.returncode in {0, 1}, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert bool(told["findings"]) == done.returncode
    return told


@pytest.mark.usual
@pytest.mark.timeout(_SECONDS_MAX + 60.0)  # of its own: it is a run of many processes
def test_no_verdict_is_wrong_whatever_is_done_to_the_agents() -> None:
    """Agents are killed, stopped and cut off, lose journals and disks, and leave work behind in every way."""
    told = soak(_ARGUMENTS)
    assert told["findings"] == []
    assert told["false_greens_by_mode"] == {"full": 0, "participants": 0}
    assert told["needless_unknowns"] == 0
    assert told["cascades"] == 42
    assert told["faults"] == {
        "repeat": 1, "slow": 1, "lose": 3, "restore": 1, "forget": 1, "stop": 1, "hang": 1, "full": 1, "kill": 1,
        "clock": 1, "cut": 1,
    }  # fmt: skip
    assert told["untouched"] >= 7  # those of the wave without faults
    assert told["clean"] == told["clean_settled"] > 0
    assert len(told["patterns"]) > 15
    assert set(told["copies"]) <= {"409"}


@pytest.mark.usual
@pytest.mark.timeout(_SECONDS_MAX + 60.0)
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "broken",
    [
        "--mutant detached --patterns thread,executor,pool,to-thread,queue-thread",
        "--mutant declared --patterns daemon --untracked-share 1",
    ],
)
def test_the_soak_sees_agents_that_are_broken(broken: str) -> None:
    """Work that no hop waits for, and that goes on until there is a verdict, is a false green in both modes."""
    told = soak(f"{_BROKEN} {broken}")
    assert told["false_greens_by_mode"]["full"] > 0
    assert told["false_greens_by_mode"]["participants"] > 0


# What the judge finds.

PLAN = plans.Plan("0", "home", children=[plans.Plan("0.0", "a"), plans.Plan("0.1", "b")])
CASCADES = {"x": plans.Casc("x", PLAN)}


def facts(path: Path, *lines: dict[str, Any]) -> truth.Truth:
    """Read a log of these lines, in the order of time."""
    log = path / "truth.jsonl"
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return truth.read(log)


def start(t: float = 0.0) -> dict[str, Any]:
    """Begin a cascade."""
    return {"t": t, "is": "start", "cascade": "x", "id": "1"}


def begin(
    t: float, hop: str = "0.0", *, pid: int = 5, joined: bool = True, name: str = "handler"
) -> dict[str, Any]:
    """Begin to work."""
    names = {"cascade": "x", "hop": hop, "name": name, "agent": "a", "key": f"{pid}/{hop}/{t}"}
    return {"t": t, "is": "begin", "pid": pid, "joined": joined, **names}


def end(t: float, of: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """End some work."""
    return {"t": t, "is": "end", "key": of["key"], **facts}


def unsent(why: str) -> dict[str, Any]:
    """Return a line which says that a message was not answered."""
    return {"t": 2, "is": "unanswered", "cascade": "x", "hop": "0.1", "why": why}


def verdict(t: float, full: str = "Settled", lenient: str = "") -> dict[str, Any]:
    """Return a line with a verdict."""
    said = {"full": full, "participants": lenient or full, "counts": {}, "missing": []}
    return {"t": t, "is": "verdict", "at": t, "id": "1", **said}


def died(t: float, pid: int = 5) -> dict[str, Any]:
    """Return a line which says that a process has died."""
    return {"t": t, "is": "died", "of": pid}


def fault(t: float, until: float, kind: str = "kill", **facts: Any) -> dict[str, Any]:
    """Return a line about a fault."""
    about = {"agent": "a", "pair": None, "hop": ""} | facts
    return {"t": until, "is": "fault", "from": t, "to": until, "kind": kind, **about}


ROOT = begin(0, "0")
WORK = begin(1)
OTHER = begin(4, "0.1")
ODD = begin(1, joined=False)
DAEMON = begin(1, name="daemon")
HALF = [start(), ROOT, WORK, end(2, WORK), end(3, ROOT)]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([start(), WORK, end(2, WORK), verdict(3)], []),
        ([start(), WORK, end(2, WORK), verdict(3, "SettledWithLosses")], ["SettledWithLosses where"]),
        ([start(), WORK, end(2, WORK), verdict(3, "Unknown")], ["Unknown where"]),
        ([start(), WORK, end(2, WORK)], ["no verdict"]),
        # It goes on, begins later, and never ends: once for what is said of all, and of participants.
        ([start(), WORK, verdict(3), end(4, WORK)], ["false green: work went on"] * 2),
        ([start(), verdict(3), OTHER, end(5, OTHER)], ["false green: work went on"] * 2),
        ([start(), WORK, verdict(3)], ["false green: work went on"] * 2),
        # By an agent that takes part, and outside of the cascade.
        ([start(), ODD, end(2, ODD), verdict(3)], ["work outside"]),
        ([start(), ODD, verdict(3)], ["work outside", *["false green: work went on"] * 2]),
        # Its process dies.
        ([start(), WORK, died(2), fault(2, 3), verdict(4)], ["false green: work was cut"] * 2),
        ([start(), WORK, died(2), fault(2, 3), verdict(4, "SettledWithLosses")], []),
        ([start(), WORK, died(2), fault(2, 3), verdict(4, "Unknown")], ["Unknown where"]),
        ([start(), WORK, died(2), fault(2, 9), verdict(8, "Unknown")], []),
        ([start(), WORK, verdict(1.5, "SettledWithLosses"), died(2), fault(1, 9)], ["false green"] * 2),
        # Faults that are none of its business, or too late, or do no harm.
        ([start(), fault(1, 9, agent="c"), verdict(8, "Unknown")], ["Unknown where"]),
        ([start(), verdict(1, "Unknown"), fault(2, 9)], ["Unknown where"]),
        ([start(), fault(1, 9, "slow", pair=["a", "home"]), verdict(9, "Unknown")], ["Unknown where"]),
        ([start(), fault(1, 9, "cut", pair=["a", "home"]), verdict(9, "Unknown")], []),
        ([start(), fault(1, 9, "cut", pair=["a", "b"]), verdict(9, "Unknown")], ["Unknown where"]),
        ([start(), fault(1, 1, "lose", hop="x/0.0"), verdict(9, "SettledWithLosses")], ["SettledWith"]),
        # A message is worked on twice.
        (
            [start(), WORK, end(2, WORK), begin(2), end(3, begin(2)), verdict(4)],
            ["a message was worked on twice"],
        ),
        # One is never worked on; that it was cut off, or could not be sent, is another matter.
        ([start(), ROOT, WORK, end(2, WORK), end(3, ROOT), verdict(4)], ["a message was not worked on"]),
        ([start(), ROOT, WORK, end(2, WORK), end(3, ROOT), fault(1, 2, agent="b"), verdict(4)], []),
        # Its sender did not wait for longer, or had left before it was read; that is not so of other errors.
        ([*HALF, unsent("ConnectTimeout"), verdict(4)], []),
        ([*HALF, {"t": 2, "is": "unread", "cascade": "x", "hop": "0.1"}, verdict(4)], []),
        ([*HALF, unsent("RemoteProtocolError"), verdict(4)], ["a message was not worked on"]),
        # Work that is only noticed: nothing may be green, also when it has ended.
        ([start(), DAEMON, end(2, DAEMON), verdict(3, "Unknown")], []),
        (
            [start(), DAEMON, end(2, DAEMON), verdict(3)],
            [*["false green: work was untracked"] * 2, "Settled where it may be Unknown"],
        ),
        # Work that was dropped is not done.
        ([start(), WORK, end(2, WORK, dropped=True), verdict(3)], ["false green: work was dropped"] * 2),
        # An agent that is stopped for a while, a clock that jumps, and a proxy that repeats do no harm.
        *(
            ([start(), fault(1, 2, kind), verdict(3, said)], found)
            for kind in ("stop", "clock")
            for said, found in (("Settled", []), ("SettledWithLosses", ["Settled"]), ("Unknown", ["Unknown"]))
        ),
        ([start(), fault(1, 9, "stop"), verdict(9, "Unknown")], []),
        # But with a clock that jumps, what was never delivered is not known.
        ([start(), fault(1, 2, "clock"), unsent("ReadError"), verdict(3, "Unknown")], []),
        ([start(), fault(1, 2, "stop"), unsent("ReadError"), verdict(3, "Unknown")], ["Unknown where"]),
        ([start(), fault(1, 1, "repeat", hop="x/0.0"), verdict(9, "Unknown")], ["Unknown where"]),
        # A lost journal is not known, and its messages may run twice; a false green it never is.
        *(
            ([start(), WORK, died(2), fault(2, 3, kind), *more], found)
            for kind in ("forget", "restore")
            for more, found in (
                ([verdict(4, "Unknown")], []),
                ([begin(3, pid=6), end(4, begin(3, pid=6)), verdict(5, "Unknown")], []),
                ([begin(3, pid=6), verdict(4, "Unknown"), end(5, begin(3, pid=6))], []),
                ([verdict(4)], ["false green: work was cut"] * 2),
                ([begin(3, pid=6), verdict(4, "SettledWithLosses")], ["false green: work went on"] * 2),
            )
        ),
        # While the disk is full, its agent is one without a journal.
        ([start(), fault(1, 2, "full"), verdict(3, "Unknown", "Settled")], []),
        ([start(), verdict(3, "Unknown", "Settled")], ["it says less"]),
        # A second verdict, of a process that was started anew, is judged like the first.
        ([start(), WORK, fault(1, 8), verdict(7, "Unknown"), verdict(8)], ["false green"] * 2),
    ],
)  # fmt: skip
def test_the_judge_finds(tmp_path: Path, lines: list[dict[str, Any]], found: list[str]) -> None:
    """What was said is held against what was written down."""
    made = judge.judge(facts(tmp_path, *lines), CASCADES, untold=(), give_up=6.0)
    whats = [finding.what for finding in made.findings]
    assert len(whats) == len(found), made.findings
    assert all(what.startswith(start) for what, start in zip(whats, found, strict=True)), whats


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (("Unknown", "Settled"), []),
        (("Settled", "Settled"), ["false green: work went on"] * 2),
        (("Unknown", "Unknown"), ["Unknown where it may be Settled"]),
    ],
)
def test_the_judge_knows_by_the_plan_who_takes_no_part(
    tmp_path: Path, said: tuple[str, str], found: list[str]
) -> None:
    """Nor does what is below such an agent, whoever does it."""
    below = plans.Plan("0.0", "old", children=[plans.Plan("0.0.0", "a")])
    cascades = {"x": plans.Casc("x", plans.Plan("0", "home", children=[below]))}
    lines = (start(), ODD, begin(2, "0.0.0", joined=False), verdict(3, *said))
    made = judge.judge(facts(tmp_path, *lines), cascades, untold=(), give_up=6.0)
    assert [finding.what for finding in made.findings] == found


def test_the_judge_finds_what_was_forgotten(tmp_path: Path) -> None:
    """A cascade that was never begun has no verdict; one that was has to be known after a restart."""
    for lines, found in (([died(1)], []), ([start(), died(1)], ["it was begun, and is forgotten"])):
        made = judge.judge(facts(tmp_path, *lines), CASCADES, untold={"x"}, give_up=6.0)
        assert [finding.what for finding in made.findings] == found
        assert made.untold == 1


def test_the_judge_excuses_a_beginner_that_was_robbed(tmp_path: Path) -> None:
    """It was started again without its journal, and cannot know of the cascade."""
    robbed = facts(tmp_path, start(), died(1), fault(1, 2, "forget", agent="home"))
    assert judge.judge(robbed, CASCADES, untold={"x"}, give_up=6.0).findings == []


@pytest.mark.parametrize(("agent", "count", "found"), [("a", 1, 0), ("b", 0, 3)])
def test_the_judge_counts_copies_that_come_after_a_journal_was_lost(
    tmp_path: Path, agent: str, count: int, found: int
) -> None:
    """The agent cannot know that it has worked on them; it is another matter if another agent lost its journal."""
    first, again = begin(1), begin(6)
    lines = (
        start(), first, end(2, first), verdict(3), fault(4, 5, "forget", agent=agent), again,
        {"t": 7, "is": "copy", "agent": "rig", "pid": 1, "hop": "x/0.0", "status": 200}, end(8, again),
    )  # fmt: skip
    made = judge.judge(facts(tmp_path, *lines), CASCADES, untold=(), give_up=6.0)
    assert (made.unnoticed, len(made.findings)) == (count, found), made.findings


def test_the_judge_knows_that_an_error_without_a_header_leaves_a_message_in_doubt(
    tmp_path: Path,
) -> None:
    """It is not known whether the agent has answered, or a proxy before it."""
    below = plans.Plan("0.0", "old", fail=True)
    cascades = {"x": plans.Casc("x", plans.Plan("0", "home", children=[below]))}
    lines = (start(), ODD, end(2, ODD), verdict(3, "Unknown", "Unknown"))
    assert judge.judge(facts(tmp_path, *lines), cascades, untold=(), give_up=6.0).findings == []


def test_the_judge_counts_what_an_old_journal_cannot_know(tmp_path: Path) -> None:
    """The copy was made before the work began, and put back after that; it is another matter if it was made later."""
    for copied, count, found in ((0.5, 1, 0), (1.5, 0, 2)):
        log = facts(tmp_path, start(), WORK, died(2), fault(copied, 3, "restore"), verdict(4))
        made = judge.judge(log, CASCADES, untold=(), give_up=6.0)
        assert (made.unnoticed, len(made.findings)) == (count, found)


def test_the_judge_knows_what_is_sent_plainly(tmp_path: Path) -> None:
    """It is not of the cascade, and the cascade is not known; so where an instrumented client wrote no edge."""
    for mode, more, found in (
        ("plain", (), []),
        ("sync", (), []),
        ("httpx", (fault(1, 2, "full"),), []),
        ("httpx", (), ["work outside of its cascade", "Unknown where it may be Settled"]),
    ):
        sent = plans.Plan("0.0", "a", mode=mode)  # type: ignore[arg-type]  # one of the modes
        cascades = {"x": plans.Casc("x", plans.Plan("0", "home", children=[sent]))}
        log = facts(tmp_path, start(), ODD, end(2, ODD), *more, verdict(3, "Unknown"))
        made = judge.judge(log, cascades, untold=(), give_up=6.0)
        assert [finding.what for finding in made.findings] == found, mode
        said = facts(tmp_path, start(), ODD, end(2, ODD), verdict(3))
        assert judge.judge(said, cascades, untold=(), give_up=6.0).findings


def test_those_who_wait_for_time_are_compared(tmp_path: Path) -> None:
    """The stream closes before the work has ended, and a short wait is over too early as well."""
    first, second = begin(0.0, "0"), begin(0.1, "0.0")
    third = begin(0.2, "0.1")
    log = facts(
        tmp_path, start(), first, end(0.1, first), second, third, end(0.3, third),
        {"t": 0.1, "is": "answered", "cascade": "x", "ok": True}, end(0.5, second), verdict(0.51),
    )  # fmt: skip
    rows = list(compare.rows(log, CASCADES, {"x"}, 30.0))
    assert [(row.still_working, row.cut, row.false_red, len(row.waited)) for row in rows] == [
        (1, 0, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 1),
    ]  # fmt: skip
    assert rows[2].waited == [pytest.approx(0.1)]
    assert rows[4].waited == [pytest.approx(0.01)]


def test_a_wave_is_the_same_for_the_same_seed() -> None:
    """What is done follows from the seed and the number of the wave alone."""
    one, same, other = (plans.Mix(seed=seed).wave(3) for seed in (7, 7, 8))
    assert one == same
    assert one != other
    again = plans.Plan.from_json(one.cascades[0].plan.to_json())
    assert again == one.cascades[0].plan
