"""The A2A adapter's pushes: in order, authenticated, kept through crashes, and only where allowed."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import stat
from typing import TYPE_CHECKING, Any

import pytest
from a2a.server.tasks import InMemoryTaskStore

from quiesce.errors import ArgumentError, UsageError
from quiesce.integrations.a2a import DurablePushSender, MemoryOutbox, SqliteOutbox
from quiesce.integrations.a2a.push.push_outbox import Push, PushTarget, TaskNote
from quiesce.pool.backoff import Backoff
from tests.adapters.a2a import kit
from tests.adapters.a2a.pushing_handler import LOCAL, PushingAgent, authenticate
from tests.adapters.a2a.server import webhook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.backends("asyncio", "uvloop"),
    pytest.mark.real_time,
    # Names are looked up by threads of the event loop's own.
    pytest.mark.quiesce(allow=[*kit.LEFT_TO_THE_COLLECTOR, "thread:asyncio_*"]),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    for name in ("a2a", "quiesce.a2a"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    yield
    for name in ("a2a", "quiesce.a2a"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize("statuses", [[], [503], [503, 200, 500, 429]], ids=str)
async def test_the_states_of_a_task_arrive_in_order_each_once(statuses: list[int]) -> None:
    """Also if the receiver fails now and then."""
    async with webhook() as hook:
        hook.statuses = list(statuses)
        served = PushingAgent()
        await served.send("update turn complete", webhook=hook.url)
        await served.handler.idle()
        states = hook.states()
        assert states[0] == "submitted"
        assert states[-1] == "completed"
        assert states.count("completed") == 1
        assert states[1:-1] == ["working"] * len(states[1:-1])
        assert (await served.handler.drain()).ok


async def test_a_message_without_a_receiver_is_pushed_to_nobody() -> None:
    """Also by a version of the SDK that stores an empty configuration for it."""
    served = PushingAgent()
    await served.send("complete")
    await served.handler.idle()
    assert not await served.sender.dead_letters()
    await served.handler.drain()


async def test_artifacts_are_pushed_between_the_states() -> None:
    """They come after the state before them, and before the one after."""
    async with webhook() as hook:
        served = PushingAgent()
        await served.send("artifact complete", webhook=hook.url)
        await served.handler.idle()
        made = [
            place
            for place, body in enumerate(hook.heard)
            if "artifactUpdate" in body or body.get("artifacts")
        ]
        assert made
        assert 0 < made[0] < len(hook.heard) - (1 if kit.FIRST else 0)
        await served.handler.drain()


async def test_a_receiver_that_fails_does_not_hold_up_another() -> None:
    """Each has its own order, and its own retries."""
    async with webhook() as bad, webhook() as good:
        bad.statuses = [500] * 1000
        served = PushingAgent(attempts_max=1000)
        failing = await served.send("park", webhook=bad.url)
        await served.send("complete", webhook=good.url)
        assert await good.until("completed")
        assert failing.id in str(served.handler.frontier())
        bad.statuses = []
        await served.handler.idle()
        assert bad.states()[-1] == "input-required"
        await served.handler.drain()


async def test_a_push_that_is_given_up_is_a_dead_letter_and_the_next_is_tried() -> None:
    """It says why."""
    async with webhook() as hook:
        hook.statuses = [500, 500]
        served = PushingAgent(attempts_max=2)
        task = await served.send("complete", webhook=hook.url)
        await served.handler.idle()
        (letter,) = await served.sender.dead_letters()
        assert (letter.task_id, letter.url, letter.attempts) == (task.id, hook.url, 2)
        assert "500" in letter.why
        assert hook.states()[-1] == "completed"
        await served.handler.drain()


@pytest.mark.parametrize(("status", "why"), [(302, "redirect"), (307, "redirect"), (410, "gone")])
async def test_redirects_are_not_followed(status: int, why: str) -> None:
    """They would lead past the check of the address; one that is gone is not asked again."""
    async with webhook() as hook, webhook() as other:
        hook.statuses = [status] * 100
        hook.extra = f"location: {other.url}\r\n"
        served = PushingAgent()
        await served.send("complete", webhook=hook.url)
        await served.handler.idle()
        letters = await served.sender.dead_letters()
        assert letters
        assert all(why in letter.why and letter.attempts == 1 for letter in letters)
        assert not other.requests
        await served.handler.drain()


async def test_a_push_is_authenticated_as_its_configuration_says() -> None:
    """The token, and the scheme with its credentials."""
    async with webhook() as hook:
        served = PushingAgent()
        params = kit.request("complete", webhook=hook.url)
        authenticate(params, "Bearer", "a secret")
        await served.handler.on_message_send(params, kit.call_context())
        await served.handler.idle()
        for headers in hook.headers:
            assert headers["x-a2a-notification-token"] == "a token"
            assert headers["authorization"] == "Bearer a secret"
            assert headers["content-type"] == "application/json"
        numbers = [headers["x-quiesce-push"] for headers in hook.headers]
        assert len(set(numbers)) == len(numbers)
        await served.handler.drain()


async def test_a_push_that_is_too_large_is_a_dead_letter() -> None:
    """It is not tried."""
    async with webhook() as hook:
        served = PushingAgent(bytes_max=10)
        await served.send("complete", webhook=hook.url)
        await served.handler.idle()
        letters = await served.sender.dead_letters()
        assert letters
        assert "bytes" in letters[0].why
        assert not hook.requests
        await served.handler.drain()


async def test_a_receiver_that_does_not_answer_is_given_up_in_time() -> None:
    """And told again."""
    async with webhook() as hook:
        hook.gate = asyncio.Event()
        served = PushingAgent(seconds_max=0.1)
        task = await served.send("complete", webhook=hook.url)
        await hook.asked(2)
        assert await served.state(task.id) == "completed"
        hook.gate.set()
        await served.handler.idle()
        assert "completed" in hook.states()
        await served.handler.drain()


async def test_what_an_outbox_in_memory_could_not_deliver_is_in_the_report() -> None:
    """The deadline of a drain holds for pushes too."""
    async with webhook() as hook:
        hook.gate = asyncio.Event()
        served = PushingAgent()
        task = await served.send("complete", webhook=hook.url)
        report = await served.handler.drain(grace=0.1, cleanup=0.2)
        assert not report.ok
        assert task.id in str(report)
        hook.gate.set()


async def test_what_is_in_a_file_is_delivered_by_the_next_start(tmp_path: Path) -> None:
    """In the order in which it was written; a drain does not wait for a receiver that is down."""
    async with webhook() as hook:
        hook.statuses = [503] * 1000
        store = InMemoryTaskStore()
        file = tmp_path / "outbox.db"
        served = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        await served.send("update complete", webhook=hook.url)
        report = await served.handler.drain(grace=20)
        assert report.ok
        assert report.seconds < 10
        hook.statuses = []
        again = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        async with again.handler:
            assert (await again.handler.recover()).pushes
            await again.handler.idle()
        assert hook.states()[0] == "submitted"
        assert hook.states()[-1] == "completed"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_what_comes_after_a_push_that_is_left_waits_behind_it(tmp_path: Path) -> None:
    """A drain leaves one that has failed for the next start; the end must not overtake it."""
    async with webhook() as hook:
        hook.statuses = [503] * 2
        store = InMemoryTaskStore()
        sender = DurablePushSender(
            tmp_path / "outbox.db", allow_private=LOCAL, backoff=Backoff(first_seconds=60)
        )
        served = PushingAgent(sender, store)
        await served.send("wait k complete", blocking=False, webhook=hook.url)
        await hook.asked(2)
        draining = asyncio.ensure_future(served.handler.drain(grace=20))
        while not served.handler.draining:  # noqa: ASYNC110 - it is a matter of turns
            await asyncio.sleep(0)
        served.agent.release("k")
        assert (await draining).ok
        assert not hook.heard
        again = PushingAgent(DurablePushSender(tmp_path / "outbox.db", allow_private=LOCAL), store)
        async with again.handler:
            await again.handler.idle()
        assert hook.states() == ["submitted", "working", "completed"]


async def test_a_task_that_nobody_owns_is_failed_and_pushed_once(tmp_path: Path) -> None:
    """With the receiver that the outbox remembers; a task that waits for its client is left."""
    async with webhook() as hook:
        store = kit.FileStore(tmp_path)
        file = tmp_path / "outbox.db"
        served = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        parked = await served.send("park", webhook=hook.url)
        lost = await served.send("complete", webhook=hook.url)
        await served.handler.drain()
        outbox = SqliteOutbox(file)  # as if the process had died in the midst of the second
        await outbox.open()
        await outbox.write(TaskNote(lost.id, "", "", (PushTarget(hook.url, {}),)), [])
        await outbox.close()
        working = kit.to_dict(await store.get(lost.id)) | {"status": {"state": _working()}}
        await store.save(kit.from_dict(working))
        hook.heard.clear()
        again = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        async with again.handler:
            found = await again.handler.recover()
            assert found.failed == (lost.id,)
            assert found.parked == (parked.id,)
            await again.handler.idle()
        assert hook.states() == ["failed"]
        assert store.states() == {lost.id: "failed", parked.id: "input-required"}
        third = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        async with third.handler:
            assert not (await third.handler.recover()).failed


def _working() -> str:
    return "TASK_STATE_WORKING" if kit.FIRST else "working"


async def test_a_push_of_a_state_that_was_never_stored_is_not_sent(tmp_path: Path) -> None:
    """The process died between the writing of the push and the storing of the state."""
    async with webhook() as hook:
        store = kit.FileStore(tmp_path)
        file = tmp_path / "outbox.db"
        served = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        task = await served.send("park", webhook=hook.url)
        await served.handler.drain()
        outbox = SqliteOutbox(file)
        await outbox.open()
        push = Push(task.id, hook.url, {}, b'{"status":{"state":"completed"}}', "completed ")
        await outbox.write(TaskNote(task.id, "", "", (PushTarget(hook.url, {}),)), [push])
        await outbox.close()
        hook.heard.clear()
        again = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        async with again.handler:
            await again.handler.idle()
        assert not hook.heard


async def test_dead_letters_can_be_sent_again(tmp_path: Path) -> None:
    """By a handler that is open; they are known by the header that they had, and come once."""
    async with webhook() as hook:
        hook.statuses = [410] * 3
        served = PushingAgent(DurablePushSender(tmp_path / "outbox.db", allow_private=LOCAL))
        await served.handler.open()
        task = await served.send("update complete", webhook=hook.url)
        await served.handler.idle()
        letters = await served.sender.dead_letters()
        assert [letter.task_id for letter in letters] == [task.id] * 3
        assert await served.sender.resend(letters[:2]) == 2
        await served.handler.idle()
        assert [headers["x-quiesce-push"] for headers in hook.headers[-2:]] == [
            letter.id for letter in letters[:2]
        ]
        assert hook.headers[-1]["x-a2a-notification-token"] == "a token"
        assert await served.sender.dead_letters() == letters[2:]
        assert await served.sender.discard(letters) == 1
        assert await served.sender.resend() == 0
        assert (await served.handler.drain()).ok


async def test_what_is_revived_in_a_file_is_sent_by_the_next_start(tmp_path: Path) -> None:
    """Also if its task has a later state by now: it was stored once."""
    async with webhook() as hook:
        hook.statuses = [410]
        store = InMemoryTaskStore()
        file = tmp_path / "outbox.db"
        served = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        await served.send("complete", webhook=hook.url)
        await served.handler.drain()
        outbox = SqliteOutbox(file)
        await outbox.open()
        assert len(await outbox.revive()) == 1
        await outbox.close()
        hook.heard.clear()
        async with PushingAgent(
            DurablePushSender(file, allow_private=LOCAL), store
        ).handler as again:
            await again.idle()
        assert hook.states() == ["submitted"]


async def test_a_state_that_could_not_be_stored_is_not_pushed_by_the_next_start(
    tmp_path: Path,
) -> None:
    """Nor if another was stored since, and the receiver was down for both."""
    async with webhook() as hook:
        hook.statuses = [503] * 1000
        file = tmp_path / "outbox.db"
        store = FailingStore()
        served = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        with pytest.raises(Exception, match=r".*"):
            await served.send("complete", webhook=hook.url)
        await served.handler.drain()
        hook.statuses = []
        async with PushingAgent(
            DurablePushSender(file, allow_private=LOCAL), store
        ).handler as again:
            await again.idle()
        assert "completed" not in hook.states()
        assert hook.states()[-1] == "failed"


async def test_a_task_that_a_crash_has_ended_is_pushed_with_its_artifacts(tmp_path: Path) -> None:
    """One that was stored a moment before the crash may have had no push of its own."""
    async with webhook() as hook:
        store = kit.FileStore(tmp_path)
        file = tmp_path / "outbox.db"
        served = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        task = await served.send("artifact park", webhook=hook.url)
        await served.handler.drain()
        working = kit.to_dict(await store.get(task.id)) | {"status": {"state": _working()}}
        await store.save(kit.from_dict(working))  # and then it died
        hook.heard.clear()
        async with PushingAgent(
            DurablePushSender(file, allow_private=LOCAL), store
        ).handler as again:
            assert (await again.recover()).failed == (task.id,)
            await again.idle()
        (told,) = hook.heard
        assert hook.states() == ["failed"]
        (artifact,) = told.get("task", told)["artifacts"]
        assert artifact["name"] == "thing"


async def test_a_parked_task_that_goes_on_after_a_crash_is_pushed_whole(tmp_path: Path) -> None:
    """Its first push has the artifacts, of which the crash may have prevented the pushes."""
    async with webhook() as hook:
        store, file = kit.FileStore(tmp_path), tmp_path / "outbox.db"
        served = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        task = await served.send("artifact park", webhook=hook.url)
        await served.handler.drain()
        hook.heard.clear()
        again = PushingAgent(DurablePushSender(file, allow_private=LOCAL), store)
        await again.send("complete", task_id=task.id, context_id=task.context_id)
        await again.handler.drain()
        assert hook.heard[0].get("task", hook.heard[0])["artifacts"]


async def test_a_receiver_that_is_named_in_the_midst_of_a_task_outlives_a_crash(
    tmp_path: Path,
) -> None:
    """It is in the outbox at once, not with the next state; one that is taken away is not."""
    served = PushingAgent(DurablePushSender(tmp_path / "outbox.db", allow_private=LOCAL))
    await served.handler.open()
    task = await served.send("park")
    for named in (True, False):
        if named:
            await served.name_receiver(task.id, "http://receiver.test/")
        else:
            await served.take_receiver_away(task.id)
        await served.handler._pushes.retarget(task.id)
        (note,) = await served.sender.outbox.unfinished()
        assert [target.url for target in note.targets] == ["http://receiver.test/"] * named
    await served.handler.drain()


class FailingStore(InMemoryTaskStore):  # type: ignore[misc]  # the SDK has no types here
    """Does not store the end."""

    async def save(self, task: Any, context: Any = None) -> None:
        """Save, unless it fails."""
        if kit.state_of(task) == "completed":
            raise OSError("the disk is full")
        await super().save(kit.copied(task), context)  # that of 0.3 would keep the task itself


async def test_a_state_that_could_not_be_stored_is_not_pushed() -> None:
    """What is pushed is what is stored."""
    async with webhook() as hook:
        served = PushingAgent(store=FailingStore())
        with pytest.raises(Exception, match=r".*"):
            await served.send("complete", webhook=hook.url)
        await served.handler.idle()
        await served.handler.drain()
        assert "completed" not in hook.states()
        assert hook.states()[-1] == "failed"


class FullOutbox(MemoryOutbox):
    """Takes nothing."""

    async def write(self, *args: Any, **options: Any) -> None:
        """Refuse."""
        raise sqlite3.OperationalError("database or disk is full")


async def test_an_outbox_that_fails_does_not_keep_a_state_from_being_stored() -> None:
    """The push is sent all the same; it is only not safe from a crash."""
    async with webhook() as hook:
        served = PushingAgent(DurablePushSender(FullOutbox(), allow_private=LOCAL))
        task = await served.send("complete", webhook=hook.url)
        await served.handler.idle()
        assert await served.state(task.id) == "completed"
        assert hook.states()[-1] == "completed"
        await served.handler.drain()


async def test_an_outbox_has_one_process(tmp_path: Path) -> None:
    """The second waits for the first, and then says what to do."""
    first = SqliteOutbox(tmp_path / "outbox.db")
    second = SqliteOutbox(tmp_path / "outbox.db", lock_seconds=0.1)
    await first.open()
    with pytest.raises(UsageError, match="another process"):
        await second.open()
    await first.close()
    await second.open()
    await second.close()
    with pytest.raises(UsageError, match="not open"):
        await second.pending()


async def test_a_handler_whose_outbox_is_taken_says_so(tmp_path: Path) -> None:
    """When it is opened; and it leaves nothing open."""
    first = SqliteOutbox(tmp_path / "outbox.db")
    await first.open()
    served = PushingAgent(DurablePushSender(SqliteOutbox(tmp_path / "outbox.db", lock_seconds=0)))
    with pytest.raises(UsageError, match="another process"):
        await served.handler.open()
    await first.close()


class OwnSender:
    """A sender of the user's own, with the SDK's interface."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def send_notification(self, *args: Any) -> None:
        """Take note."""
        event = args[-1]
        self.told.append(kit.state_of(event) if hasattr(event, "status") else "artifact")
        if self.told[-1] == "working":
            raise RuntimeError("not that one")


async def test_a_sender_of_ones_own_is_asked_for_each_state() -> None:
    """Outside of the way of what is stored; what it raises harms nobody."""
    sender = OwnSender()
    served = PushingAgent(sender)
    await served.send("complete")
    await served.handler.idle()
    assert sender.told[0] == "submitted"
    assert sender.told[-1] == "completed"
    assert sender.told.count("completed") == 1
    await served.handler.drain()


async def test_wrong_arguments_are_refused() -> None:
    """With words that say which."""
    with pytest.raises(ArgumentError, match="networks"):
        DurablePushSender(MemoryOutbox(), allow_private=["everywhere"])
    with pytest.raises(ArgumentError, match="attempts_max"):
        DurablePushSender(MemoryOutbox(), attempts_max=0)
    with pytest.raises(ArgumentError, match="QuiescentRequestHandler"):
        await DurablePushSender(MemoryOutbox()).send_notification("task", None)
