"""Messages that are sent more than once below those who send them: redirects, credentials, retries, proxies."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route

from quiesce import ArgumentError
from quiesce.integrations.a2a import quiesce_client
from quiesce.mesh import CascadeFront, Node, Settled, Unknown
from tests.adapters.a2a import mesh_kit as mesh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = mesh.MARKS

_KEY = "let me in"


class Again(httpx.Auth):  # type: ignore[misc]  # no types here
    """Gets credentials when it is asked for them."""

    def auth_flow(self, request: httpx.Request) -> Any:
        """Send a request, and send it again."""
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = _KEY
            yield request


class Retrying(httpx.AsyncHTTPTransport):  # type: ignore[misc]  # no types here
    """Does not wait long for an answer, and then finds nobody."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Try twice."""
        try:
            request.extensions["timeout"] = {"connect": 5, "read": 0.1, "write": 5, "pool": 5}
            return await super().handle_async_request(request)
        except httpx.ReadTimeout:
            request.url = request.url.copy_with(host="127.0.0.1", port=9)
            return await super().handle_async_request(request)


def asking(app: Any, *below: str) -> Any:
    """Make an app ask for credentials, except for what is below some paths."""

    async def ask(scope: Any, receive: Any, send: Any) -> None:
        known = any(name == b"authorization" for name, _ in scope.get("headers", ()))
        if scope["type"] != "http" or known or scope["path"].startswith(below):
            await app(scope, receive, send)
        else:
            await PlainTextResponse("who are you?", 401)(scope, receive, send)

    return ask


def elsewhere(url: str, *ways: str) -> Any:
    """Make an app that sends all requests to another one."""

    async def redirect(_: Any) -> Any:
        return RedirectResponse(url, 307)

    return Starlette(routes=[Route(way, redirect, methods=["POST"]) for way in ways])


class Busy:
    """An app that answers at once, or not at all, and is at work until it is told to end."""

    def __init__(self, path: str = "/run") -> None:
        """Start with nothing to do."""
        self.app = Starlette(routes=[Route(path, self.run, methods=["POST"])])
        self.end = asyncio.Event()
        self.works: list[asyncio.Task[bool]] = []

    async def run(self, request: Any) -> Any:
        """Begin to work."""
        self.works.append(asyncio.create_task(self.end.wait()))
        if request.query_params.get("slow"):
            await self.end.wait()
        return PlainTextResponse("begun")

    async def is_awaited(self, cascade: Any, require: Any = "participants") -> Any:
        """Check that the cascade waits for the one piece of work; return what is said when that has ended."""
        assert len(self.works) == 1
        assert isinstance(await cascade.settled(mesh.SOON, require=require), Unknown)
        self.end.set()
        return await cascade.settled(5, require=require)


@asynccontextmanager
async def two(folder: Path, busy: Busy, around: Any = None) -> AsyncIterator[tuple[Any, Node, str]]:
    """Open a program, and an agent that is busy; yield the town, the program's node, and the agent's address."""
    async with mesh.town(folder) as town, mesh.script() as node:
        town.plan("x")
        url = town.urls["x"]
        agent = Node("x", url=url, store=folder / "x", patience=mesh.QUICK)
        app = agent.asgi(busy.app)
        await town.serve("x", app if around is None else around(app))
        yield town, node, url


# Any HTTP.


async def test_a_request_that_is_redirected_is_handed_to_another(tmp_path: Path) -> None:
    """The one who redirects has ended; the other works, and is waited for."""
    busy = Busy()
    async with two(tmp_path, busy) as (town, node, url):
        town.plan("gate")
        gate = Node("gate", url=town.urls["gate"], store=tmp_path / "gate")
        await town.serve("gate", gate.asgi(elsewhere(f"{url}/run", "/run")))
        async with node.client(follow_redirects=True) as client, node.cascade("one") as cascade:
            await client.post(f"{gate.url}/run")
        settled = await busy.is_awaited(cascade, "full")
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.hops == 3


async def test_a_request_that_is_redirected_to_the_same_agent_is_taken(tmp_path: Path) -> None:
    """A path without its slash: it is no copy of what was redirected."""
    busy = Busy("/run/")
    async with two(tmp_path, busy) as (_, node, url):
        async with node.client(follow_redirects=True) as client, node.cascade("one") as cascade:
            answer = await client.post(f"{url}/run")
            assert answer.status_code == 200, answer.text
        assert isinstance(await busy.is_awaited(cascade, "full"), Settled)


async def test_a_request_that_is_sent_again_with_credentials_is_awaited(tmp_path: Path) -> None:
    """The first was turned away before the agent, which says that it never came; the second is worked on."""
    busy = Busy()
    async with two(tmp_path, busy, lambda app: asking(app, "/quiesce")) as (_, node, url):
        async with node.client(auth=Again()) as client, node.cascade("one") as cascade:
            answer = await client.post(f"{url}/run")
            assert "Cascade" not in answer.request.headers
        settled = await busy.is_awaited(cascade)
        assert settled.receipt.hops == 2
        assert settled.receipt.undelivered == 1


async def test_headers_that_are_passed_on_do_not_pass_on_the_message(tmp_path: Path) -> None:
    """An agent that sends on what it was sent, with all headers, hands over a message of its own."""
    busy = Busy()
    async with two(tmp_path, busy) as (town, node, url):
        town.plan("gate")
        gate = Node("gate", url=town.urls["gate"], store=tmp_path / "gate", patience=mesh.QUICK)

        async def pass_on(request: Any) -> Any:
            async with gate.client() as client:
                answer = await client.post(f"{url}/run", headers=request.headers.raw)
            return PlainTextResponse(answer.text, answer.status_code)

        app = Starlette(routes=[Route("/run", pass_on, methods=["POST"])])
        await town.serve("gate", gate.asgi(app))
        async with node.client() as client, node.cascade("one") as cascade:
            await client.post(f"{gate.url}/run")
        settled = await busy.is_awaited(cascade, "full")
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.hops == 3


async def test_a_transport_that_tries_again_and_finds_nobody_has_sent_it(tmp_path: Path) -> None:
    """The last error says that there was no connection; the attempt before has begun the work."""
    busy = Busy()
    async with two(tmp_path, busy) as (_, node, url):
        async with node.client(transport=Retrying()) as client, node.cascade("one") as cascade:
            with pytest.raises(httpx.ConnectError):
                await client.post(f"{url}/run?slow=1")
        settled = await busy.is_awaited(cascade, "full")
        assert isinstance(settled, Settled), str(settled)
        assert settled.receipt.hops == 2


async def test_what_a_transport_says_is_believed_if_it_has_sent_nothing(tmp_path: Path) -> None:
    """It finds nobody, from the first; or says so, and nobody knows what it has done before."""

    class Silent(httpx.AsyncBaseTransport):  # type: ignore[misc]  # no types here
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            message = "nobody is there"
            raise httpx.ConnectError(message, request=request)

    busy = Busy()
    async with two(tmp_path, busy) as (town, node, url):
        town.plan("gone")
        town._sockets["gone"].close()
        for transport, to, lost in ((Retrying(), town.urls["gone"], 0), (Silent(), url, 1)):
            async with node.client(transport=transport) as client, node.cascade("one") as cascade:
                with pytest.raises(httpx.ConnectError):
                    await client.post(f"{to}/run")
            settled = await cascade.settled(5)
            assert settled.receipt.hops == 1
            assert settled.receipt.undelivered == lost, str(settled)


@pytest.mark.parametrize("way", ["mounts", "proxy"])
async def test_no_way_of_a_client_passes_the_mesh_by(tmp_path: Path, way: str) -> None:
    """A transport for some URLs, a proxy: httpx would not ask the one that it was given."""
    busy = Busy()

    def proxied(app: Any) -> Any:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path", "").startswith("http"):
                scope = {**scope, "path": f"/{scope['path'].split('/', 3)[3]}"}
            await app(scope, receive, send)

        return serve

    async with two(tmp_path, busy, proxied) as (_, node, url):
        options: dict[str, Any] = {"proxy": url}
        if way == "mounts":
            options = {"mounts": {"http://": httpx.AsyncHTTPTransport(), "https://": None}}
        async with node.client(**options) as client, node.cascade("one") as cascade:
            await client.post(f"{url}/run")
        assert isinstance(await busy.is_awaited(cascade, "full"), Settled)


async def test_a_client_of_a_node_takes_the_options_of_httpx() -> None:
    """Those that httpx would make a transport of are not forgotten; one that is no more is refused."""
    node = Node("script")
    context = ssl.create_default_context()
    async with node.client(verify=context) as client:
        assert client._transport._inner._pool._ssl_context is context
    with pytest.raises(ArgumentError, match="proxy="):
        node.client(proxies={})


async def test_an_agent_that_took_a_message_is_not_believed_to_have_never_had_it(
    tmp_path: Path,
) -> None:
    """Two stand behind one address: one works, and it is the other that is asked."""
    busy = Busy()
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("x")
        apps = []
        for name in ("one", "two"):
            agent = Node(name, url=town.urls["x"], store=tmp_path / name, patience=mesh.QUICK)
            await town.serve(name, agent.asgi(busy.app))
            apps.append(agent.asgi(busy.app))

        async def balance(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await apps[scope["path"].startswith("/quiesce")](scope, receive, send)

        await town.serve("x", balance)
        async with node.client() as client, node.cascade("one") as cascade:
            await client.post(f"{town.urls['x']}/run")
        said = await cascade.settled(5)
        assert isinstance(said, Unknown), str(said)
        assert said.receipt.unknown == 1
        busy.end.set()
        await asyncio.wait(busy.works)


# A2A.


async def test_a_message_that_is_redirected_is_part_of_its_cascade(tmp_path: Path) -> None:
    """By the agent itself, which has said what became of it; or by another, of whom no card tells."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a")
        old = elsewhere(f"{town.urls['a']}/", "/old/")
        place = await town.build("a", routes=old.routes)
        away = await town.serve("gate", elsewhere(f"{place.url}/", "/"))
        for url, hops in ((f"{place.url}/old", 3), (away, 2)):
            card = mesh.declared(url, receipts=place.url)
            http = httpx.AsyncClient(follow_redirects=True, headers=mesh.VERSION)
            config = mesh.polling(httpx_client=http)
            async with http, await quiesce_client(node, card, config=config) as client:
                async with node.cascade("one") as cascade:
                    await mesh.send(client, f"leave {hops} complete")
                await place.agent.waits(str(hops))
                said = await cascade.settled(mesh.SOON, require="participants")
                assert isinstance(said, Unknown), str(said)
                place.agent.release(str(hops))
                settled = await cascade.settled(5, require="participants")
                assert isinstance(settled, Settled), str(settled)
                assert settled.receipt.hops == hops, str(settled)


@pytest.mark.parametrize("where", ["outside", "inside", "bare"])
async def test_a_message_is_sent_again_with_credentials(tmp_path: Path, where: str) -> None:
    """Whoever asks for them stands before the mesh, or in it, or before one whose card does not tell."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        town.plan("a")
        url = town.urls["a"]
        agent: Any
        if where == "bare":
            app, agent = mesh.bare_app(f"{url}/")
            behind = Node("a", url=url, store=tmp_path / "a")
            await town.serve("a", asking(behind.asgi(app), "/quiesce", "/.well-known"))
        else:

            def around(place: Any) -> Any:
                asks = asking(place.app, "/quiesce", "/.well-known")
                return asks if where == "outside" else CascadeFront(place.node, asks)

            agent = (await town.build("a", around)).agent
        http = httpx.AsyncClient(auth=Again(), headers=mesh.VERSION)
        config = mesh.blocking(httpx_client=http)
        async with http, await quiesce_client(node, url, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.send(client, "leave k complete")
            await agent.waits("k")
            said = await cascade.settled(mesh.SOON, require="participants")
            assert isinstance(said, Unknown), str(said)
            agent.release("k")
            settled = await cascade.settled(5)
            assert settled.receipt.hops == 2, str(settled)
            assert not settled.receipt.opaque
            assert len(agent.heard) == 1
        for task in agent.left:
            task.cancel()


async def test_a_message_whose_transport_tries_again_is_in_doubt(tmp_path: Path) -> None:
    """The SDK passes on that there was no connection; the attempt before has begun the work."""
    async with mesh.town(tmp_path) as town, mesh.script() as node:
        place = await town.build("a")
        http = httpx.AsyncClient(transport=Retrying(), headers=mesh.VERSION)
        config = mesh.blocking(httpx_client=http)
        card = mesh.declared(place.url)
        async with http, await quiesce_client(node, card, config=config) as client:
            async with node.cascade("one") as cascade:
                await mesh.sent(client, "wait k complete")
            await place.agent.waits("k")
            said = await cascade.settled(mesh.SOON)
            assert isinstance(said, Unknown), str(said)
            place.agent.release("k")
            settled = await cascade.settled(5)
            assert isinstance(settled, Settled), str(settled)
            assert settled.receipt.hops == 2
