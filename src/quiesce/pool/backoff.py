"""How long to wait before starting again what keeps failing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiesce.core import arguments
from quiesce.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Backoff"]

_KEYS_MIN = 64  # that have failed, kept before old ones are let go


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next start of a runner that keeps failing.

    After the first failure (a failed start, or an exit that nobody asked for) there is no wait;
    after the second it is `first_seconds`, and `factor` times as long after each further one. A
    key that might have failed for `healthy_seconds`, and has not, begins anew.
    """

    first_seconds: float = 0.5
    factor: float = 2.0
    longest_seconds: float = 30.0
    healthy_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("first_seconds", "longest_seconds", "healthy_seconds"):
            arguments.seconds(name, getattr(self, name))
        if arguments.seconds("factor", self.factor) < 1:
            message = f"factor must be 1 or more, not {self.factor!r}"
            raise ArgumentError(message)

    def delay(self, failures: int) -> float:
        """Return the wait after so many failures in a row, in seconds."""
        if failures <= 1 or not self.first_seconds:
            return 0.0
        try:
            delay = self.first_seconds * float(self.factor) ** (failures - 2)
        except OverflowError:
            delay = math.inf
        return min(delay, self.longest_seconds)


@dataclass(slots=True)
class History:
    """How a key has fared."""

    failures: int = 0
    failed_at: float = -math.inf
    not_before: float = -math.inf

    def fine_since(self) -> float:
        """Return the time from which on it could have failed again."""
        return max(self.failed_at, self.not_before)


class Histories:
    """The failures of all keys, as long as they matter."""

    __slots__ = ("_backoff", "_found", "_limit")

    def __init__(self, backoff: Backoff | None) -> None:
        self._backoff = backoff
        self._found: dict[Hashable, History] = {}
        self._limit = _KEYS_MIN

    def __len__(self) -> int:
        return len(self._found)

    def not_before(self, key: Hashable) -> float:
        """Return the time before which a key must not be started again."""
        history = self._found.get(key)
        return -math.inf if history is None else history.not_before

    def failed(self, key: Hashable, now: float) -> None:
        """Note a failure."""
        if self._backoff is None:
            return
        history = self._found.setdefault(key, History())
        if now - history.fine_since() >= self._backoff.healthy_seconds:
            history.failures = 0
        history.failures += 1
        history.failed_at = now
        history.not_before = now + self._backoff.delay(history.failures)
        if len(self._found) > self._limit:
            self._forget(now - self._backoff.healthy_seconds)

    def _forget(self, before: float) -> None:
        """Drop histories that are too old to matter, seldom enough to cost little."""
        self._found = {
            key: history for key, history in self._found.items() if history.fine_since() > before
        }
        self._limit = max(_KEYS_MIN, 2 * len(self._found))
