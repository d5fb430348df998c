"""Test subjects: packages of a pinned version that only programs in a process of their own import."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def environment(name: str, **variables: str) -> dict[str, str]:
    """Give the environment for a program that imports a subject (`"a-package-1.2.3"`).

    `make test` installs every requirements/subjects/*.lock in a folder of the interpreter's
    environment; here it is put in front on the path. A subject that is not there is a failure, not
    a reason to skip: the tests that need it would go quiet.
    """
    folder = Path(sys.prefix, "subjects", name)
    if not (folder / ".ready").exists():
        pytest.fail(
            f"The test subject {name} is not installed in {sys.prefix}: run `make test`, which"
            f" installs requirements/subjects/{name}.lock there.",
            pytrace=False,
        )
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables
