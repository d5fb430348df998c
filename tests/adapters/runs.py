"""Which adapters there are, the versions that each is tested with, and how their rows are run."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from tests.adapters.rows import Way
from tests.integration import subjects

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("outcomes.json")
WAYS: tuple[Way, ...] = get_args(Way)
_SECONDS_MAX = 280.0  # a guard against hangs

Record = dict[str, dict[str, dict[str, dict[str, str]]]]
"""By adapter, row, version and way: what came of it."""


@dataclass(frozen=True)
class Adapter:
    """An adapter, and what it is tested with."""

    name: str
    package: str
    versions: tuple[str, ...]
    """From the oldest to the newest; those between are the last before and the first after a change."""
    inside: str | None = None
    """The subject that has the package among others, if it has none of its own."""

    @property
    def module(self) -> str:
        """The module below `quiesce.integrations`."""
        return self.name.partition("_")[0]

    @property
    def ends(self) -> list[str]:
        """The oldest and the newest, if that is another."""
        return list(dict.fromkeys((self.versions[0], self.versions[-1])))

    def subject(self, version: str) -> str:
        """Name a version as requirements/subjects does."""
        return self.inside or f"{self.package}-{version}"

    @property
    def row_modules(self) -> list[str]:
        """The modules that have its rows."""
        return _modules(f"{self.name}*_rows.py")

    @property
    def case_modules(self) -> list[str]:
        """The modules that have its other tests; pytest does not collect them by itself."""
        return _modules(f"{self.name}*_cases.py")


def _modules(pattern: str) -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob(pattern))


ADAPTERS = {
    adapter.name: adapter
    for adapter in (
        Adapter("acp", "agent-client-protocol", ("0.8.1", "0.10.1", "0.11.0", "0.12.1")),
        Adapter("claude", "claude-agent-sdk", ("0.1.50", "0.1.51", "0.1.66", "0.1.68", "0.2.182")),
        Adapter("mcp", "mcp", ("1.30.0", "2.3.0")),
        Adapter("a2a", "a2a-sdk", ("0.3.22", "0.3.26", "1.0.0", "1.1.0", "1.2.3", "1.3.0")),
        Adapter("asgi_uvicorn", "uvicorn", ("0.54.0",), inside="mcp-2.3.0"),
        Adapter("asgi_hypercorn", "hypercorn", ("0.18.0",)),
        Adapter("asgi_granian", "granian", ("2.8.7",)),
    )
}


def recorded() -> Record:
    """Return what tools/compatibility.py has recorded, in the order of the tables."""
    record: Record = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


@functools.cache
def outcomes(adapter: str, version: str, way: Way) -> dict[str, dict[str, Any]]:
    """Run all rows of an adapter with a version of its SDK; gives each row's outcome and details."""
    subject = ADAPTERS[adapter].subject(version)
    found: dict[str, dict[str, Any]] = {}
    for module in ADAPTERS[adapter].row_modules:
        done = subprocess.run(
            [sys.executable, "-m", "tests.adapters.rows", f"tests.adapters.{module}", way],
            cwd=ROOT,
            env=subjects.environment(subject),
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode:
            message = f"{module} with {subject} could not be run:\n{done.stderr}"
            raise AssertionError(message)
        found |= {line["row"]: line for line in lines}
    return found
