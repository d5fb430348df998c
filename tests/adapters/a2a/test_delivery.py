"""How pushes get to their receivers: signed, tried again, given up, sent again, and how many wait."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import Scope
from quiesce.errors import UsageError
from quiesce.integrations.a2a import DurablePushSender, MemoryOutbox, SqliteOutbox
from quiesce.integrations.a2a.push.push_lanes import DeliveryRules, Lanes
from quiesce.integrations.a2a.push.push_outbox import Push, TaskNote
from quiesce.integrations.a2a.push.push_post import NotTaken, Refused
from quiesce.integrations.a2a.push.push_sender import Pushes
from quiesce.pool.backoff import Backoff
from quiesce.testing import sweep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from quiesce.integrations.a2a import Outbox

pytestmark = pytest.mark.backends("asyncio", "uvloop")
NEVER = Backoff(first_seconds=0, longest_seconds=0)
RULES = {"attempts_max": 3, "keep_seconds": 1e9, "pending_max": 100, "connections": 8}


def push(task_id: str, url: str = "http://receiver.test/", **options: Any) -> Push:
    """Return a push."""
    return Push(task_id, url, {}, b"{}", "working ", **options)


class Lines:
    """Lanes, and what has come out of them."""

    def __init__(self, lanes: Lanes, outbox: Outbox, scope: Scope) -> None:
        """Record the lanes, their outbox and their scope; nothing was sent."""
        self.lanes = lanes
        self.outbox = outbox
        self.scope = scope

    async def send(self, *pushes: Push) -> None:
        """Write pushes, and send them."""
        await self.outbox.write(TaskNote("task", "", "", ()), pushes)
        self.lanes.send(pushes)

    async def dead(self) -> list[str]:
        """Name the tasks of the dead letters."""
        return [letter.task_id for letter in await self.outbox.dead_letters()]


@asynccontextmanager
async def sending(
    deliver: Callable[[Push], Awaitable[None]], outbox: Outbox | None = None, **rules: Any
) -> AsyncIterator[Lines]:
    """Open lanes for the block."""
    chosen: dict[str, Any] = {"backoff": NEVER} | RULES | rules
    outbox = outbox or MemoryOutbox()
    async with Scope("server") as scope:
        await outbox.open()
        try:
            yield Lines(Lanes(scope, outbox, deliver, DeliveryRules(**chosen)), outbox, scope)
            await scope.aclose()
        finally:
            await outbox.close()


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    ("after", "waited"), [(0.0, 10.0), (5.0, 10.0), (60.0, 60.0), (1e6, 3600.0)]
)
async def test_a_receiver_may_ask_for_more_time(after: float, waited: float) -> None:
    """Never for less than the back-off, and not for ever."""
    times: list[float] = []

    async def deliver(each: Push) -> None:
        times.append(asyncio.get_running_loop().time())
        if each.attempts < 2:
            raise NotTaken("busy", after)

    async with sending(deliver, backoff=Backoff(first_seconds=10)) as line:
        await line.send(push("a"))
        await line.scope.idle()
    assert times[2] - times[1] == pytest.approx(waited)


@pytest.mark.backends("asyncio")
async def test_a_push_that_is_too_old_is_given_up_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not before: one that the server itself was too long away for is tried all the same."""
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    tried: list[str] = []

    async def deliver(each: Push) -> None:
        tried.append(each.task_id)
        if each.task_id != "fine":
            raise NotTaken("busy")

    async with sending(deliver, keep_seconds=100, attempts_max=5) as line:
        await line.send(push("old", at=900.0), push("fine", at=1.0), push("new", at=901.0))
        await line.scope.idle()
        assert sorted(tried) == ["fine", *["new"] * 5, "old"]
        assert sorted(await line.dead()) == ["new", "old"]


async def test_the_oldest_are_given_up_if_too_many_wait() -> None:
    """Not those that are being tried; and what comes after them is sent."""
    gate, begun = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    async def deliver(each: Push) -> None:
        begun.set()
        await gate.wait()
        done.append(each.task_id)

    async with sending(deliver, pending_max=3, connections=1) as line:
        await line.send(push("a"))
        await begun.wait()
        await line.send(*(push(task) for task in "bcdefg"))
        gate.set()
        await line.scope.idle()
        assert sorted(done) == ["a", "f", "g"]
        assert await line.dead() == ["b", "c", "d", "e"]
        (letter, *_) = await line.outbox.dead_letters()
        assert "more than 3" in letter.why
        assert not await line.outbox.pending()


async def test_a_receiver_that_hangs_leaves_connections_to_the_others() -> None:
    """However many pushes there are for it."""
    gate, done = asyncio.Event(), asyncio.Event()

    async def deliver(each: Push) -> None:
        if "hangs" in each.url:
            await gate.wait()
        else:
            done.set()

    async with sending(deliver, connections=4) as line:
        await line.send(*(push(str(task), "http://hangs.test/") for task in range(20)))
        await line.send(push("other"))
        await done.wait()
        gate.set()
        await line.scope.idle()


async def test_a_delivery_that_breaks_holds_up_nothing() -> None:
    """Whatever it raises: it is tried again, and then given up, and the next one is sent."""
    done: list[bytes] = []

    async def deliver(each: Push) -> None:
        if each.body == b"bad":
            raise ZeroDivisionError("a secret")
        done.append(each.body)

    async with sending(deliver) as line:
        bad, good = push("a"), push("a")
        bad.body, good.body = b"bad", b"good"
        await line.send(bad, good)
        await line.scope.idle()
        assert done == [b"good"]
        (letter,) = await line.outbox.dead_letters()
        assert (letter.why, letter.attempts) == ("ZeroDivisionError", 3)


class Broken(MemoryOutbox):
    """An outbox whose file has gone."""

    async def sent(self, push: Push) -> None:
        """Fail."""
        raise sqlite3.OperationalError("disk I/O error")

    async def failed(self, push: Push, why: str) -> None:
        """Fail."""
        raise sqlite3.OperationalError("disk I/O error")

    async def dead(self, push: Push, why: str) -> None:
        """Fail."""
        raise sqlite3.OperationalError("disk I/O error")


async def test_an_outbox_that_fails_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The pushes are sent, in order; the log says what the outbox did not take."""
    done: list[int] = []

    async def deliver(each: Push) -> None:
        done.append(len(each.body))
        if each.attempts == 0:
            raise NotTaken("busy")
        if len(each.body) == 2:
            raise Refused("gone")

    async with sending(deliver, Broken()) as line:
        pushes = [push("a") for _ in range(3)]
        for size, each in enumerate(pushes, 1):
            each.body = b"x" * size
        await line.send(*pushes)
        await line.scope.idle()
    assert done == [1, 1, 2, 2, 3, 3]
    assert "the outbox was not changed" in caplog.text


@pytest.mark.real_time
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
@pytest.mark.parametrize("cancel", ["native", "scope", "child"])
def test_a_push_is_delivered_or_in_the_file_wherever_it_is_cancelled(
    tmp_path: Path, backend: Any, cancel: Any
) -> None:
    """At every await of the sender, and of its jobs: nothing is lost, nothing is left open."""
    path = tmp_path / "outbox.db"
    sent: list[str] = []
    done: list[str] = []

    async def deliver(each: Push) -> None:
        await asyncio.sleep(0)
        if each.attempts == 0 and each.task_id == "a":
            raise NotTaken("busy")
        if each.task_id == "b":
            raise Refused("gone")
        done.append(each.id)

    async def scenario() -> None:
        sent.clear()
        done.clear()
        path.unlink(missing_ok=True)
        async with sending(deliver, SqliteOutbox(path)) as line:
            for task in "aabc":
                each = push(task)
                await line.send(each)
                sent.append(each.id)
            await line.scope.idle()

    def check() -> None:
        connection = sqlite3.connect(path)
        kept = [row[0] for row in connection.execute("select id from pushes")]
        kept += [row[0] for row in connection.execute("select id from dead")]
        connection.close()
        assert not set(sent) - set(done) - set(kept), "a push is lost"

    found = sweep(scenario, backend=backend, where="all", cancel=cancel, check=check, runs_max=120)
    assert found.ok, str(found)


class Forgetful(MemoryOutbox):
    """An outbox in a file that can no longer be written, and can be closed."""

    durable = True
    closed = False

    async def forget(self, task_ids: Any) -> None:
        """Fail."""
        raise sqlite3.OperationalError("disk I/O error")

    async def close(self) -> None:
        """Take note."""
        self.closed = True


async def test_an_outbox_that_fails_at_the_end_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """What it could not forget, the next start looks at in vain."""
    outbox = Forgetful()
    pushes = Pushes(DurablePushSender(outbox), None)
    async with Scope("server") as scope:
        await pushes.open(scope)
        pushes.recall([TaskNote("task", "", "", ())])
        pushes.ended("task")
        await pushes.close()
    assert outbox.closed
    assert "could not be removed from the outbox" in caplog.text


async def test_what_was_given_up_is_sent_only_by_an_open_handler() -> None:
    """Who asks too early is told what to do."""
    with pytest.raises(UsageError, match="its handler is not open"):
        await DurablePushSender(MemoryOutbox()).resend()
