"""Each folder here needs an SDK, which only this folder's runs have on their path.

`make test` runs each folder in a run of pytest of its own, with the versions that are wanted. By hand,
`pytest tests/adapters/a2a` (or a file or a test in it) puts the newest one on the path, which is safe
where nothing else is run; `QUIESCE_SUBJECT=a2a-sdk-0.3.22 pytest tests/adapters/a2a` chooses. Where
tests of several folders are asked for at once, they are left out, and it is said how to run them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.adapters.catalogue import FOLDERS
from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent


def _folder(path: Path) -> str | None:
    """Name the folder that a path is in."""
    inside = path.resolve()
    parts = inside.relative_to(HERE).parts if inside.is_relative_to(HERE) else ()
    return parts[0] if parts and parts[0] in FOLDERS else None


def pytest_configure(config: pytest.Config) -> None:
    """Put the chosen SDK on the path; the newest, if all that is asked for needs the same one."""
    chosen = os.environ.get(subjects.CHOSEN)
    if chosen is None:
        where = config.invocation_params.dir
        asked = {_folder(where / argument.partition("::")[0]) for argument in config.args}
        name = asked.pop() if len(asked) == 1 else None
        if name is None:
            return
        chosen = FOLDERS[name].newest
        os.environ.update(subjects.environment(chosen))  # what the tests start needs it as well
    # pytest-xdist gives its workers the path that this process had at its start.
    sys.path[:0] = [path for path in subjects.folders(chosen) if path not in sys.path]


class NotOnThePath(pytest.Directory):
    """A folder whose SDK is not on the path."""

    def collect(self) -> Iterable[pytest.Item]:
        """Skip it, and say how its tests are run."""
        subject = FOLDERS[self.path.name].newest
        pytest.skip(
            f"{subject} is not on the path: run `make test`, or `pytest tests/adapters/{self.path.name}`"
            " alone"
        )


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Leave out the folders whose SDK is not on the path."""
    folder = FOLDERS.get(path.name) if path.parent == HERE else None
    chosen = os.environ.get(subjects.CHOSEN)
    if folder is None or (chosen and folder.version(chosen) is not None):
        return None
    left_out: pytest.Collector = NotOnThePath.from_parent(parent, path=path)
    return left_out
