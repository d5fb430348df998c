"""Whether what was said of cascades is true, by what their agents wrote down.

What may be said depends on what was done to the agents of a cascade while it was open:

- nothing, or messages that were slow, came twice, or whose answers were lost: `Settled`, and nothing else;
- an agent died and came back, or was out of reach for a while: `Settled` or `SettledWithLosses`;
- it was away for longer than nodes wait, or has no journal: that, or `Unknown`.

Of a cascade with agents that take no part, or have no journal, this is asked of what takes part. Which work
that is follows from the plan: if what an agent has done as part of a cascade is less than that, it is wrong.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.integration.mesh.plans import Casc
    from tests.integration.mesh.truth import Course, Told, Truth

GREEN = ("Settled", "SettledWithLosses")
ANY = (*GREEN, "Unknown")
_HARMLESS = {"slow", "copy", "lose", "gateway"}


@dataclass
class Finding:
    """Something that is wrong."""

    what: str
    cascade: str
    details: str = ""


@dataclass
class Judgement:
    """What was said, and what of it is wrong."""

    cascades: int = 0
    untouched: int = 0
    """Those that no fault has met."""
    untold: int = 0
    """Those whose beginner was killed before it had begun them."""
    verdicts: Counter[str] = field(default_factory=Counter)
    touched_verdicts: Counter[str] = field(default_factory=Counter)
    works: int = 0
    cut: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    copies: Counter[int] = field(default_factory=Counter)
    delays: list[float] = field(default_factory=list)
    """Seconds from the true end to the verdict, of those that no fault has met."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def false_greens(self) -> int:
        """How often it was said that all had ended, and it had not, or something was cut."""
        return sum(finding.what.startswith("false green") for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Give it for machines."""
        return {
            "cascades": self.cascades,
            "untouched": self.untouched,
            "untold": self.untold,
            "verdicts": dict(self.verdicts),
            "verdicts_of_touched": dict(self.touched_verdicts),
            "pieces_of_work": self.works,
            "pieces_cut": self.cut,
            "faults": dict(self.faults),
            "copies": {str(status): count for status, count in self.copies.items()},
            "false_greens": self.false_greens,
            "seconds_after_the_end": spread(self.delays),
            "findings": [vars(finding) for finding in self.findings],
        }


def spread(values: list[float]) -> dict[str, float]:
    """Give the middle, the tenth from above, and the most."""
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
            elif course is not None and course.begin < math.inf:
                made.findings.append(Finding("it was begun, and is forgotten", name))
            continue
        made.findings += _outside(name, cascade, course)
        made.works += len(course.works)
        made.cut += sum(work.cut for work in course.works)
        faults = [fault for fault in truth.faults if _meets(fault, cascade, course)]
        may_be = _may_be(cascade, course, faults, give_up)
        for told in course.told:
            made.findings += _wrong(name, cascade, course, told, may_be)
        made.findings += _twice(name, cascade, course)
        if not faults and cascade.cancel_after is None:
            made.findings += _undone(name, cascade, course)
        _count(made, course, is_touched=bool(faults))
    return made


def _count(made: Judgement, course: Course, *, is_touched: bool) -> None:
    told = course.told[0]
    if is_touched:
        made.touched_verdicts[told.full] += 1
    else:
        made.untouched += 1
        made.delays.append(told.at - course.end(joined_only=True))
    made.verdicts[told.full] += 1


def _meets(fault: dict[str, Any], cascade: Casc, course: Course) -> bool:
    """Tell whether a fault may have had to do with a cascade."""
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
    harm = [fault for fault in faults if fault["kind"] not in _HARMLESS]
    away = sum(fault["to"] - fault["from"] for fault in harm)
    # Whether an agent takes part is not known before it has answered; one without a journal cannot tell
    # whether it was sent something that has not come.
    is_shy = cascade.agents & {"old", "brief"} and (
        faults or cascade.cancel_after is not None or course.unanswered
    )
    if away > give_up / 2 or is_shy:
        return ANY
    return GREEN if harm else GREEN[:1]


def _outside(name: str, cascade: Casc, course: Course) -> Iterable[Finding]:
    """Know by the plan which work is part of a cascade, and find what was done outside of it.

    A push is sent outside of it by an agent that was started anew, if its receiver has said that it
    never will take it.
    """
    shut_out = _below_old(cascade) | {
        plan.hop for plan in cascade.plan.everything() if plan.agent == "old"
    }
    for work in course.works:
        if work.agent != "hook":
            takes_part = work.hop not in shut_out
            if takes_part and not work.joined:
                yield Finding("work outside of its cascade", name, str(work))
            work.joined = takes_part


def _below_old(cascade: Casc) -> set[str]:
    """Give what is sent by an agent that takes no part, and all below that: it is not of the cascade."""
    plans = cascade.plan.everything()
    old = [child for plan in plans if plan.agent == "old" for child in plan.children]
    return {below.hop for plan in old for below in plan.everything()}


def _wrong(
    name: str, cascade: Casc, course: Course, told: Told, may_be: tuple[str, ...]
) -> Iterable[Finding]:
    about = f"{told.full}/{told.participants} {told.counts} {told.missing}"
    for said, joined_only in ((told.full, False), (told.participants, True)):
        works = [work for work in course.works if work.joined or not joined_only]
        if said in GREEN:
            for work in works:
                if work.begin > told.at or work.end > told.at:
                    late = f"{work.end - told.at:.3f} s after the verdict"
                    yield Finding("false green: work went on", name, f"{work} {late}; {about}")
        if said == "Settled":
            for work in works:
                if work.cut:
                    yield Finding("false green: work was cut", name, f"{work}; {about}")
    if told.participants not in may_be:
        yield Finding(f"{told.participants} where it may be {' or '.join(may_be)}", name, about)
    if not cascade.agents & {"old", "brief"} and told.full != told.participants:
        yield Finding("it says less than it knows", name, about)


def _undone(name: str, cascade: Casc, course: Course) -> Iterable[Finding]:
    """Find messages that nobody has worked on, where no fault has kept them from anybody.

    Nothing of it is in flight, and what is said may be true: but it is not what was to be done. What is sent by
    one that takes no part may be sent after the verdict, and meet faults that the cascade has not.
    """
    ran = {work.hop for work in course.works} | _below_old(cascade)
    if cascade.plan.hop in ran:  # else it did not begin to send any
        for plan in cascade.plan.everything():
            if plan.hop not in ran:
                yield Finding("a message was not worked on", name, f"{plan.hop} to {plan.agent}")


def _twice(name: str, cascade: Casc, course: Course) -> Iterable[Finding]:
    """Find messages that were worked on twice, by an agent with a journal."""
    ran = Counter(work.hop for work in course.works if work.name == "handler" and work.joined)
    agents = {plan.hop: plan.agent for plan in cascade.plan.everything()}
    for hop, count in ran.items():
        if count > 1 and agents[hop] != "brief":
            yield Finding("a message was worked on twice", name, f"{hop}: {count} times")
