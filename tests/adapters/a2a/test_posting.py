"""Where pushes may be posted to: clients choose the URLs, so each is one that may be meant badly."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ipaddress
import logging
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.integrations.a2a.push.push_post import (
    NotTaken,
    Poster,
    PushPolicy,
    Refused,
    _CheckedNetwork,
)
from quiesce.testing import sweep
from tests.adapters.a2a import kit
from tests.adapters.a2a.pushing_handler import PushingAgent
from tests.adapters.a2a.server import webhook
from tests.adapters.http_receiver import receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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


@asynccontextmanager
async def posting(allow: Any = (), seconds: float = 5.0) -> AsyncIterator[Poster]:
    """Open a poster for the block."""
    poster = Poster(PushPolicy(allow), seconds=seconds, bytes_max=1000, connections=4)
    try:
        yield poster
    finally:
        await poster.close()


class Resolver:
    """Says what names mean, one answer after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        """Answer in the place of the event loop."""
        self.asked: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._look_up)

    async def _look_up(self, host: str, port: int, **_: Any) -> Any:
        self.asked.append(host)
        if not self._answers:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self._answers.pop(0)
        ]


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/a-secret",
        "file:///a-secret",
        "gopher://127.0.0.1:6379/_a-secret",
        "http+unix://%2Fvar%2Frun%2Fa-secret.sock/x",
        "unix:///var/run/a-secret.sock",
        "//127.0.0.1/a-secret",
        "http:///a-secret",
        "http:a-secret",
        "",
        "http://[::1/a-secret",
        "http://receiver.test:99999/a-secret",
        "http://receiver.test:0/a-secret",
        "http://receiver.test:a-secret/",
        "http://someone:a-secret@receiver.test/",
        "http://receiver.test\\@127.0.0.1/a-secret",
        "http://receiver.test#@127.0.0.1/a-secret ",
        "http://receiver.test/a-secret\r\nx: y",
        "http://\uff4cocalhost/a-secret",
        "http://\u2460\u2461\u2466.0.0.1/a-secret",
    ],
)
async def test_a_url_that_is_none_is_refused_before_a_look_up(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Once and for all; the reason does not repeat it, as it may have a secret in it."""
    resolver = Resolver(monkeypatch, ["93.184.216.34"])
    async with posting(allow=True) as poster:
        with pytest.raises(Refused) as caught:
            await poster.post(url, {}, b"{}")
    assert "a-secret" not in str(caught.value)
    assert not resolver.asked


PRIVATE = {
    "plain": "127.0.0.1",
    "by name": "localhost",
    "short": "127.1",
    "decimal": "2130706433",
    "octal": "0177.0.0.1",
    "hexadecimal": "0x7f.0.0.1",
    "one hexadecimal": "0x7f000001",
    "any": ".".join("0000"),
    "zero": "0",
    "any of IPv6": "[::]",
    "IPv6": "[::1]",
    "IPv6 in full": "[0:0:0:0:0:0:0:1]",
    "mapped": "[::ffff:127.0.0.1]",
    "mapped, hexadecimal": "[::ffff:7f00:1]",
    "compatible": "[::127.0.0.1]",
    "NAT64": "[64:ff9b::7f00:1]",
    "6to4": "[2002:7f00:1::]",
    "Teredo": "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "the cloud's": "169.254.169.254",
    "the cloud's, decimal": "2852039166",
}


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("host", PRIVATE.values(), ids=PRIVATE)
async def test_a_private_address_is_refused_however_it_is_spelled(host: str) -> None:
    """By default, by whatever name it is reached; nothing is connected to."""
    async with webhook() as hook, posting() as poster:
        url = hook.url.replace("127.0.0.1", host)
        with pytest.raises(Refused, match="not a public address"):
            await poster.post(url, {}, b"{}")
        assert not hook.requests


async def test_a_push_to_a_private_address_is_a_dead_letter() -> None:
    """And the state that it would have told of is stored."""
    async with webhook() as hook:
        served = PushingAgent(allow_private=False)
        task = await served.send("complete", webhook=hook.url)
        await served.handler.idle()
        letters = await served.sender.dead_letters()
        assert letters
        assert all("not a public address" in letter.why for letter in letters)
        assert not hook.requests
        assert await served.state(task.id) == "completed"
        await served.handler.drain()


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("url", ["http://[::1", "http://receiver.test:99999/", "nonsense"])
async def test_a_url_that_is_none_harms_nobody(url: str) -> None:
    """Its pushes are dead letters, and the task is like any other."""
    served = PushingAgent()
    task = await served.send("update complete", webhook=url)
    await served.handler.idle()
    letters = await served.sender.dead_letters()
    assert len(letters) >= 3
    assert {letter.attempts for letter in letters} == {1}
    assert await served.state(task.id) == "completed"
    assert (await served.handler.drain()).ok


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("2002:5db8:d822::1", True),
        ("64:ff9b::5db8:d822", True),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("172.16.0.1", False),
        ("192.0.2.1", False),
        ("192.168.0.1", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::7f00:1", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::a00:1", False),
        ("2002:a00:1::", False),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", False),
    ],
)
def test_only_public_addresses_are_permitted(address: str, public: bool) -> None:  # noqa: FBT001 - a parameter
    """Also when an address has another inside; allowed networks are allowed, no more."""
    assert PushPolicy(allow=False).permits(ipaddress.ip_address(address)) is public
    assert PushPolicy(allow=True).permits(ipaddress.ip_address(address))
    assert PushPolicy(["10.0.0.0/8"]).permits(ipaddress.ip_address("10.9.9.9"))
    assert PushPolicy(["10.0.0.0/8"]).permits(ipaddress.ip_address("::ffff:10.9.9.9"))
    assert not PushPolicy(["10.0.0.0/8"]).permits(ipaddress.ip_address("127.0.0.1"))


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1", "10.0.0.1"],
        ["10.0.0.1", "127.0.0.1"],
        ["127.0.0.1", "fe80::1%eth0"],
        ["127.0.0.1", "::ffff:10.0.0.1"],
    ],
    ids=str,
)
async def test_a_name_with_one_address_that_is_not_permitted_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: list[str]
) -> None:
    """All of them are looked at, not the first; and none is connected to."""
    async with webhook() as hook, posting(["127.0.0.0/8"]) as poster:
        Resolver(monkeypatch, found)
        with pytest.raises(Refused, match="not a public address"):
            await poster.post(hook.url.replace("127.0.0.1", "several.test"), {}, b"{}")
        assert not hook.requests


@pytest.mark.backends("asyncio")
async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name is looked up once: it cannot mean another address a moment later."""
    async with webhook() as hook, posting(["127.0.0.1/32"]) as poster:
        resolver = Resolver(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
        url = hook.url.replace("127.0.0.1", "rebound.test")
        await poster.post(url, {}, b"{}")
        assert hook.heard == [{}]
        assert resolver.asked == ["rebound.test"]
        assert hook.headers[0]["host"].startswith("rebound.test:")
        await poster.close()  # the next one connects anew
        with pytest.raises(Refused, match=r"127\.0\.0\.2"):
            await poster.post(url, {}, b"{}")
        assert hook.requests == 1


@pytest.mark.backends("asyncio")
async def test_an_address_that_does_not_answer_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one of the name is tried; a name that is unknown may be known later."""
    async with webhook() as hook, posting(["127.0.0.0/8"]) as poster:
        Resolver(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        url = hook.url.replace("127.0.0.1", "several.test")
        await poster.post(url, {}, b"{}")
        assert hook.requests == 1
        with pytest.raises(NotTaken, match="no such name"):
            await poster.post(url.replace("several", "unknown"), {}, b"{}")


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would look the name up themselves, past the check."""
    async with webhook() as hook, webhook() as proxy, posting(["127.0.0.0/8"]) as poster:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        await poster.post(hook.url, {}, b"{}")
        assert hook.requests == 1
        assert not proxy.requests


async def test_a_unix_socket_is_never_connected_to() -> None:
    """No URL leads to one, and nothing else does."""
    with pytest.raises(Refused):
        await _CheckedNetwork(PushPolicy(allow=True)).connect_unix_socket("a.sock")


@asynccontextmanager
async def answering(*parts: bytes, for_ever: bytes = b"") -> AsyncIterator[str]:
    """Start a receiver that answers anything with some bytes, and then for ever with others."""
    tasks: set[Any] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.writelines(parts)
            while for_ever:
                writer.write(for_ever)
                await writer.drain()
            await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        for _ in range(3):
            await asyncio.sleep(0)  # the turns that it takes to close what was aborted


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    """Its status counts; what it is made of is of no interest."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    async with answering(head, for_ever=chunk) as url, posting(["127.0.0.0/8"]) as poster:
        await poster.post(url, {}, b"{}")


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    ("status", "after", "seconds"),
    [
        (503, "7", 7.0),
        (429, "0", 0.0),
        (503, "a date", 1000.0),
        (503, email.utils.formatdate(0, usegmt=True), 0.0),
        (503, "soon", 0.0),
        (503, "-7", 0.0),
        (503, "9" * 5000, 0.0),
        (500, "7", 0.0),
    ],
)
async def test_a_receiver_may_say_when_to_come_again(
    status: int, after: str, seconds: float
) -> None:
    """With 429 and 503, as a number or a date; what cannot be read is nothing."""
    if after == "a date":
        after = email.utils.formatdate(time.time() + seconds, usegmt=True)
    answer = f"HTTP/1.1 {status} X\r\nretry-after: {after}\r\ncontent-length: 0\r\n\r\n"
    async with answering(answer.encode()) as url, posting(["127.0.0.0/8"]) as poster:
        with pytest.raises(NotTaken, match=str(status)) as caught:
            await poster.post(url, {}, b"{}")
    assert caught.value.after == pytest.approx(seconds, abs=0.1 * seconds)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nx: y\r\n", b"nonsense\r\n\r\n"])
async def test_an_answer_that_is_none_is_a_failure(answer: bytes) -> None:
    """In time; it is tried again."""
    async with answering(answer) as url, posting(["127.0.0.0/8"], seconds=0.5) as poster:
        with pytest.raises(NotTaken):
            await poster.post(url, {}, b"{}")


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Token": "a secret\r\nHost: other"},
        {"X-Token": "a secret\n"},
        {"X-Token": " a secret"},
        {"X-Token": "a secret\0"},
        {"X-Token": "a secret \u20ac"},
        {"X-Token: a secret": "x"},
        {"": "a secret"},
    ],
    ids=repr,
)
async def test_a_token_that_is_no_header_is_refused_and_not_repeated(
    headers: dict[str, str],
) -> None:
    """It would be in the logs, and in the dead letters."""
    async with webhook() as hook, posting(["127.0.0.0/8"]) as poster:
        with pytest.raises(Refused, match="as a header") as caught:
            await poster.post(hook.url, headers, b"{}")
        assert "secret" not in str(caught.value)
        assert not hook.requests


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_a_post_may_be_cancelled_anywhere(backend: Any) -> None:
    """At every await, of the first one, of one with a connection that is kept, and of the close."""
    with receiving() as url:

        async def scenario() -> None:
            async with posting(["127.0.0.0/8"]) as poster:
                await poster.post(url, {}, b"{}")
                await poster.post(url, {}, b"{}")

        found = sweep(
            scenario, backend=backend, cancel=["native", "scope"], allow=["thread:asyncio_*"]
        )
    assert found.ok, str(found)
    assert found.points > 8
