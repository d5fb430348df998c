"""Real servers, written with the SDK: what the SDK's own session gives; and sessions over HTTP."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio
import mcp.types
import pytest
from pydantic import AnyUrl

import quiesce
from quiesce.errors import ScopeClosed
from quiesce.integrations.mcp import ServerLost, connect_http, connect_stdio, versions
from tests.adapters.mcp.servers import (
    WITH_THE_SDK,
    bare_http,
    bare_stdio,
    listening,
    notes,
    plain_server,
    real,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quiesce.integrations.mcp import Session

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # 2.x deprecates what servers still use
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


# The same as the SDK's own.


class Client:
    """Callbacks of a client, and what they were called with."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.seen: list[str] = []

    def options(self) -> dict[str, Any]:
        """Return the options of a session."""
        return {
            "sampling_callback": self.sample,
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.roots,
            "logging_callback": self.log,
        }

    async def sample(self, _: Any, params: Any) -> Any:
        """Answer as a model."""
        self.seen.append(f"sampled {params.messages[0].content.text}")
        content = mcp.types.TextContent(type="text", text="something")
        return mcp.types.CreateMessageResult(role="assistant", content=content, model="none")

    async def elicit(self, _: Any, params: Any) -> Any:
        """Answer as a user."""
        self.seen.append(f"elicited {params.message}")
        return mcp.types.ElicitResult(action="accept", content={"colour": "blue"})

    async def roots(self, _: Any) -> Any:
        """Answer with one root."""
        return mcp.types.ListRootsResult(
            roots=[mcp.types.Root.model_validate({"uri": "file:///a"})]
        )

    async def log(self, params: Any) -> None:
        """Take a line of a log."""
        self.seen.append(f"logged {params.data}")

    async def progress(self, done: float, total: float | None, message: str | None) -> None:
        """Take note of progress."""
        self.seen.append(f"progress {done} {total} {message}")


async def everything(session: Any, client: Client) -> list[str]:
    """Use a session for all that there is; gives what came of it, as text."""
    found: list[Any] = [
        await session.list_tools(),
        await session.call_tool("add", {"a": 1, "b": 2}),
        await session.call_tool("fail"),
        await session.call_tool("no such tool"),
        await session.call_tool("progress", progress_callback=client.progress),
        await session.call_tool("ask_model"),
        await session.call_tool("ask_user"),
        await session.call_tool("roots"),
        await session.call_tool("say"),
        await session.list_resources(),
        await session.list_prompts(),
        await session.get_prompt("greet", {"name": "you"}),
        await session.send_ping(),
    ]
    uri: Any = "text://hello" if versions.SECOND else AnyUrl("text://hello")
    found.append(await session.read_resource(uri))
    for wrong in (session.read_resource(type(uri)("text://no")), session.get_prompt("no")):
        try:
            await wrong
        except versions.Error as error:
            found.append(f"{type(error).__name__} {error}")
    answers = [one.model_dump_json() if hasattr(one, "model_dump_json") else one for one in found]
    await until(lambda: len(client.seen) >= 6)  # notifications come when they come
    return answers + sorted(client.seen)


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """Return what the SDK's own session gives."""

    async def main() -> list[str]:
        client = Client()
        with open(os.devnull, "w", encoding="utf-8") as errlog:  # noqa: ASYNC230, PTH123 - no file
            async with bare_stdio(real(), errlog, **client.options()) as session:
                return await everything(session, client)

    return anyio.run(main)


@pytest.mark.backends("uvloop", "trio")  # a real server takes a while to start
async def test_a_session_gives_what_that_of_the_sdk_gives(expected: list[str]) -> None:
    """Tools, resources, prompts, progress, callbacks, errors: all through a real server."""
    client = Client()
    async with quiesce.Scope("test") as scope:
        session = await connect_stdio(scope, real(), **client.options())
        assert await everything(session, client) == expected
        greeting = await session.initialize()
        assert "real" in greeting.model_dump_json()
        report = await session.aclose()
    assert report.ok, report


@pytest.mark.quiesce(allow=["generator:*"])  # the SDK reads no stream to its end
@pytest.mark.backends("asyncio")
async def test_over_http_as_well(web: str) -> None:
    """A real server over streamable HTTP gives the same as to the SDK's own session."""
    client, other = Client(), Client()
    async with bare_http(web, **other.options()) as session:
        wanted = await everything(session, other)
    async with quiesce.Scope("test") as scope:
        session = await connect_http(scope, web, **client.options())
        assert await everything(session, client) == wanted
        assert (await session.aclose()).ok


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """Run a real server over HTTP for all tests."""
    with listening(program=WITH_THE_SDK) as url:
        yield url


@pytest.mark.backends("trio")
async def test_a_real_server_is_told_of_abandoned_calls() -> None:
    """What it does for a cancelled call is cancelled there."""
    with notes() as seen:
        async with quiesce.Scope("test") as scope:
            session = await connect_stdio(scope, real(*seen.options))
            async with anyio.create_task_group() as group:
                group.start_soon(session.call_tool, "wait")
                await seen.wait_for("waiting")
                group.cancel_scope.cancel()
            assert await seen.wait_for("cancelled")
            await session.aclose()


# Over HTTP.


async def _hang(session: Session) -> Exception:
    try:
        await session.call_tool("hang")
    except Exception as error:
        return error
    raise AssertionError


async def test_nobody_listens_at_the_url() -> None:
    """The error names the server, and what the HTTP client says."""
    url = "http://127.0.0.1:9/mcp"
    async with quiesce.Scope("test") as scope:
        with pytest.raises(ServerLost, match=r"127\.0\.0\.1:9/mcp' cannot be reached.*connect"):
            await connect_http(scope, url, connect_within=5)


async def test_a_server_over_http_that_dies_ends_the_calls_with_the_reason() -> None:
    """Those in flight, too; the next call tries to connect again."""
    with notes() as seen, listening(*seen.options) as url:
        async with quiesce.Scope("test") as scope:
            session = await connect_http(scope, url, name="web")
            job = scope.spawn(_hang, session)
            await seen.wait_for("called hang")
            with pytest.raises(ServerLost, match=r"'web' is gone \(.+\): call_tool crash"):
                await session.call_tool("crash")
            assert isinstance(await job, ServerLost)
            with pytest.raises(ServerLost, match="cannot be reached"):
                await session.call_tool("echo")
            assert not session.connected
            await session.aclose()


async def test_a_server_over_http_that_forgets_the_session_is_connected_to_again() -> None:
    """As after a restart behind the same URL."""
    with listening() as url:
        async with quiesce.Scope("test") as scope:
            session = await connect_http(scope, url, name="web")
            await session.call_tool("echo")
            with pytest.raises(ServerLost, match="'web' is gone"):
                await session.call_tool("forget")
            assert (await session.call_tool("echo", {"text": "here"})).content[0].text == "here"
            assert session.starts == 2
            await session.aclose()


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_scope_that_adopts_tasks_takes_those_of_the_sdk_for_services() -> None:
    """They keep nobody busy, and their end is no loss."""
    with listening() as url:
        async with quiesce.Scope("test", adopt=True) as scope:
            for session in (
                await connect_http(scope, url),
                await connect_stdio(scope, plain_server()),
            ):
                await session.call_tool("echo")
            with anyio.fail_after(5):
                await scope.idle()
        assert scope.report is not None
        assert scope.report.ok, scope.report


async def test_an_error_over_http_is_that_of_the_server() -> None:
    """An answer is an answer, also with the code that the SDK uses for a lost connection."""
    with listening() as url:
        async with quiesce.Scope("test") as scope:
            session = await connect_http(scope, url)
            with pytest.raises(versions.Error, match="refused"):
                await session.call_tool("refuse")
            assert session.connected
            await session.aclose()


async def test_a_close_over_http_is_bounded_and_ends_calls() -> None:
    """Also if the server answers nothing any more."""
    with notes() as seen, listening("--hang-delete", *seen.options) as url:
        async with quiesce.Scope("test") as scope:
            session = await connect_http(scope, url, exit_seconds=0.2)
            job = scope.spawn(_hang, session)
            await seen.wait_for("called hang")
            with anyio.fail_after(3):
                report = await session.aclose()
            assert isinstance(await job, ScopeClosed)
            assert not report.stuck
            assert "deleted" in seen.lines()
