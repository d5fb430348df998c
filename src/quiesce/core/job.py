"""The job: a hold with a task behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable

__all__ = ["Job", "Outcome"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T_co]):
    """How a job ended: with a value, with an error, or cancelled."""

    status: Literal["completed", "failed", "cancelled"]
    value: T_co | None = None
    error: BaseException | None = None


class Job(Generic[T_co]):
    """One task, owned by one scope from the step in which it was spawned.

    `Scope.spawn()` makes a job. Any task may await the job, any number of times; cancelling the
    awaiting task does not cancel the job. On asyncio a job is also an `asyncio.Task`, so you can
    pass it to `asyncio.wait` and similar functions.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name given to `spawn`, or the function's."""
        raise NotImplementedError

    @property
    def key(self) -> Hashable | None:
        """The key given to `spawn`, if any."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The kind of hold: `job`."""
        raise NotImplementedError

    @property
    def since(self) -> float:
        """When the job was spawned, on the event loop's clock."""
        raise NotImplementedError

    @property
    def where(self) -> str | None:
        """The file and line that spawned the job."""
        raise NotImplementedError

    @property
    def outcome(self) -> Outcome[T_co] | None:
        """How the job ended; None while it runs."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether the job has ended."""
        raise NotImplementedError

    def cancel(self, msg: str | None = None) -> bool:
        """Ask the job to stop, and return at once; return False if the job has already ended.

        To wait for the end, await the job, which raises `JobCancelled`.
        """
        raise NotImplementedError

    def __await__(self) -> Generator[object, object, T_co]:
        """Wait for the job to end, and return its value.

        *Cancel safety*: if cancelled, the job goes on.

        *Raises*: the job's exception; `JobCancelled` if the job was cancelled; `UsageError` if the
        job awaits itself.
        """
        raise NotImplementedError

    def call_when_done(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` in the loop when the job has ended; return a function that undoes this."""
        raise NotImplementedError
