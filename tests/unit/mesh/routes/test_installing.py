"""When the functions by which work leaves hops are replaced, and how the replacements look."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from quiesce.mesh.routes import installing
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    import pytest

    from quiesce.core.patches import Patch


async def test_a_replaced_coroutine_function_is_still_one() -> None:
    """Frameworks ask before they call or await."""
    ask: Any = inspect if sys.version_info >= (3, 12) else asyncio
    assert ask.iscoroutinefunction(asyncio.Queue.get)
    async with World() as world:
        await world.add("a")
        assert ask.iscoroutinefunction(asyncio.Queue.get)


def test_nodes_of_two_threads_replace_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits for the first, and everything is restored after both."""
    asked = threading.Event()
    made: list[str] = []
    others: list[threading.Thread] = []
    ends: list[Any] = []

    class Backend:
        name = "trio"
        loop = None

    class Lock:
        def __init__(self) -> None:
            self._lock = threading.RLock()

        def __enter__(self) -> Self:
            if threading.current_thread() in others:
                asked.set()
            self._lock.acquire()
            return self

        def __exit__(self, *error: object) -> None:
            self._lock.release()

    def everywhere() -> list[Patch]:
        made.append(threading.current_thread().name)
        if len(made) == 1:
            other = threading.Thread(
                target=lambda: ends.append(installing.install_routes(Backend()))  # type: ignore[arg-type]  # as far as it is used
            )
            others.append(other)
            other.start()
            assert asked.wait(30)
        return []

    monkeypatch.setattr(installing, "_lock", Lock())
    monkeypatch.setattr(installing, "_everywhere", everywhere)
    installed: dict[object, object] = {}
    monkeypatch.setattr(installing, "_installed", installed)
    ends.append(installing.install_routes(Backend()))  # type: ignore[arg-type]  # as above
    others[0].join()
    assert len(made) == 1
    for end in ends:
        end()
    assert not installed
