"""Which adapters there are, the versions that each is tested with, and how their known faults are run."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from tests.adapters.known_faults import Way
from tests.integration import subjects

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("outcomes.json")
WAYS: tuple[Way, ...] = get_args(Way)
_SECONDS_MAX = 280.0  # a guard against hangs

Record = dict[str, dict[str, dict[str, dict[str, str]]]]
"""By adapter, fault, version and way: what came of it."""


@dataclass(frozen=True)
class Folder:
    """A folder of tests/adapters, and what its tests need on the path."""

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
    def path(self) -> Path:
        """Where it is."""
        return Path(__file__).with_name(self.name)

    @property
    def ends(self) -> list[str]:
        """The oldest and the newest, if that is another."""
        return list(dict.fromkeys((self.versions[0], self.versions[-1])))

    def subject(self, version: str) -> str:
        """Name a version as requirements/subjects does."""
        return self.inside or f"{self.package}-{version}"

    def version(self, subject: str) -> str | None:
        """Return which version a subject is; None if it is not one of these."""
        found = [version for version in self.versions if self.subject(version) == subject]
        return found[0] if found else None

    @property
    def newest(self) -> str:
        """The subject of the newest version."""
        return self.subject(self.versions[-1])

    @property
    def fault_modules(self) -> list[str]:
        """The modules that have its known faults."""
        found = sorted(path.stem for path in self.path.glob("known_faults*.py"))
        return [f"tests.adapters.{self.name}.{stem}" for stem in found]


ADAPTERS = {
    folder.name: folder
    for folder in (
        Folder("acp", "agent-client-protocol", ("0.8.1", "0.10.1", "0.11.0", "0.12.1")),
        Folder("claude", "claude-agent-sdk", ("0.1.50", "0.1.51", "0.1.66", "0.1.68", "0.2.182")),
        Folder("mcp", "mcp", ("1.30.0", "2.3.0")),
        Folder("a2a", "a2a-sdk", ("0.3.22", "0.3.26", "1.0.0", "1.1.0", "1.2.3", "1.3.0")),
        Folder("asgi_uvicorn", "uvicorn", ("0.54.0",), inside="mcp-2.3.0"),
        Folder("asgi_hypercorn", "hypercorn", ("0.18.0",)),
        Folder("asgi_granian", "granian", ("2.8.7",)),
    )
}
# Faults of a server alone that do not happen with newer Pythons. What is recorded is from Python 3.11.
CLEAN_SINCE = {
    # There, asyncio's Server.wait_closed() waits for clients, so hypercorn does not cut the request.
    ("asgi_hypercorn", "SIGTERM while a request runs for longer than the server waits"): (3, 12),
}
# Adapters of ours they are not: the HTTP clients that a node makes and instruments.
CLIENTS = {
    folder.name: folder
    for folder in (
        Folder("clients", "aiohttp", ("3.14.5",)),
        Folder("clients_httpx2", "httpx2", ("2.16.0",), inside="mcp-2.3.0"),
        Folder("clients_models", "openai", ("3.51.0",)),
    )
}
FOLDERS = ADAPTERS | CLIENTS


def recorded() -> Record:
    """Return what tools/compatibility.py has recorded, in the order of the tables."""
    record: Record = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


@functools.cache
def outcomes(
    adapter: str, version: str, way: Way, only: frozenset[str] = frozenset()
) -> dict[str, dict[str, Any]]:
    """Run the known faults of an adapter with a version of its SDK, all or some; return what came of each."""
    subject = ADAPTERS[adapter].subject(version)
    options = [word for fault in sorted(only) for word in ("--only", fault)]
    found: dict[str, dict[str, Any]] = {}
    for module in ADAPTERS[adapter].fault_modules:
        done = subprocess.run(
            [sys.executable, "-m", "tests.adapters.known_faults", module, way, *options],
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
        found |= {line["fault"]: line for line in lines}
    return found
