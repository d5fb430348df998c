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
    """If this run is sampled, remove the cases that the marker `sampled` lets it leave out.

    `sampled(number, *names)` keeps at most this many cases for each combination of the named arguments.
    """
    groups: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items if is_sampled() else ():
        marker = item.get_closest_marker("sampled")
        if marker is not None:
            number, *names = marker.args
            test, _, _ = item.nodeid.partition("[")
            arguments: Any = item.callspec.params if names else {}  # type: ignore[attr-defined]  # parametrized
            groups[test, number, *(id(arguments[name]) for name in names)].append(item)
    kept: set[int] = set()
    for place, ((test, number, *_), group) in enumerate(
        groups.items()
    ):  # ids differ between processes
        kept.update(id(item) for item in at_most(number, group, (test, place)))
    left_out = [item for group in groups.values() for item in group if id(item) not in kept]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in gone]
