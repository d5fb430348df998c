"""Cancelled sends, receives and closes: no item is lost or doubled, and nobody is left waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Channel, ChannelFull, Scope, pipe
from tests.stress import turns
from tests.sweeping import Plan, sweep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class Ledger:
    """One channel, with all that went in and came out."""

    def __init__(self, scope: Scope, maxsize: int = 1) -> None:
        self.channel = Channel[int](maxsize, scope=scope)
        self.tap = self.channel.tap(1)
        self.sent: list[int] = []
        self.got: list[int] = []
        self.tapped: list[int] = []

    async def send(self, first: int = 0, count: int = 4) -> None:
        """Send some items, and note each that was taken."""
        for item in range(first, first + count):
            await self.channel.send(item)
            self.sent.append(item)

    async def read(self, how: str = "receive", count: int = 100) -> None:
        """Read some items, and note each."""
        if how == "receive":
            for _ in range(count):
                self.got.append(await self.channel.receive())
        elif how == "batch":
            while len(self.got) < count:
                self.got.extend(await self.channel.batch(2))
        else:
            reader: AsyncIterator[Any]
            reader = aiter(self.channel) if how == "async for" else self.channel.batches(2)
            async for items in reader:
                self.got.extend(items if isinstance(items, list) else [items])
                await turns(1)
                if len(self.got) >= count:
                    break

    async def read_tap(self, count: int = 100) -> None:
        """Read the tap."""
        for _ in range(count):
            self.tapped.append(await self.tap.receive())

    def check(self, scope: Scope) -> None:
        """See that everything that was sent is accounted for, exactly once."""
        assert sorted([*self.got, *self.channel.undelivered]) == sorted(self.sent)
        assert sorted([*self.tapped, *self.tap.undelivered]) == sorted(self.sent)
        numbers = self.channel.stats
        assert (numbers.sent, numbers.received) == (len(self.sent), len(self.got))
        assert (numbers.depth, numbers.readers_waiting, numbers.senders_waiting) == (0, 0, 0)
        assert scope.report is not None
        undelivered = len(self.channel.undelivered) + len(self.tap.undelivered)
        assert len(scope.report.undelivered) == undelivered
        assert not scope.report.stuck


async def audited(body: Callable[[Scope, Ledger], Awaitable[object]]) -> None:
    """Do something with a channel, close the scope whatever happens, and audit the channel."""
    scope = await Scope.open("a", on_error=lambda *_: None)
    ledger = Ledger(scope)
    try:
        await body(scope, ledger)
    finally:
        try:
            with anyio.CancelScope(shield=True):
                await scope.aclose()
        finally:
            ledger.check(scope)


async def sending() -> None:
    """Send beside another sender; the readers are cancelled in the end."""

    async def body(scope: Scope, ledger: Ledger) -> None:
        scope.spawn(ledger.read)
        scope.spawn(ledger.read_tap)
        scope.spawn(ledger.send, 100)
        await ledger.send()

    await audited(body)


async def reading(how: str, count: int = 6) -> None:
    """Read beside another reader."""

    async def body(scope: Scope, ledger: Ledger) -> None:
        scope.spawn(ledger.read_tap)
        scope.spawn(ledger.read, "receive", 2)
        scope.spawn(ledger.send, 0, 5)
        scope.spawn(ledger.send, 100, 5)
        await ledger.read(how, count)

    await audited(body)


async def receiving() -> None:
    """Read by `receive()`."""
    await reading("receive")


async def batching() -> None:
    """Read by `batch()`."""
    await reading("batch")


async def looping() -> None:
    """Read by `async for`."""
    await reading("async for")


async def looping_over_batches() -> None:
    """Read by `async for … in batches()`."""
    await reading("batches")


async def tapping() -> None:
    """Read a tap."""

    async def body(scope: Scope, ledger: Ledger) -> None:
        scope.spawn(ledger.read)
        scope.spawn(ledger.send)
        await ledger.read_tap(4)

    await audited(body)


async def closing() -> None:
    """Await a reader that takes its time, and whose end closes the channel."""

    async def body(scope: Scope, ledger: Ledger) -> None:
        reader = scope.spawn(ledger.read, "async for")
        ledger.channel.read_by(reader)
        scope.spawn(ledger.read_tap)
        scope.spawn(ledger.send)
        await turns(2)
        ledger.channel.close()
        await reader

    await audited(body)


async def piping() -> None:
    """Await a pipe."""
    sent: list[int] = []
    got: list[int] = []

    async def produce(channel: Channel[int]) -> None:
        for item in range(4):
            await channel.send(item)
            sent.append(item)

    async def read(channel: Channel[int]) -> None:
        async for item in channel:
            got.append(item)
            await turns(1)

    scope = await Scope.open("a")
    pair = pipe(produce, read, maxsize=1, scope=scope)
    try:
        await pair
        assert got == [0, 1, 2, 3]
    finally:
        try:
            with anyio.CancelScope(shield=True):
                await scope.aclose()
        finally:
            assert pair.channel.closed
            assert sorted([*got, *pair.channel.undelivered]) == sent


SUBJECTS = [
    sending,
    receiving,
    batching,
    looping,
    looping_over_batches,
    tapping,
    closing,
    piping,
]
KINDS = [
    ("asyncio", "native"),
    ("uvloop", "native"),
    ("asyncio", "anyio"),
    ("uvloop", "anyio"),
    ("trio", "anyio"),
]
KINDS_WITH_TURNS = [KINDS[0], KINDS[2], KINDS[4]]


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("times", ["once", "twice", "on"])
@pytest.mark.parametrize(("backend", "kind"), KINDS)
def test_cancelled_at_each_suspension(
    backend: str, kind: str, times: str, subject: Callable[[], Any]
) -> None:
    """Cancelled wherever it waits, every item is accounted for."""
    assert sweep(backend, subject, Plan(kind, "suspensions", times)) == []


@pytest.mark.sampled(3, "subject")
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("times", ["once", "on"])
@pytest.mark.parametrize(("backend", "kind"), KINDS_WITH_TURNS)
def test_cancelled_at_each_turn(
    backend: str, kind: str, times: str, subject: Callable[[], Any]
) -> None:
    """Cancelled at any moment, every item is accounted for."""
    assert sweep(backend, subject, Plan(kind, "turns", times)) == []


# What a sweep of one task does not reach: somebody else acts in the very step of the cancellation.


async def test_a_cancelled_reader_is_passed_over() -> None:
    """An item that comes in the step in which a reader is cancelled goes to the next, once."""
    got: list[int] = []

    async def read() -> None:
        got.append(await channel.receive())

    async with Scope("a") as scope:
        channel = Channel[int]()
        readers = []
        for _ in range(3):
            readers.append(scope.spawn(read))
            await turns(2)
        readers[0].cancel()
        channel.send_nowait(1)
        await turns()
        assert got == [1]
        assert channel.stats.readers_waiting == 1
        channel.send_nowait(2)
        await turns()
        assert got == [1, 2]


async def test_a_reader_that_is_cancelled_after_it_was_woken_passes_the_item_on() -> None:
    """An item that a reader was woken for, and did not take, goes to the next one who waits."""
    got: list[int] = []

    async def read() -> None:
        got.append(await channel.receive())

    async with Scope("a") as scope:
        channel = Channel[int]()
        readers = []
        for _ in range(3):
            readers.append(scope.spawn(read))
            await turns(2)
        channel.send_nowait(1)
        readers[0].cancel()
        await turns()
        assert got == [1]
        channel.send_nowait(2)
        await turns()
        assert got == [1, 2][: len(got)]
        for reader in readers:
            reader.cancel()
        await turns()
        got.extend(await channel.batch() if len(channel) else [])
        assert got == [1, 2]


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancelled_sender_leaves_its_room_to_the_next(*, cancel_first: bool) -> None:
    """The bound holds, and the next sender gets in, when room and cancellation come together."""
    async with Scope("a") as scope:
        channel = Channel[int](1)
        channel.send_nowait(0)
        senders = []
        for item in (1, 2, 3):
            senders.append(scope.spawn(channel.send, item))
            await turns(2)
        if cancel_first:
            senders[0].cancel()
        assert await channel.receive() == 0
        if not cancel_first:
            senders[0].cancel()
        await turns()
        assert len(channel) == 1
        with pytest.raises(ChannelFull):
            channel.send_nowait(9)
        got = []
        while len(channel):
            got.append(await channel.receive())
            await turns()
        assert got in ([2, 3], [1, 2, 3])  # trio lets it finish what it was woken for
        assert channel.stats.senders_waiting == 0


async def test_all_readers_cancelled_while_items_come() -> None:
    """Every reader is cancelled in the step that wakes it: the items are all still there."""
    async with Scope("a") as scope:
        channel = Channel[int]()
        readers = [scope.spawn(channel.receive) for _ in range(10)]
        await turns()
        for item, reader in enumerate(readers):
            if item % 2:
                reader.cancel()
            channel.send_nowait(item)
            reader.cancel()
        await turns()
        left = await channel.batch() if len(channel) else []
        outcomes = [reader.outcome for reader in readers]
        taken = [o.value for o in outcomes if o is not None and o.status == "completed"]
        assert sorted([*left, *(item for item in taken if item is not None)]) == list(range(10))
