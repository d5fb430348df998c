"""Threads of pools that the guard lets be."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from quiesce.testing.leaks import running_threads

if TYPE_CHECKING:
    import pytest


def test_a_thread_of_trio_that_is_about_to_begin_may_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine it begins after hundreds of looks."""
    worker: Any = SimpleNamespace(_job="what nobody wants any more")
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 500:
            worker._job = None

    monkeypatch.setattr(running_threads, "time", SimpleNamespace(sleep=look))
    thread = threading.Thread(target=print)
    assert running_threads._is_idle_in_trio(thread, worker)
    assert len(looks) == 500
