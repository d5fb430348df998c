"""Signed pushes: receivers who verify, hooks that fail, and secrets that show up nowhere."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.errors import ArgumentError
from quiesce.integrations.a2a import DurablePushSender, HmacSigner, MemoryOutbox, PushRequest
from tests.adapters.a2a import kit
from tests.adapters.a2a.pushing_handler import PushingAgent, authenticate
from tests.markdown import blocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = [
    pytest.mark.backends("asyncio", "uvloop"),
    pytest.mark.real_time,
    pytest.mark.quiesce(allow=[*kit.LEFT_TO_THE_COLLECTOR, "thread:asyncio_*"]),
]
SECRET = bytes(range(32))
TEXT = "whsec_" + base64.b64encode(SECRET).decode()
REQUEST = PushRequest("task", "http://receiver.test/", "an-id", b'{"status": "fertig, \\u00fc"}')


class Receiver:
    """A receiver that looks at the bytes that it gets, and says no to some."""

    def __init__(self, takes: Callable[[dict[str, str], bytes], bool]) -> None:
        """Take what a function says."""
        self.takes = takes
        self.url = ""
        self.taken: list[dict[str, str]] = []
        self.refused: list[dict[str, str]] = []
        self.states: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in head[1:])
                }
                body = await reader.readexactly(int(headers["content-length"]))
                fine = self.takes(headers, body)
                (self.taken if fine else self.refused).append(headers)
                if fine:
                    told = json.loads(body)
                    told = told.get("task") or told.get("statusUpdate") or told
                    self.states.append(kit.state_of(told))
                answer = "200 OK" if fine else "401 Unauthorized"
                writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()


@asynccontextmanager
async def receiving(takes: Callable[[dict[str, str], bytes], bool]) -> AsyncIterator[Receiver]:
    """Start a receiver for the block, over real HTTP."""
    receiver = Receiver(takes)
    tasks: set[Any] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(asyncio.CancelledError):
            await receiver.serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?key=a-secret"
    try:
        yield receiver
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        for _ in range(3):
            await asyncio.sleep(0)  # the turns that it takes to close what was aborted


async def test_a_receiver_can_verify_every_push() -> None:
    """It takes only what is signed, by the bytes that it got; all states arrive, in order."""
    verifier = HmacSigner(TEXT)
    async with receiving(verifier.verifies) as receiver:
        served = PushingAgent(sign=HmacSigner(SECRET))
        await served.send("update complete", webhook=receiver.url)
        await served.handler.idle()
        assert (receiver.states[0], receiver.states[-1]) == ("submitted", "completed")
        assert not receiver.refused
        ids = [headers["webhook-id"] for headers in receiver.taken]
        assert ids == [headers["x-quiesce-push"] for headers in receiver.taken]
        assert len(set(ids)) == len(ids)
        assert {headers["x-a2a-notification-token"] for headers in receiver.taken} == {"a token"}
        await served.handler.drain()


async def test_a_push_that_is_signed_wrongly_is_not_taken() -> None:
    """A receiver with another secret takes none; they are dead letters."""
    async with receiving(HmacSigner(b"x" * 32).verifies) as receiver:
        served = PushingAgent(sign=HmacSigner(SECRET), attempts_max=2)
        await served.send("complete", webhook=receiver.url)
        await served.handler.idle()
        assert not receiver.taken
        assert all("401" in letter.why for letter in await served.sender.dead_letters())
        await served.handler.drain()


async def test_each_attempt_is_signed_anew() -> None:
    """With the time of the attempt, and the id of the push."""
    ticks = iter(range(1000, 2000))
    refusals = [False, False, True, True]

    def takes(headers: dict[str, str], body: bytes) -> bool:
        del headers, body
        return refusals.pop(0) if refusals else True

    async with receiving(takes) as receiver:
        served = PushingAgent(sign=HmacSigner(SECRET, clock=lambda: next(ticks)))
        await served.send("complete", webhook=receiver.url)
        await served.handler.idle()
        tried = [*receiver.refused, receiver.taken[0]]
        assert len({headers["webhook-id"] for headers in tried}) == 1
        assert [headers["webhook-timestamp"] for headers in tried] == ["1000", "1001", "1002"]
        assert len({headers["webhook-signature"] for headers in tried}) == 3
        await served.handler.drain()


@pytest.mark.parametrize("credentials", ["", "a-token"])
async def test_what_the_configuration_says_is_not_replaced(credentials: str) -> None:
    """A hook may authenticate where the configuration does not; async, if it likes."""

    async def sign(request: PushRequest) -> dict[str, str]:
        await asyncio.sleep(0)
        return {
            "authorization": f"Bearer made-for-{request.task_id}",
            "x-a2a-notification-token": "mine",
            "X-Quiesce-Push": "mine",
            "content-type": "text/plain",
        }

    async with receiving(lambda *_: True) as receiver:
        served = PushingAgent(sign=sign)
        params = kit.request("complete", webhook=receiver.url)
        if credentials:
            authenticate(params, "Bearer", credentials)
        task = await served.handler.on_message_send(params, kit.call_context())
        await served.handler.idle()
        for headers in receiver.taken:
            assert headers["authorization"] == f"Bearer {credentials or f'made-for-{task.id}'}"
            assert headers["x-a2a-notification-token"] == "a token"
            assert headers["content-type"] == "application/json"
            assert headers["x-quiesce-push"] != "mine"
        await served.handler.drain()


async def _hang(request: PushRequest) -> dict[str, str]:
    del request
    await asyncio.Event().wait()
    return {}


def _raise(request: PushRequest) -> dict[str, str]:
    raise RuntimeError(f"the key a-secret is not good for {request.task_id}")


HOOKS: dict[str, Any] = {
    "raises": _raise,
    "hangs": _hang,
    "gives nothing": lambda _: None,
    "gives no header": lambda _: {"X-Key": "a-secret\r\n"},
    "gives no text": lambda _: {"X-Key": b"a-secret"},
}


@pytest.mark.parametrize("how", HOOKS)
async def test_a_hook_that_fails_loses_no_push_and_holds_up_nobody(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again, and then the push is a dead letter; what it said is in no log."""
    caplog.set_level(logging.DEBUG, "quiesce.a2a")
    broken = HOOKS[how]
    fails: set[str] = set()

    def sign(request: PushRequest) -> Any:
        return broken(request) if request.task_id in fails else {}

    async with receiving(lambda *_: True) as receiver:
        served = PushingAgent(
            sign=sign, attempts_max=2, seconds_max=1.0
        )  # also for those that are well
        bad = await served.send("wait k complete", blocking=False, webhook=receiver.url)
        fails.add(bad.id)
        served.agent.release("k")
        await served.send("complete", webhook=receiver.url)
        await served.handler.idle()
        assert receiver.states[-1] == "completed"
        (*_, letter) = await served.sender.dead_letters()
        assert (letter.task_id, letter.attempts) == (bad.id, 2)
        assert letter.why.startswith("sign() raised ")
        assert "a-secret" not in letter.why + caplog.text
        await served.handler.drain()


async def test_credentials_and_signatures_are_in_no_log_and_no_dead_letter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither what the configuration has, nor what was made of it, nor the URL's query."""
    caplog.set_level(logging.DEBUG, "quiesce.a2a")
    signatures: list[str] = []
    signer = HmacSigner(SECRET)

    def sign(request: PushRequest) -> dict[str, str]:
        made = signer(request)
        signatures.append(made["webhook-signature"])
        return made

    async with receiving(lambda *_: False) as receiver:
        served = PushingAgent(sign=sign, attempts_max=2)
        params = kit.request("complete", webhook=receiver.url)
        authenticate(params, "Bearer", "a-secret-of-the-client")
        await served.handler.on_message_send(params, kit.call_context())
        await served.handler.idle()
        letters = await served.sender.dead_letters()
        assert letters
        assert "given up" in caplog.text
        assert "failed" in caplog.text
        told = caplog.text + "".join(letter.why for letter in letters)
        said = repr(await served.sender.outbox.dead_letters()).replace(receiver.url, "")
        for secret in ("a-secret", "a token", *signatures):
            assert secret not in told + said
        await served.handler.drain()


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """This one was made with the library of those who wrote the standard."""
    made = HmacSigner(SECRET, clock=lambda: 1_700_000_000.9)(REQUEST)
    assert made == {
        "webhook-id": "an-id",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1,xIkEfPwgCg3Hpljb0DXchmh0c35XWZlcPDUil5wvQ/k=",
    }


def _changed(**changes: str | None) -> dict[str, str]:
    """Return good headers, but for some."""
    made: dict[str, str | None] = dict(HmacSigner(SECRET, clock=lambda: 1000.0)(REQUEST))
    made |= {f"webhook-{name}": value for name, value in changes.items()}
    return {name.title(): value for name, value in made.items() if value is not None}


@pytest.mark.parametrize(
    ("headers", "body", "now", "good"),
    [
        (_changed(), REQUEST.body, 1000.0, True),
        (_changed(), REQUEST.body, 1300.0, True),
        (_changed(), REQUEST.body, 701.0, True),
        (_changed(), REQUEST.body, 1301.0, False),
        (_changed(), REQUEST.body, 699.0, False),
        (_changed(), REQUEST.body + b" ", 1000.0, False),
        (_changed(id="another"), REQUEST.body, 1000.0, False),
        (_changed(timestamp="1001"), REQUEST.body, 1000.0, False),
        (_changed(timestamp="-1"), REQUEST.body, 1000.0, False),
        (_changed(timestamp="\u0661"), REQUEST.body, 1000.0, False),
        (_changed(timestamp="9" * 5000), REQUEST.body, 1000.0, False),
        (_changed(signature="v1,"), REQUEST.body, 1000.0, False),
        (_changed(signature="v1,\u00fc"), REQUEST.body, 1000.0, False),
        (_changed(signature=""), REQUEST.body, 1000.0, False),
        (_changed(signature=_changed()["Webhook-Signature"][3:]), REQUEST.body, 1000.0, False),
        (_changed(signature="v2" + _changed()["Webhook-Signature"][2:]), REQUEST.body, 1e3, False),
        (_changed(signature="v1,x " + _changed()["Webhook-Signature"]), REQUEST.body, 1e3, True),
        (_changed(id=None), REQUEST.body, 1000.0, False),
        (_changed(timestamp=None), REQUEST.body, 1000.0, False),
        (_changed(signature=None), REQUEST.body, 1000.0, False),
    ],
)
def test_only_what_was_signed_a_short_time_ago_verifies(
    headers: dict[str, str],
    body: bytes,
    now: float,
    good: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Every part of it counts; headers that are none are simply not good."""
    assert HmacSigner(TEXT, clock=lambda: now).verifies(headers, body) is good


def test_the_recipe_of_the_documentation_verifies_what_we_sign() -> None:
    """And nothing else."""
    page = Path(__file__).parents[3] / "docs" / "howto" / "a2a.md"
    found = blocks(page.read_text(encoding="utf-8"))
    (recipe,) = (block.text for block in found if "def verifies" in block.text)
    made: dict[str, Any] = {}
    exec(recipe, made)  # noqa: S102 - our own page
    headers = HmacSigner(SECRET)(REQUEST)
    assert made["verifies"](SECRET, headers, REQUEST.body)
    assert not made["verifies"](SECRET, headers, REQUEST.body + b" ")
    assert not made["verifies"](b"x" * 32, headers, REQUEST.body)
    old = HmacSigner(SECRET, clock=lambda: 1000.0)(REQUEST)
    assert not made["verifies"](SECRET, old, REQUEST.body)


def test_a_secret_can_be_changed() -> None:
    """While both sides may have the old or the new one, either is enough."""
    old, new, other = b"o" * 24, b"n" * 24, b"x" * 24
    made = HmacSigner(new, old)(REQUEST)
    for receiver in (HmacSigner(old), HmacSigner(new), HmacSigner(other, old)):
        assert receiver.verifies(made, REQUEST.body)
    assert not HmacSigner(other).verifies(made, REQUEST.body)


@pytest.mark.parametrize("secrets", [[], ["plain"], ["whsec_%"], ["whsec_"], [b"short"]], ids=str)
def test_a_secret_that_is_none_is_refused(secrets: list[Any]) -> None:
    """Before anything is signed with it; and it is not repeated."""
    with pytest.raises(ArgumentError, match="secret") as caught:
        HmacSigner(*secrets)
    assert "plain" not in str(caught.value)


def test_a_hook_that_is_none_is_refused() -> None:
    """When the sender is made, not when the first push is."""
    with pytest.raises(ArgumentError, match="HmacSigner"):
        DurablePushSender(MemoryOutbox(), sign=SECRET)  # type: ignore[arg-type]  # the mistake
