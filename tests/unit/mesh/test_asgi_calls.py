"""Calls of other nodes, as an agent's HTTP server gets them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from quiesce.mesh import CascadeFront
from quiesce.mesh.protocol import codec
from quiesce.mesh.transport import call_bodies
from tests.unit.mesh.meshing import World, here, until
from tests.unit.mesh.serving import Exchange, answers

if TYPE_CHECKING:
    from pathlib import Path

RECEIPTS, PROBE = "/quiesce/receipts", "/quiesce/probe"


@pytest.mark.parametrize("url", ["http://b", "http://b/agents/x"])
@pytest.mark.parametrize("mounted", [False, True])
async def test_calls_of_nodes_are_answered(url: str, mounted: bool) -> None:  # noqa: FBT001 - a case
    """At the root, below the node's own address, and where the app is mounted."""
    async with World() as world:
        node = await world.add("b", url=url)
        below = "/agents/x" if url.endswith("x") else ""
        options = {"root_path": below} if mounted else {}
        for path in (RECEIPTS, PROBE):
            made = Exchange(node.asgi(answers), "POST", below + path, parts=[b'{"v"', b":0}"])
            made.scope.update(options)
            await made.run()
            assert made.status == 200, made.body
            assert json.loads(made.body)["v"] == 0
            assert made.header(b"content-type") == "application/json"


@pytest.mark.parametrize(
    ("method", "parts", "status"),
    [
        ("GET", [b""], 405),
        ("POST", [b"rubbish"], 400),
        ("POST", [b"{}"], 400),
        ("POST", [b"x" * (1 << 20)] * 5, 413),
        ("POST", [b'{"v":0', None], 503),
    ],
)
async def test_what_is_no_call_is_refused(
    method: str, parts: list[bytes | None], status: int
) -> None:
    """Each in its way; the app never sees it."""

    async def app(*_: Any) -> None:
        raise AssertionError

    async with World() as world:
        node = await world.add("b")
        made = Exchange(node.asgi(app), method, RECEIPTS, parts=list(parts))
        await made.run()
        assert made.status == status
        assert "error" in json.loads(made.body)


async def test_an_app_in_front_says_that_a_receipt_is_to_be_asked_for(tmp_path: Path) -> None:
    """The hop waits for others, an app around the mesh has answered, and nobody may be told of its end."""
    others: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        others.append(here().delegate("http://c"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def around(scope: Any, receive: Any, send: Any) -> None:
        async def drop(message: Any) -> None:
            pass

        await inner(scope, receive, drop)
        while other.opened.running_hops:
            await anyio.lowlevel.checkpoint()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"another"})

    async with World(tmp_path) as world:
        node, other = await world.add("a"), await world.add("b", peers=())
        inner = other.asgi(app)
        async with node.cascade("c"):
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(CascadeFront(other, around), "POST", "/", headers=[header])
                await made.run()
        assert made.told is not None
        assert codec.parse_response_header(made.told, handing.edge_id).must_ask
        others[0].not_sent()


async def test_an_app_in_front_says_what_the_app_does_not() -> None:
    """A message that was refused on its way to the mesh was refused; calls of other nodes pass that by."""

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"not now"})

    async with World() as world:
        node, other = await world.add("a"), await world.add("b")
        front = CascadeFront(other, busy)
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(front, "POST", "/", headers=[header])
                await made.run()
                handing.answered(made.told)
        found = await cascade.settled(5, require="participants")
        assert made.status == 503
        assert [note.status for note in found.receipt.notes] == ["done", "refused"]
        called = Exchange(front, "POST", RECEIPTS, parts=[b'{"v":0}'])
        await called.run()
        assert called.status == 200


class HalfSent(Exchange):
    """A request of which the rest never comes."""

    async def _receive(self) -> Any:
        if not self.parts:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": self.parts.pop(0), "more_body": True}


@pytest.mark.parametrize("path", [RECEIPTS, PROBE])
@pytest.mark.parametrize("is_front", [False, True])
@pytest.mark.parametrize("ends", ["by itself", "told to end", "told before", "closed"])
async def test_a_call_that_is_half_sent_keeps_no_server_from_its_end(
    path: str, ends: str, *, is_front: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is told to end waits for its open requests, and one client may never send the rest."""
    short = 0.05  # real, on uvloop
    monkeypatch.setattr(call_bodies, "READ_SECONDS", short if ends == "by itself" else 1000.0)
    monkeypatch.setattr(call_bodies, "LAST_SECONDS", 1000.0 if ends == "closed" else short)
    async with World() as world:
        node = await world.add("b")
        app = CascadeFront(node, answers) if is_front else node.asgi(answers)
        made = HalfSent(app, "POST", path, parts=[b'{"v"'])
        if ends == "told before":
            node.opened.exchange.told_to_end(1000.0)
        asking = world.servers.spawn(made.run)
        await until(lambda: not made.parts)
        if ends == "told to end":
            node.opened.exchange.told_to_end(1000.0)
        elif ends == "closed":
            await node.aclose(0)
        with anyio.fail_after(100):
            await asking
        assert made.status == 503
        assert made.header(b"connection") == "close"


async def test_the_body_of_a_call_is_not_waited_for_by_a_closed_node() -> None:
    """The answer is the same, whatever comes."""
    async with World() as world:
        node = world.make("b")
        made = HalfSent(node.asgi(answers), "POST", RECEIPTS, parts=[b'{"v"'])
        await made.run()
        assert made.status == 503
        assert (
            "node 'b' is not open: it has not started yet, or it has closed" in made.body.decode()
        )
