"""How long to wait before restarting a runner that keeps failing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiesce.core import arguments
from quiesce.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Backoff"]

_KEYS_MIN = 64  # so many failed keys are kept before old ones are dropped


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waiting times between the starts of a runner that keeps failing.

    A failure is a failed start, or an exit that was not asked for. After the first failure there is no
    wait; after the second it is `first_seconds`, then `factor` times as long after each further one,
    up to `longest_seconds`. The count resets after `healthy_seconds` without a failure, not counting the
    waits.
    """

    first_seconds: float = 0.5
    factor: float = 2.0
    longest_seconds: float = 30.0
    healthy_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Raise `ArgumentError` for values that cannot work."""
        for name in ("first_seconds", "longest_seconds", "healthy_seconds"):
            arguments.seconds(name, getattr(self, name))
        if arguments.seconds("factor", self.factor) < 1:
            message = f"factor must be 1 or more, not {self.factor!r}"
            raise ArgumentError(message)

    def delay(self, failures: int) -> float:
        """Return the wait in seconds after this many failures in a row."""
        if failures <= 1 or not self.first_seconds:
            return 0.0
        try:
            delay = self.first_seconds * float(self.factor) ** (failures - 2)
        except OverflowError:
            delay = math.inf
        return min(delay, self.longest_seconds)


@dataclass(slots=True)
class History:
    """The failures of one key."""

    failures: int = 0
    failed_at: float = -math.inf
    not_before: float = -math.inf

    def fine_since(self) -> float:
        """Return the time since which the key could have failed again."""
        return max(self.failed_at, self.not_before)


class Histories:
    """The failures of all keys; old ones are dropped."""

    __slots__ = ("_backoff", "_limit", "by_key")

    def __init__(self, backoff: Backoff | None) -> None:
        self._backoff = backoff
        self.by_key: dict[Hashable, History] = {}
        self._limit = _KEYS_MIN

    def __len__(self) -> int:
        return len(self.by_key)

    def not_before(self, key: Hashable) -> float:
        """Return the time before which the key must not be started."""
        history = self.by_key.get(key)
        return -math.inf if history is None else history.not_before

    def failed(self, key: Hashable, now: float) -> None:
        if self._backoff is None:
            return
        history = self.by_key.setdefault(key, History())
        if now - history.fine_since() >= self._backoff.healthy_seconds:
            history.failures = 0
        history.failures += 1
        history.failed_at = now
        history.not_before = now + self._backoff.delay(history.failures)
        if len(self.by_key) > self._limit:
            self._forget(now - self._backoff.healthy_seconds)

    def _forget(self, before: float) -> None:
        """Drop histories that are too old to matter; called seldom, so that it costs little."""
        self.by_key = {
            key: history for key, history in self.by_key.items() if history.fine_since() > before
        }
        self._limit = max(_KEYS_MIN, 2 * len(self.by_key))
