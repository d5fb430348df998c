"""What all runs of a sweep have in common."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quiesce.testing.clock import Clock

__all__: list[str] = []


class NoScenario(ArgumentError):  # noqa: N818 - it says what happened, as those in errors.py
    """What was to be swept gives no coroutine: the caller's mistake, and no fault of a run."""


@dataclass(frozen=True)
class SweepSettings:
    """What all runs of a sweep have in common."""

    make: Callable[[], Coroutine[Any, Any, Any]]
    clock: Clock
    hang_seconds: float
    settle_seconds: float
    check: Callable[[], object] | None
    raises: tuple[type[BaseException], ...]
    allow: Sequence[str]

    def scenario(self) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a new run."""
        given: object = self.make()
        if isinstance(given, Coroutine):
            return given
        message = f"a scenario is an async function: {self.make!r} gave {given!r}, and no coroutine"
        raise NoScenario(message)

    def checked(self) -> BaseException | None:
        """Ask the caller's own oracle; return what it raises, be it `pytest.fail()`."""
        try:
            if self.check is not None:
                self.check()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - it is the answer
            return error
        return None
