"""The settings that all runs of a sweep share."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quiesce.testing.clock import Clock

__all__: list[str] = []


class NoScenario(ArgumentError):  # noqa: N818 - named like the errors in errors.py
    """The function to sweep returned no coroutine: the caller's mistake, not a fault of a run."""


@dataclass(frozen=True)
class SweepSettings:
    """The settings that all runs of a sweep share."""

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
        message = f"a scenario must be an async function: {self.make!r} returned {given!r}, which is not a coroutine"
        raise NoScenario(message)

    def checked(self) -> BaseException | None:
        """Call the caller's own check; return the exception that it raises, including `pytest.fail()`."""
        try:
            if self.check is not None:
                self.check()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the exception is the result
            return error
        return None
