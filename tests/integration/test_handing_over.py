"""Work that handlers hand to task queues, unmodified: the receipt names the queue, the task and the line."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import subjects

pytestmark = pytest.mark.usual

_SECONDS_MAX = 100.0  # a guard against hangs
ROUTES = {
    "queues-1": {
        "celery": "celery task app.send_invoice",
        "celery_by_name": "celery task app.elsewhere",
        "rq": "rq job tests.integration.handing_over.work",
        "rq_later": "rq job tests.integration.handing_over.work",
        "arq": "arq job send_invoice",
        "dramatiq": "dramatiq message work",
        "taskiq": "taskiq task send_invoice",
        "huey": "huey task work",
        "procrastinate": "procrastinate job send_invoice",
        "redis_list": "redis LPUSH jobs",
    },
    "libraries-1": {
        "redis_list": "redis LPUSH jobs",
        "redis_raw": "redis RPUSH jobs",
        "redis_async": "redis XADD stream",
        "redis_publish": "redis PUBLISH news",
        "apscheduler": "apscheduler job tests.integration.handing_over.work",
        "apscheduler_thread": "apscheduler job tests.integration.handing_over.work",
    },
}
SILENT = {
    "queues-1": ["celery_eager", "celery_declared", "celery_detached", "huey_immediate"],
    "libraries-1": [
        "redis_cache",
        "redis_declared",
        "apscheduler_declared",
        "apscheduler_recurring",
    ],
}


@functools.cache  # also if it fails: a subject is run once
def run(subject: str) -> subprocess.CompletedProcess[str]:
    """Run all handlers of a subject."""
    return subprocess.run(
        [sys.executable, "-m", "tests.integration.handing_over", *ROUTES[subject], *SILENT[subject]],
        cwd=Path(__file__).parents[2],
        env=subjects.environment(subject),
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )  # fmt: skip


def outcome(subject: str, name: str) -> dict[str, Any]:
    """Return what became of the message whose handler hands something over."""
    ran = run(subject)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    named: dict[str, dict[str, Any]] = {line["name"]: line for line in lines}
    return named[name]


@pytest.mark.timeout(105)  # it starts a server, and imports every library
@pytest.mark.parametrize(
    ("subject", "name"), [(subject, name) for subject, names in ROUTES.items() for name in names]
)
def test_what_is_handed_over_is_named(subject: str, name: str) -> None:
    """Once, with its place and the line that declares it; no verdict of the whole is green."""
    found, route = outcome(subject, name), ROUTES[subject][name]
    assert found["full"] == "Unknown", found
    (missing,) = found["missing"]
    assert f"{route}, handed over at " in missing
    assert "tests/integration/handing_over.py:" in missing
    assert (
        f" in {name}. If no cascade has to wait for this work, declare it: Node(services="
        in missing
    )
    assert f'["{route}"]' in missing
    is_here = route.startswith("apscheduler")
    assert ("hop.working()" in missing) is is_here
    assert (found["opaque"], found["untracked"]) == ((0, 1) if is_here else (1, 0))
    assert found["participants"] == ("Unknown" if is_here else "Settled"), found


@pytest.mark.timeout(105)  # as above
@pytest.mark.parametrize(
    ("subject", "name"), [(subject, name) for subject, names in SILENT.items() for name in names]
)
def test_what_is_not_handed_over_or_is_declared_is_settled(subject: str, name: str) -> None:
    """Work that runs in place, a cache, a service, and what is started in `detached()`."""
    found = outcome(subject, name)
    assert found["full"] == "Settled", found
