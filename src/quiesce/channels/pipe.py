"""A producer and its reader, started and stopped as a pair."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quiesce.channels.channel import Channel
from quiesce.core import arguments
from quiesce.core.owner import owner_of
from quiesce.core.python_private import get_frame
from quiesce.errors import JobCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from quiesce.core.job import Job
    from quiesce.core.scope import Scope

__all__ = ["Pipe", "pipe"]

T = TypeVar("T")
R = TypeVar("R")


def pipe(
    producer: Callable[[Channel[T]], Coroutine[Any, Any, object]],
    reader: Callable[[Channel[T]], Coroutine[Any, Any, R]],
    *,
    maxsize: int | None = 100,
    name: str = "pipe",
    scope: Scope | None = None,
) -> Pipe[T, R]:
    """Start a producer and its reader as two jobs of a scope, with a channel between them.

    The two end together. When the producer ends, the channel closes: the reader gets the queued
    items, and then its loop ends. If the producer failed or was cancelled, the reader gets a
    `ChannelClosed` with that error as its cause instead. When the reader ends, for any reason,
    the producer is cancelled and the channel closes. An error of either job is in the scope's
    report, as for any job.

    Args:
        producer: An async function that is called with the channel and sends items into it.
        reader: An async function that is called with the channel and reads it.
        maxsize: The number of items that fit into the channel; None: no limit.
        name: The channel's name; the jobs are named `name producer` and `name reader`.
        scope: The owning scope; the current scope by default.

    *Raises*: `ScopeClosed` if the scope has begun to close, as `Scope.spawn` does.
    """
    for fn in (producer, reader):
        arguments.check_callable(fn, "pipe")
    owner = owner_of("a pipe", scope)
    channel: Channel[T] = Channel(maxsize, name=name, scope=owner)
    made = Pipe(owner, producer, reader, channel)
    frame = get_frame(1)
    jobs: tuple[Any, ...] = (made.producer, made.reader)
    for job in jobs:  # reports name the caller's line, not a line of this function
        job.started_code, job.started_offset = frame.f_code, frame.f_lasti
    channel.place_code, channel.place_offset = frame.f_code, frame.f_lasti
    return made


class Pipe(Generic[T, R]):
    """A producer and its reader; made by `pipe()`. Awaiting the pipe returns the reader's result."""

    __slots__ = ("channel", "producer", "reader")

    def __init__(
        self,
        scope: Scope,
        producer: Callable[[Channel[T]], Coroutine[Any, Any, object]],
        reader: Callable[[Channel[T]], Coroutine[Any, Any, R]],
        channel: Channel[T],
    ) -> None:
        """Start both jobs in one step."""
        self.channel: Channel[T] = channel
        started: list[Job[Any]] = []
        try:
            self.reader: Job[R] = scope.spawn(reader, channel, name=f"{channel.name} reader")
            started.append(self.reader)
            self.producer: Job[object] = scope.spawn(
                producer, channel, name=f"{channel.name} producer"
            )
        except BaseException:
            channel.close()
            for job in started:
                job.cancel()
            raise
        self.producer.call_when_done(self._producer_ended)
        self.reader.call_when_done(self._reader_ended)

    def cancel(self) -> bool:
        """Cancel both jobs. Return False if both had already ended."""
        cancelled = [job.cancel() for job in (self.producer, self.reader)]
        return any(cancelled)

    def __await__(self) -> Generator[Any, Any, R]:
        """Wait until both jobs have ended, and return the reader's result.

        *Cancel safety*: cancelling the task that awaits the pipe does not affect the jobs.

        *Raises*: the reader's error, or else the producer's; `JobCancelled` if the reader was
        cancelled.
        """
        return self._result().__await__()

    async def _result(self) -> R:
        with suppress(Exception):  # the reader's error comes first
            await self.producer
        result = await self.reader
        outcome = self.producer.outcome
        if outcome is not None and outcome.error is not None:
            raise outcome.error
        return result

    def _producer_ended(self) -> None:
        outcome = self.producer.outcome
        if self.reader.done():
            self.channel.close(immediate=True)
        elif outcome is not None and outcome.status == "cancelled":
            self.channel.close(error=JobCancelled(f"{self.producer.name} was cancelled"))
        else:
            self.channel.close(error=None if outcome is None else outcome.error)

    def _reader_ended(self) -> None:
        if not self.producer.cancel():
            # Otherwise `_producer_ended` closes it: the cancelled producer must not get a
            # `ChannelClosed` that would count as its failure.
            self.channel.close(immediate=True)
