"""What the tests of `escapes` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quiesce import detached
from quiesce.core.backends import running_backend
from quiesce.mesh import current_hop

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh import Hop
    from quiesce.testing import Escapes

on_asyncio = pytest.mark.backends("asyncio", "uvloop")
real_time = pytest.mark.real_time  # threads and processes do not know of any other
FOLDER = Path(__file__).parent


def here() -> Hop:
    """Return the hop that the running code works for."""
    hop = current_hop()
    assert hop is not None
    return hop


def later(call: Callable[[], object]) -> None:
    """Call a function in the next turn of the loop, outside of the hop: its handler has returned by then."""
    with detached():
        running_backend().soon(call)


def places(found: Escapes, *, only: str | None = None) -> list[tuple[str, str]]:
    """Return the fate and the route of each place ; all are in this folder."""
    assert all(one.where.startswith(f"{FOLDER}/") for one in found), str(found)
    return [(one.fate, one.route) for one in found if only is None or one.fate == only]
