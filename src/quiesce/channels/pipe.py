"""A producer and its reader, started and stopped as a pair."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quiesce.channels.channel import Channel
from quiesce.core import arguments
from quiesce.core.owner import owner_of
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
    """Start a producer and its reader, with a channel between them, as two jobs of a scope.

    They end together. When the producer has ended, the channel is closed: the reader gets what
    is left in it, and then the end; or, if the producer has failed or was cancelled, a
    `ChannelClosed` with that as its cause. When the reader has ended, well or not, nobody is
    there to read: the channel is closed at once, and the producer is cancelled. What either
    raised is in the scope's report, as for any job.

    Args:
        producer: An async function that sends into the channel that it is given.
        reader: An async function that reads it.
        maxsize: How many items the channel has room for; None: any number.
        name: What the channel is called; the jobs are called `name producer` and `name reader`.
        scope: Who owns them; the current scope by default.

    *Raises*: `ScopeClosed` if the closing has begun, as `Scope.spawn` does.
    """
    for fn in (producer, reader):
        arguments.check_callable(fn, "pipe")
    owner = owner_of("a pipe", scope)
    channel: Channel[T] = Channel(maxsize, name=name, scope=owner)
    made = Pipe(owner, producer, reader, channel)
    frame = sys._getframe(1)
    jobs: tuple[Any, ...] = (made.producer, made.reader)
    for job in jobs:  # the line that matters is the caller's
        job._code_started, job._offset_started = frame.f_code, frame.f_lasti
    channel._code, channel._offset = frame.f_code, frame.f_lasti
    return made


class Pipe(Generic[T, R]):
    """A producer and its reader; made by `pipe()`. Awaiting it gives what the reader returned."""

    __slots__ = ("channel", "producer", "reader")

    def __init__(
        self,
        scope: Scope,
        producer: Callable[[Channel[T]], Coroutine[Any, Any, object]],
        reader: Callable[[Channel[T]], Coroutine[Any, Any, R]],
        channel: Channel[T],
    ) -> None:
        """Start both, in one step."""
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
        self.producer._when_done(self._producer_ended)
        self.reader._when_done(self._reader_ended)

    def cancel(self) -> bool:
        """Ask both to stop. False if both have ended already."""
        cancelled = [job.cancel() for job in (self.producer, self.reader)]
        return any(cancelled)

    def __await__(self) -> Generator[Any, Any, R]:
        """Wait for the end of both, and give what the reader returned.

        *Cancel safety*: cancelling the waiter leaves both alone.

        *Raises*: what the reader raised, or else the producer; `JobCancelled` if the reader was
        cancelled.
        """
        return self._result().__await__()

    async def _result(self) -> R:
        with suppress(Exception):  # what it raised comes second
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
            self.channel.close(immediate=True)  # else when it has ended: it is not to blame
