"""What a run with samples leaves out: cases of a test, never a test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import sampling

LOOPS = ("asyncio", "uvloop", "trio")


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


def test_each_case_is_tried_on_asyncio_and_one_on_another_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A case that cannot run on asyncio is tried on another loop; after many runs, each is tried on each loop."""
    both = [Case("both", None, subject=n, backend=b) for n in range(3) for b in LOOPS]
    alone = [Case("alone", None, backend=b) for b in LOOPS]
    never = [Case("never", None, subject=n, backend=b) for n in range(2) for b in LOOPS[1:]]
    mixed = [Case("mixed", None, subject=0, backend=b) for b in LOOPS[:2]]
    mixed += [Case("mixed", None, subject=1, backend="trio")]
    items: list[Any] = [*both, *alone, *never, *mixed]
    tried: set[str] = set()
    for seed in range(50):
        names = kept(monkeypatch, seed, items)
        assert names == kept(monkeypatch, seed, items)
        tried.update(names)
        counts = {test: [n for n in names if n.startswith(test)] for test in ("both", "alone")}
        assert [len(some) for some in counts.values()] == [3 + 1, 1 + 1]
        assert all(sum("asyncio" in n for n in some) == len(some) - 1 for some in counts.values())
        assert len([name for name in names if name.startswith("mixed")]) == 2 + 1
        assert len([name for name in names if name.startswith("never")]) == 2 + 1
        assert {name[:22] for name in names if name.startswith("never")} == {
            "never[{'subject': 0, '", "never[{'subject': 1, '",
        }  # fmt: skip
    assert tried == {item.nodeid for item in items}


def test_a_test_that_says_its_sample_is_not_tied_to_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker alone decides which of its cases are tried."""
    marker = pytest.mark.sampled(1, "subject").mark
    items: list[Any] = [Case("t", marker, subject=n, backend=b) for n in range(2) for b in LOOPS]
    runs = [kept(monkeypatch, seed, items) for seed in range(50)]
    assert {len(names) for names in runs} == {2}
    assert {name for names in runs for name in names} == {item.nodeid for item in items}
