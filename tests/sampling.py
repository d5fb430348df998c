"""How much is tried of what has many points, examples or worlds: all of it, or a sample.

`make test` samples (pytest's option `--sampled`), `make test-full` does not. What is sampled changes
from run to run; it is chosen by the seed that is printed first, so that the same run can be had again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

T = TypeVar("T")


class Sample:
    """What was chosen for this run of pytest."""

    seed: int | None = None
    """None: nothing is sampled."""


def add_option(parser: pytest.Parser) -> None:
    """Add the option to pytest's."""
    parser.addoption(
        "--sampled",
        action="store_true",
        help="try samples of sweeps and models, chosen by the seed",
    )


def choose(config: pytest.Config) -> None:
    """Take the seed of the order of the tests, which is the same in all processes of a run."""
    if config.getoption("--sampled"):
        Sample.seed = int(config.getoption("randomly_seed"))


def is_sampled() -> bool:
    """Return whether this run tries samples."""
    return Sample.seed is not None


def at_most(number: int, things: Sequence[T], name: object) -> list[T]:
    """Return all of some things, in their order; if this run is sampled, at most so many of them."""
    if Sample.seed is None or len(things) <= number:
        return list(things)
    chosen = random.Random(f"{Sample.seed} {name}").sample(range(len(things)), number)  # noqa: S311 - a seed gives the same again
    return [things[index] for index in sorted(chosen)]


def fewer(number: int, sampled: int) -> int:
    """Return a number of examples; if this run is sampled, the smaller one."""
    return number if Sample.seed is None else min(number, sampled)
