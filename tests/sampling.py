"""Samples for tests that have many points, examples or worlds to try.

`make test` tries samples (pytest's option `--sampled`); `make test-full` tries everything. The seed that is
printed first chooses the samples, so they differ from run to run, and a run can be repeated with its seed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

T = TypeVar("T")
LOOP = "backend"  # the argument that names the event loop of a test
USUAL_LOOP = "asyncio"  # on which time is virtual


class Sample:
    """The settings for this run of pytest."""

    seed: int | None = None
    """The seed of the samples; None if this run tries everything."""


def add_option(parser: pytest.Parser) -> None:
    """Add the option `--sampled` to pytest."""
    parser.addoption(
        "--sampled",
        action="store_true",
        help="try samples of sweeps and models, chosen by the seed",
    )


def choose(config: pytest.Config) -> None:
    """Set the seed from the tests' order, which is the same in all processes of a run."""
    if config.getoption("--sampled"):
        Sample.seed = int(config.getoption("randomly_seed"))


def is_sampled() -> bool:
    """Return whether this run tries samples."""
    return Sample.seed is not None


def at_most(number: int, things: Sequence[T], name: object) -> list[T]:
    """Return all things, in their order; in a sampled run, a sample of at most `number`."""
    if Sample.seed is None or len(things) <= number:
        return list(things)
    chosen = random.Random(f"{Sample.seed} {name}").sample(range(len(things)), number)  # noqa: S311 - a seed gives the same again
    return [things[index] for index in sorted(chosen)]


def fewer(number: int, sampled: int) -> int:
    """Return how many examples to try: `number`, or `sampled` in a sampled run."""
    return number if Sample.seed is None else min(number, sampled)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If this run is sampled, remove the cases that it need not try.

    `sampled(number, *names)` keeps at most this many cases for each combination of the named arguments.
    Every other test has each of its cases on one event loop, asyncio if possible, and one on another loop.
    """
    marked: dict[Any, list[pytest.Item]] = defaultdict(list)
    on_loops: dict[Any, list[pytest.Item]] = defaultdict(list)
    left_out: list[pytest.Item] = []
    for item in items if is_sampled() else ():
        marker = item.get_closest_marker("sampled")
        test, _, _ = item.nodeid.partition("[")
        arguments: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        if marker is not None:
            number, *names = marker.args
            marked[test, number, *(id(arguments[name]) for name in names)].append(item)
        elif LOOP in arguments:
            on_loops[test].append(item)
    for place, ((test, number, *_), group) in enumerate(
        marked.items()
    ):  # ids differ between processes
        left_out += _without(at_most(number, group, (test, place)), group)
    for test, group in on_loops.items():
        others = _without(_once_each(test, group), group)
        left_out += _without(at_most(1, others, test), others)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = _without(left_out, items)


def _once_each(test: str, items: list[pytest.Item]) -> list[pytest.Item]:
    """Return each case of a test once: on asyncio, or on a loop that the seed chooses."""
    cases: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        arguments = item.callspec.params.items()  # type: ignore[attr-defined]  # parametrized
        cases[tuple(id(value) for name, value in arguments if name != LOOP)].append(item)
    chosen = []
    for place, group in enumerate(cases.values()):
        usual = [item for item in group if item.callspec.params[LOOP] == USUAL_LOOP]  # type: ignore[attr-defined]  # the same
        chosen += usual or at_most(1, group, (test, place))
    return chosen


def _without(some: list[pytest.Item], items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the items that are not among some of them."""
    gone = {id(item) for item in some}
    return [item for item in items if id(item) not in gone]
