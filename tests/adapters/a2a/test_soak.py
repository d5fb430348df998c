"""A short soak of the A2A adapter, and that the judge of it sees what is wrong.

`make soak` runs the long one.
"""

from __future__ import annotations

from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from tests.adapters.a2a import soak_judge
from tests.adapters.a2a.soak import Plan, soak, table

pytestmark = [pytest.mark.backends("asyncio"), pytest.mark.real_time]


@pytest.mark.timeout(100)
async def test_a_short_soak_loses_nothing() -> None:
    """Three signals, a receiver that fails every fifth time, and every kind of client."""
    plan = Plan(
        "quiesce", tasks=120, clients=12, answers=(35, 35), signals=(SIGTERM, SIGKILL, SIGTERM)
    )
    result = await soak(plan)
    assert result.ok, "\n".join([table([result]), *result.samples])
    assert result.accepted >= 120
    assert result.signals == {"SIGTERM": 3, "SIGKILL": 1}
    assert result.lives == 3


GOOD = ["submitted", "working", "completed"]
NONE_, ENDLESS, TWICE, LIED, SILENT, OTHER, DISORDER, GAPS = soak_judge.WRONG


@pytest.mark.parametrize(
    ("stored", "pushed", "told", "wrong"),
    [
        (GOOD, GOOD, ["completed"], []),
        (GOOD, ["submitted", "working", "working", "completed", "completed"], [], []),
        (["submitted", "working", "input-required", "working", "failed"],) * 2 + ([], []),
        ([], [], ["submitted"], [NONE_, ENDLESS]),
        (GOOD[:2], GOOD[:2], [], [ENDLESS]),
        ([*GOOD, "canceled"], [*GOOD, "canceled"], ["canceled"], [TWICE, OTHER]),
        (GOOD, GOOD, ["failed"], [LIED]),
        (GOOD, GOOD[:2], [], [SILENT]),
        (GOOD, [*GOOD, "failed"], [], [OTHER, DISORDER]),
        (GOOD, ["working", "submitted", "completed"], [], [DISORDER]),
        (GOOD, ["submitted", "completed"], [], [GAPS]),
        (GOOD, ["submitted", "completed", "working"], [], [DISORDER]),
        (GOOD, [*GOOD, "artifact"], [], [DISORDER]),
        (GOOD, ["submitted", "working", "artifact", "completed"], [], []),
    ],
)
def test_the_judge_sees_what_is_wrong(
    stored: list[str], pushed: list[str], told: list[str], wrong: list[str]
) -> None:
    """By the store, the receiver and the client alone."""
    sent = soak_judge.Sent(0, "blocking", "complete", rest=False, message_id="m", told=told)
    sent.task_id = "" if stored else "t"
    files = {"t": {"states": stored, "history": [{"messageId": "m"}]}} if stored else {}
    heard = [(place, _push(state)) for place, state in enumerate(pushed)]
    found = soak_judge.judged([sent], files, reversed(heard))
    assert found.accepted == 1
    assert sorted(name for name, count in found.wrong.items() if count) == sorted(wrong)


def _push(state: str) -> dict[str, Any]:
    if state == "artifact":
        return {"artifactUpdate": {"taskId": "t"}}
    return {"statusUpdate": {"taskId": "t", "status": {"state": state}}}


def test_what_nobody_has_accepted_is_not_asked_for() -> None:
    """A message that was refused, and is not stored, is no task."""
    refused = soak_judge.Sent(
        0, "blocking", "complete", rest=True, message_id="m", outcome="refused"
    )
    assert not any(soak_judge.judged([refused], {}, []).wrong.values())
