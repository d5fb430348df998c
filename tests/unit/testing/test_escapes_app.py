"""`escapes(app)` runs an ASGI app in a node of its own, and each request is a hop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from quiesce import Scope
from quiesce.errors import UsageError
from quiesce.mesh import Memory, Node, current_hop
from quiesce.testing import EscapeError, escapes
from tests.stress import turns
from tests.unit.testing.leaving import here, later, places

if TYPE_CHECKING:
    from quiesce.mesh import Hop


class App:
    """An app with a worker that is started with it, and one handler for each path."""

    def __init__(self) -> None:
        """Start without steps or hops."""
        self.steps: list[str] = []
        self.hops: list[Hop | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve."""
        if scope["type"] == "lifespan":
            await self.live(receive, send)
            return
        body = (await receive())["body"]
        self.hops.append(current_hop())
        await getattr(self, scope["path"].strip("/"))(scope)
        head = {"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]}
        await send(head)
        await send({"type": "http.response.body", "body": body + scope["query_string"]})

    async def live(self, receive: Any, send: Any) -> None:
        """Run a worker while the app lives."""
        assert (await receive())["type"] == "lifespan.startup"
        self.semaphore = anyio.Semaphore(0)
        async with Scope("app") as self.scope:
            self.scope.spawn(self.work, service=True)
            self.steps.append("up")
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
        self.steps.append("down")
        await send({"type": "lifespan.shutdown.complete"})

    async def work(self) -> None:
        """Work whenever it is told to."""
        while True:
            await self.semaphore.acquire()

    async def nothing(self, scope: Any) -> None:
        """Leave nothing."""
        assert all(name != b"cascade" for name, _ in scope["headers"])

    async def job(self, _: Any) -> None:
        """Leave a job."""
        self.scope.spawn(turns, 5)

    async def notify(self, _: Any) -> None:
        """Wake the worker."""
        self.semaphore.release()

    async def fails(self, _: Any) -> None:
        """Fail."""
        message = "on purpose"
        raise ValueError(message)


async def test_requests_to_an_app_are_hops() -> None:
    """Each is answered, and what each leaves is listed."""
    app = App()
    async with escapes(app) as found:
        await turns()
        answer = await found.request("POST", "/nothing?a=%20", body=b"abc", headers={"A": "b"})
        assert (answer.status, answer.headers["x"], answer.body) == (201, "y", b"abca=%20")
        await found.request("GET", "/job")
        await found.request("GET", "/notify")
        assert app.steps == ["up"]
    assert app.steps == ["up", "down"]
    assert all(hop is not None for hop in app.hops)
    assert sorted(places(found)) == [("covered", "job"), ("unseen", "wakes the task")]
    (one,) = found.untracked
    assert one.function == "App.notify"
    with pytest.raises(EscapeError, match=r"App\.notify"):
        found.raise_if_any()


async def test_an_app_that_is_served_already_keeps_its_node() -> None:
    """It is not wrapped once more."""
    app, node = App(), Node("mine", transport=Memory())
    async with escapes(node.asgi(app)) as found:
        await found.request("GET", "/nothing")
        assert node.health.takes_messages
    assert [hop.mesh_node for hop in app.hops if hop is not None] == [node]
    assert node.own_scope is None


async def test_the_node_may_be_given() -> None:
    """With what it declares."""
    app, node = App(), Node("mine", transport=Memory(), services=[f"{App.__module__}.*"])
    async with escapes(app, node=node) as found:
        await turns()
        await found.request("GET", "/notify")
    assert [hop.mesh_node for hop in app.hops if hop is not None] == [node]
    assert list(found) == []


async def test_the_drain_of_its_own_node_is_not_told(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user has no such node; what is left is in the table."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        threads.append(threading.Thread(target=over.wait, daemon=True))
        threads[0].start()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    caplog.set_level("DEBUG", "quiesce")
    async with escapes(app) as found:
        await found.request("GET", "/")
    over.set()
    threads[0].join()
    assert ("untracked", "daemon thread") in places(found)
    said = caplog.text + capsys.readouterr().err
    assert "draining" not in said
    assert "closed in" not in said


async def test_an_app_without_a_lifespan_is_served() -> None:
    """As servers do."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        later(int)
        here().spawn(turns, 3)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async with escapes(app) as found:
        assert (await found.request("GET", "/")).status == 200
    assert places(found) == [("covered", "job")]


async def test_what_the_app_raises_is_raised() -> None:
    """The test is to see it."""
    async with escapes(App()) as found:
        with pytest.raises(ValueError, match="on purpose"):
            await found.request("GET", "/fails")


async def test_an_app_that_does_not_start_says_why() -> None:
    """However it says so."""

    async def says(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    async def raises(_: Any, receive: Any, __: Any) -> None:
        await receive()
        message = "no network"
        raise RuntimeError(message)

    for app, why in ((says, "no database"), (raises, "no network")):
        with pytest.raises(UsageError, match=why):
            await escapes(app).__aenter__()


async def test_a_request_that_is_no_hop_is_refused() -> None:
    """Nothing would be looked at, and that must not look like a success."""

    class Drains:
        drains_server = True

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                for step in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{step}.complete"})
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

    async with escapes(Drains()) as found:
        with pytest.raises(UsageError, match="did not become a hop"):
            await found.request("GET", "/")


async def test_a_body_that_is_json_says_so() -> None:
    """A framework would turn it away otherwise; what is said by hand stays."""
    types: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        types.append(dict(scope["headers"]).get(b"content-type"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async with escapes(app) as found:
        for body in (b"{}", b" [1]", b"a=b", b"", b"{no"):
            await found.request("POST", "/", body=body)
        await found.request("POST", "/", body=b"{}", headers={"Content-Type": "text/x"})
    assert types == [b"application/json"] * 2 + [None] * 3 + [b"text/x"]
    assert str(found) == "no work leaves: 6 hops were seen, 6 requests"


def redirecting(status: int, location: str | None) -> Any:
    """Make an app that sends every request on."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError
        lines = [] if location is None else [(b"Location", location.encode())]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": b""})

    return app


async def answers_its_path(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the status that is the path."""
    assert scope["type"] == "http"
    await receive()
    status = int(scope["path"].strip("/"))
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body"})


async def test_a_request_that_is_turned_away_is_told_of() -> None:
    """What its handler would have left was not looked at."""
    async with escapes(answers_its_path) as found:
        for path in ("/200", "/422", "/422", "/500"):
            await found.request("POST", path)
    assert str(found).splitlines() == [
        "no work leaves: 4 hops were seen, 4 requests",
        "warning: POST /422 was answered with 422 (2 times): so the work that its handler leaves on success was not seen",
        "warning: POST /500 was answered with 500: so the work that its handler leaves on success was not seen",
    ]
    found.raise_if_any()


async def test_without_a_hop_nothing_is_proved() -> None:
    """A test that sends nothing must not pass."""
    async with escapes(App()) as found:
        pass
    assert str(found) == "no hop was seen, so nothing was checked"
    with pytest.raises(UsageError, match="no hop was seen"):
        found.raise_if_any()


@pytest.mark.parametrize("statuses", [(404,), (422, 404, 422), (500,)])
async def test_only_errors_prove_nothing(statuses: tuple[int, ...]) -> None:
    """A test whose requests were all turned away must not pass: which, with what, and what to do are told."""
    async with escapes(answers_its_path) as found:
        for status in statuses:
            await found.request("POST", f"/{status}")
    with pytest.raises(UsageError, match="every request was answered with an error") as caught:
        found.raise_if_any()
    text = str(caught.value)
    for status in set(statuses):
        assert f"POST /{status} was answered with {status}" in text
    assert "Send a request in the block that its handler answers" in text
    assert str(found).startswith("every request was answered with an error")


@pytest.mark.parametrize("status", [301, 307, 308])
@pytest.mark.parametrize("location", ["/orders/", "https://app/orders/?a=1"])
async def test_a_redirect_to_the_same_path_proves_nothing(status: int, location: str) -> None:
    """A router answers it for want of a slash, and the handler has not run; a warning names it."""
    async with escapes(redirecting(status, location)) as found:
        await found.request("POST", "/orders")
    with pytest.raises(UsageError, match="redirected to its own path") as caught:
        found.raise_if_any()
    told = f"POST /orders was answered with {status}, which redirects it to {location}"
    assert told in str(caught.value)
    assert f"warning: {told}" in str(found)


@pytest.mark.parametrize(
    ("status", "location"), [(303, "/orders"), (302, "/orders/"), (307, "/login"), (307, None)]
)
async def test_a_redirect_may_be_the_answer_of_a_handler(status: int, location: str | None) -> None:
    """It has done its work, and sends the client to a page."""
    async with escapes(redirecting(status, location)) as found:
        await found.request("POST", "/orders")
    found.raise_if_any()
    assert "warning" not in str(found)


async def test_inside_of_the_block_nothing_is_judged() -> None:
    """What the hops leave is only known at the end; the error says so, and not that there was no hop."""
    async with escapes(App()) as found:
        await turns()
        await found.request("GET", "/notify")
        assert str(found) == "the block of escapes() has not ended: its end lists the places"
        with pytest.raises(UsageError, match=r"call raise_if_any\(\) after the block"):
            found.raise_if_any()
    with pytest.raises(EscapeError):
        found.raise_if_any()
