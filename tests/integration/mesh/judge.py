"""Whether what was said of cascades is true, by what their agents wrote down.

What may be said depends on what was done to the agents of a cascade while it was open:

- nothing, or messages that were slow, came twice, or whose answers were lost: `Settled`, and nothing else;
- an agent died and came back, or was out of reach for a while: `Settled` or `SettledWithLosses`;
- it was away for longer than nodes wait, or has no journal, or lost it, or could not write it: that, or `Unknown`;
- it left work behind in a way that is only noticed (`plans.UNTRACKED`): `Unknown`, and nothing else.

Of a cascade with agents that take no part, or have no journal, this is asked of what takes part. Which work
that is follows from the plan: if what an agent has done as part of a cascade is less than that, it is wrong.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.integration.mesh.plans import UNTRACKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.integration.mesh.plans import Casc
    from tests.integration.mesh.truth import Course, Told, Truth

GREEN = ("Settled", "SettledWithLosses")
ANY = (*GREEN, "Unknown")
_HARMLESS = {"slow", "copy", "lose", "gateway", "stop", "clock", "repeat"}
_AMNESIA = {"forget", "restore"}
_TOO_LATE = ("ConnectTimeout", "PoolTimeout", "ReadTimeout", "WriteTimeout")
_ONE_STEP = frozenset({"callback", "timer"})  # patterns whose work is one step, which ends it


@dataclass
class Finding:
    """Something that is wrong."""

    what: str
    cascade: str
    details: str = ""
    mode: str = ""
    """Of a false green: what `settled()` was asked to require."""


@dataclass
class Judgement:
    """What was said, and what of it is wrong."""

    cascades: int = 0
    untouched: int = 0
    """Those that no fault has met."""
    clean: int = 0
    """Those, of which every agent takes part with a journal, and nothing is untracked: all of them have to be settled."""
    clean_settled: int = 0
    untold: int = 0
    """Those whose beginner was killed before it had begun them."""
    verdicts: Counter[str] = field(default_factory=Counter)
    touched_verdicts: Counter[str] = field(default_factory=Counter)
    works: int = 0
    cut: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    patterns: Counter[str] = field(default_factory=Counter)
    """Pieces of work by pattern, and messages by how they were sent."""
    unread: int = 0
    """Messages whose sender had left before they were read: none of them was worked on."""
    unnoticed: int = 0
    """Wrong verdicts of cascades with work that began after an old copy of its agent's journal was made, and before that
    was put back: what nobody was told of, nobody can miss. They are counted here, and are not findings.
    """
    copies: Counter[int] = field(default_factory=Counter)
    delays: list[float] = field(default_factory=list)
    """Seconds from the true end to the verdict, of those that no fault has met."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def false_greens(self) -> int:
        """How often it was said that all had ended, and it had not, or something was cut."""
        return sum(finding.what.startswith("false green") for finding in self.findings)

    @property
    def needless_unknowns(self) -> int:
        """How often it was said that it is not known, and nothing was in the way."""
        return sum(finding.what.startswith("Unknown where") for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        modes = Counter(finding.mode for finding in self.findings if finding.mode)
        return {
            "cascades": self.cascades,
            "untouched": self.untouched,
            "clean": self.clean,
            "clean_settled": self.clean_settled,
            "untold": self.untold,
            "verdicts": dict(self.verdicts),
            "verdicts_of_touched": dict(self.touched_verdicts),
            "pieces_of_work": self.works,
            "pieces_cut": self.cut,
            "faults": dict(self.faults),
            "copies": {str(status): count for status, count in self.copies.items()},
            "patterns": dict(sorted(self.patterns.items())),
            "unread": self.unread,
            "unnoticed": self.unnoticed,
            "false_greens": self.false_greens,
            "false_greens_by_mode": {mode: modes[mode] for mode in ("full", "participants")},
            "needless_unknowns": self.needless_unknowns,
            "seconds_after_the_end": spread(self.delays),
            "findings": [vars(finding) for finding in self.findings],
        }


def spread(values: list[float]) -> dict[str, float]:
    """Return the middle, the tenth from above, and the most."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 4),
        "p90": round(ordered[int(len(ordered) * 0.9)], 4),
        "max": round(ordered[-1], 4),
    }


def judge(
    truth: Truth, cascades: Mapping[str, Casc], untold: Iterable[str], give_up: float
) -> Judgement:
    """Judge all cascades of a run."""
    made = Judgement(cascades=len(cascades))
    made.faults.update(fault["kind"] for fault in truth.faults)
    made.copies.update(copy["status"] for copy in truth.copies)
    for name, cascade in cascades.items():
        course = truth.courses.get(name)
        if course is None or not course.told:
            made.untold += 1
            if name not in untold:
                made.findings.append(Finding("no verdict", name))
            elif course is not None and course.begin < math.inf and not _is_robbed(truth, cascade):
                made.findings.append(Finding("it was begun, and is forgotten", name))
            continue
        made.unnoticed += _forgive_copies(truth, name, course)
        faults = [fault for fault in truth.faults if _meets(fault, cascade, course)]
        _mark_plain(cascade, course, is_full=any(one["kind"] == "full" for one in faults))
        made.findings += _outside(name, cascade, course)
        made.works += len(course.works)
        made.cut += sum(work.cut for work in course.works)
        may_be = _may_be(cascade, course, faults, give_up)
        if _shares_worker(name, cascade, cascades, truth):
            may_be = ("Unknown", *may_be)
        for told in course.told:
            wrong = list(_wrong(name, cascade, course, told, may_be))
            if _is_unmade(course, faults):
                made.unnoticed += bool(wrong)
            else:
                made.findings += wrong
            # An agent whose disk is full is one without a journal.
            is_shy = cascade.agents & {"old", "brief"} or any(
                one["kind"] == "full" for one in faults
            )
            if told.full != told.participants and not is_shy:
                made.findings.append(Finding("it says less than it knows", name, str(told)))
        if not any(fault["kind"] in _AMNESIA for fault in faults):
            made.findings += _twice(name, cascade, course)
        if not faults and cascade.cancel_after is None:
            made.findings += _undone(name, cascade, course)
        made.unread += len(course.unread)
        made.patterns.update(_patterns(cascade, course))
        _count(made, course, is_touched=bool(faults))
        if not (faults or cascade.agents & {"old", "brief"} or _untracked(cascade, course)):
            made.clean += 1
            made.clean_settled += course.told[0].full == course.told[0].participants == "Settled"
    return made


def _is_robbed(truth: Truth, cascade: Casc) -> bool:
    """Return whether the agent that began a cascade lost its journal."""
    starter = cascade.plan.agent
    return any(fault["kind"] in _AMNESIA and fault["agent"] == starter for fault in truth.faults)


def _is_unmade(course: Course, faults: list[dict[str, Any]]) -> bool:
    """Return whether an agent got back a journal that is older than work of the cascade that it has begun."""
    return any(
        fault["kind"] == "restore"
        and fault["agent"] == work.agent
        and fault["from"] <= work.begin < fault["to"]
        for fault in faults
        for work in course.works
    )


def _forgive_copies(truth: Truth, name: str, course: Course) -> int:
    """Take out what ran again because of a copy that an agent got after it had lost its journal; return how often.

    Nothing is left there by which the copy could be known, and the verdict may have been given before: a limit, see
    docs/evidence/mesh.md.
    """
    count = 0
    for copy in truth.copies:
        cascade, _, hop = str(copy["hop"]).partition("/")
        if cascade != name:
            continue
        ran = sorted(work.begin for work in course.works if (work.hop, work.name) == (hop, "handler"))  # fmt: skip
        agents = {work.agent for work in course.works if work.hop == hop}
        lost = [one["to"] for one in truth.faults if one["kind"] in _AMNESIA and one["agent"] in agents]  # fmt: skip
        if len(ran) > 1 and any(ran[0] < at for at in lost):
            again = ran[1]
            course.works = [work for work in course.works if work.begin < again or not work.hop.startswith(hop)]  # fmt: skip
            count += 1
    return count


def _patterns(cascade: Casc, course: Course) -> Iterable[str]:
    """Name the patterns in which something of a cascade was really done."""
    ran = {work.hop for work in course.works}
    yield from (
        work.name for work in course.works if work.name not in {"root", "handler", "tail", "push"}
    )
    for plan in cascade.plan.everything():
        for child in plan.children:
            if child.hop in ran:
                yield from (("self",) if child.agent == plan.agent else ())
                yield from ((child.mode,) if child.mode in {"httpx", "sync", "plain"} else ())


def _count(made: Judgement, course: Course, *, is_touched: bool) -> None:
    told = course.told[0]
    if is_touched:
        made.touched_verdicts[told.full] += 1
    else:
        made.untouched += 1
        made.delays.append(told.at - course.end(joined_only=True))
    made.verdicts[told.full] += 1


def _meets(fault: dict[str, Any], cascade: Casc, course: Course) -> bool:
    """Return whether a fault may have had to do with a cascade."""
    if fault["hop"]:  # whenever that was sent
        return str(fault["hop"]).startswith(f"{cascade.name}/")
    if fault["from"] > course.told[0].at or fault["to"] < course.begin:
        return False
    if fault["pair"]:
        return tuple(fault["pair"]) in cascade.pairs
    return fault["agent"] in cascade.agents


def _may_be(
    cascade: Casc, course: Course, faults: list[dict[str, Any]], give_up: float
) -> tuple[str, ...]:
    kinds = {fault["kind"] for fault in faults}
    harm = [fault for fault in faults if fault["kind"] not in _HARMLESS]
    away = sum(fault["to"] - fault["from"] for fault in faults if fault in harm or fault["kind"] == "stop")  # fmt: skip
    # Whether an agent takes part is not known before it has answered; one without a journal cannot tell
    # whether it was sent something that has not come.
    is_met = faults or cascade.cancel_after is not None or course.unanswered
    is_shy = bool(cascade.agents & {"old", "brief"} and is_met)
    # An error without a header may be that of a proxy: an agent that takes no part is then not known for one.
    is_shy |= any(plan.agent == "old" and plan.fail for plan in cascade.plan.everything())
    # With a clock that jumped, what was never delivered cannot be told from what was forgotten.
    is_undelivered = harm or cascade.cancel_after is not None or course.unanswered
    is_late = "clock" in kinds and is_undelivered
    if away > give_up / 2 or is_shy or is_late or kinds & {*_AMNESIA, "full"}:
        may_be: tuple[str, ...] = ANY
    else:
        may_be = GREEN if harm else GREEN[:1]
    if _untracked(cascade, course):
        return ("Unknown",) if may_be == GREEN[:1] else ("Unknown", "SettledWithLosses")
    # A plain message that has left, and was not answered: its sender cannot know that it was not worked on.
    doubted = {hop for hop, why in course.unanswered.items() if why != "ConnectError"}
    is_plain = any(plan.mode == "plain" and plan.hop in doubted for plan in cascade.plan.everything())  # fmt: skip
    return ("Unknown", *may_be) if is_plain else may_be


def _untracked(cascade: Casc, course: Course) -> set[str]:
    """Return the messages with work that quiesce can only notice; by the plan, and by what was begun."""
    ran = {work.hop for work in course.works if work.name in UNTRACKED}
    sent = {work.hop for work in course.works}
    plain = {plan.hop for plan in cascade.plan.everything() if plan.mode == "plain" and plan.hop in sent}  # fmt: skip
    outside = _not_of_it(cascade)
    return {hop for hop in ran | plain if hop not in outside or hop in plain - _below_old(cascade)}


def _shares_worker(name: str, cascade: Casc, cascades: Mapping[str, Casc], truth: Truth) -> bool:
    """Return whether a cascade of the same wave has had the same worker, and has work that quiesce only notices.

    A worker that is woken by an event may take the jobs of several cascades at one wake-up. What it then sends is sent
    for all of them, so a message whose work is untracked makes each of them `Unknown`.
    """
    wave, own = name.partition(".")[0], _woken_agents(cascade)
    return any(
        other.partition(".")[0] == wave
        and own & _woken_agents(casc)
        and other in truth.courses
        and _untracked(casc, truth.courses[other])
        for other, casc in cascades.items()
        if own and other != name
    )


def _woken_agents(cascade: Casc) -> set[str]:
    """Return the agents in which a worker that is woken by an event works for a cascade."""
    woken = {"deque", "deque-send"}
    return {plan.agent for plan in cascade.plan.everything() if plan.pattern in woken}


def _mark_plain(cascade: Casc, course: Course, *, is_full: bool) -> None:
    """Take messages for plain ones that were sent by an instrumented client, and could not be written down.

    No request fails because of `node.instrument()`: if the journal is full, or the event loop too busy for a thread, it
    is sent as it is, and noticed.
    """
    unjoined = {work.hop for work in course.works if not work.joined}
    for plan in cascade.plan.everything():
        if plan.hop in unjoined and (plan.mode == "sync" or (plan.mode == "httpx" and is_full)):
            plan.mode = "plain"


def _outside(name: str, cascade: Casc, course: Course) -> Iterable[Finding]:
    """Set by the plan which work is part of a cascade, and yield what was done outside of it.

    A push is sent outside of it by an agent that was started anew, if its receiver has said that it
    never will take it.
    """
    shut_out = _not_of_it(cascade)
    for work in course.works:
        if work.agent != "hook":
            takes_part = work.hop not in shut_out
            if takes_part and not work.joined:
                yield Finding("work outside of its cascade", name, str(work))
            work.joined = takes_part


def _below_old(cascade: Casc) -> set[str]:
    """Return what is sent by an agent that takes no part, and all below that: it is not of the cascade."""
    plans = cascade.plan.everything()
    old = [child for plan in plans if plan.agent == "old" for child in plan.children]
    return {below.hop for plan in old for below in plan.everything()}


def _not_of_it(cascade: Casc) -> set[str]:
    """Return the messages that are not of the cascade: to and below an agent that takes no part, and sent plainly."""
    plans = cascade.plan.everything()
    plain = [below.hop for plan in plans if plan.mode == "plain" for below in plan.everything()]
    return _below_old(cascade) | {plan.hop for plan in plans if plan.agent == "old"} | set(plain)


def _wrong(
    name: str, cascade: Casc, course: Course, told: Told, may_be: tuple[str, ...]
) -> Iterable[Finding]:
    about = f"{told.full}/{told.participants} {told.counts} {told.missing}"
    for said, mode in ((told.full, "full"), (told.participants, "participants")):
        joined_only = mode == "participants"
        works = [work for work in course.works if work.joined or not joined_only]
        if said in GREEN:
            for work in works:
                if work.dropped and work.name in _ONE_STEP and cascade.cancel_after is not None:
                    continue  # cancelled before its only step: the end is when Python freed it
                if work.begin > told.at or work.end > told.at:
                    late = f"{work.end - told.at:.3f} s after the verdict"
                    yield Finding(
                        "false green: work went on", name, f"{work} {late}; {about}", mode
                    )
        if said == "Settled":
            for hop in sorted(_untracked(cascade, course)):
                yield Finding("false green: work was untracked", name, f"{hop}; {about}", mode)
            for work in works:
                if work.dropped and cascade.cancel_after is None:
                    yield Finding("false green: work was dropped", name, f"{work}; {about}", mode)
                if work.cut:
                    yield Finding("false green: work was cut", name, f"{work}; {about}", mode)
    if told.participants not in may_be:
        yield Finding(f"{told.participants} where it may be {' or '.join(may_be)}", name, about)


def _undone(name: str, cascade: Casc, course: Course) -> Iterable[Finding]:
    """Find messages that nobody has worked on, where no fault has kept them from anybody.

    Nothing of it is in flight, and what is said may be true: but it is not what was to be done. What is sent by
    one that takes no part may be sent after the verdict, and meet faults that the cascade has not. On a busy machine, a
    sender may have waited too long, and left: before the message was sent, or before its agent could read it.
    """
    late = {hop for hop, why in course.unanswered.items() if why in _TOO_LATE} | course.unread
    plans = {plan.hop: plan for plan in cascade.plan.everything()}
    excused = {below.hop for hop in late if hop in plans for below in plans[hop].everything()}
    ran = {work.hop for work in course.works} | _not_of_it(cascade) | excused
    if cascade.plan.hop in ran:  # else it did not begin to send any
        for plan in cascade.plan.everything():
            if plan.hop not in ran:
                why = course.unanswered.get(
                    plan.hop, "its sender had an answer, or did not send it"
                )
                yield Finding(
                    "a message was not worked on", name, f"{plan.hop} to {plan.agent}: {why}"
                )


def _twice(name: str, cascade: Casc, course: Course) -> Iterable[Finding]:
    """Find messages that were worked on twice, by an agent with a journal."""
    ran = Counter(work.hop for work in course.works if work.name == "handler" and work.joined)
    agents = {plan.hop: plan.agent for plan in cascade.plan.everything()}
    for hop, count in ran.items():
        if count > 1 and agents[hop] != "brief":
            yield Finding("a message was worked on twice", name, f"{hop}: {count} times")
