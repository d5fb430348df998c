"""What a run with samples leaves out: cases of a test, never a test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import sampling


class Case:
    """A case of a parametrized test, as pytest collects it."""

    def __init__(self, test: str, marker: pytest.Mark | None, **arguments: object) -> None:
        """Name the case by the test and its arguments."""
        self.nodeid = f"{test}[{arguments}]"
        self.callspec = SimpleNamespace(params=arguments)
        self._marker = marker

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        """Return the marker `sampled` of the test."""
        assert name == "sampled"
        return self._marker


def kept(monkeypatch: pytest.MonkeyPatch, seed: int | None, items: list[Any]) -> list[str]:
    """Return the names of the cases that a run with this seed tries."""
    monkeypatch.setattr(sampling.Sample, "seed", seed)
    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))  # noqa: PLW0108 - pytest names it
    tried = list(items)
    config: Any = SimpleNamespace(hook=hook)
    sampling.leave_out(config, tried)
    assert {id(item) for item in [*tried, *left_out]} == {id(item) for item in items}
    assert tried == [item for item in items if item in tried], "the order has changed"
    return [item.nodeid for item in tried]


def cases(test: str, *arguments: Any) -> list[Any]:
    """Return twelve cases of a test: each of three subjects on four loops."""
    marker = pytest.mark.sampled(*arguments).mark if arguments else None
    return [Case(test, marker, subject=one, loop=two) for one in range(3) for two in range(4)]


def test_every_test_and_every_named_argument_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampled run tries so many cases of each test, or for each combination of the named arguments."""
    items = [*cases("all"), *cases("two", 2), *cases("each", 1, "subject"), *cases("many", 99)]
    for seed in range(50):
        names = kept(monkeypatch, seed, items)
        tried = {test: [n for n in names if n.startswith(test)] for test in ("all", "two", "each")}
        assert [len(some) for some in tried.values()] == [12, 2, 3]
        assert all(f"'subject': {n}" in name for n, name in enumerate(tried["each"]))
        assert len([name for name in names if name.startswith("many")]) == 12


def test_the_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of a run chooses the same cases, each run others, and in the end each case is tried."""
    items = cases("each", 1, "subject")
    runs = [kept(monkeypatch, seed, items) for seed in range(50)]
    assert runs == [kept(monkeypatch, seed, items) for seed in range(50)]
    assert {name for names in runs for name in names} == {item.nodeid for item in items}


def test_a_full_run_tries_all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a seed nothing is left out."""
    assert len(kept(monkeypatch, None, cases("each", 1, "subject"))) == 12
