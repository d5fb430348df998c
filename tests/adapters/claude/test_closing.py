"""The adapter for claude-agent-sdk ends what it has begun: from anywhere, within bounds, with a report."""

from __future__ import annotations

import gc
import importlib
import os
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import anyio
import claude_agent_sdk
import pytest
from claude_agent_sdk import AssistantMessage, HookMatcher, ResultMessage

from quiesce import Scope
from quiesce.errors import ArgumentError, SdkMissing, SdkUnknown, UsageError
from quiesce.integrations import claude
from quiesce.integrations.claude import ClaudeSDKClient, query, sdk_private
from quiesce.integrations.claude.cli_process import CliProcess
from quiesce.testing import sweep
from tests.adapters.claude.host import Custom, Host, beside_the_bare_sdk, hosted, until
from tests.adapters.claude.memory import living, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.real_time

GRACE_SECONDS = 0.4
AMPLE_SECONDS = 30.0  # more than any of these CLIs takes to end by itself
two_backends = pytest.mark.backends("asyncio", "trio")


@pytest.fixture
def thinking() -> Iterator[Host]:
    """Return a CLI that thinks before it comes to the result."""
    with hosted("--think", "{}") as host:
        yield host


@pytest.fixture
def stubborn() -> Iterator[Host]:
    """Return a CLI that goes neither at the end of its input nor at SIGTERM, with a child."""
    with hosted("--stubborn", "--flush", "20", "--child") as host:
        yield host


@pytest.fixture
def plain() -> Iterator[Host]:
    """Return a CLI that answers at once."""
    with hosted() as host:
        yield host


async def to_the_assistant(messages: Any) -> Any:
    """Read until the CLI thinks."""
    async for message in messages:
        if isinstance(message, AssistantMessage):
            return messages
    return None


def entries(frontier: Any) -> Iterator[Any]:
    """Go through all entries of a frontier."""
    for entry in frontier:
        yield entry
        yield from entries(entry.children)


async def test_the_frontier_shows_the_cli(thinking: Host) -> None:
    """While it answers, the CLI is there with its process id, its state and its command line."""
    async with Scope("test") as scope:
        messages = query(prompt="x", options=thinking.options(), grace=GRACE_SECONDS)
        await to_the_assistant(messages)
        assert [entry.kind for entry in scope.frontier().in_flight] == ["stream"]
        (process,) = [entry for entry in entries(scope.frontier()) if entry.kind == "process"]
        assert process.details["pid"] == thinking.pids[-1]
        assert process.details["state"] == "ready"
        assert process.details["program"] == str(thinking.command)
        assert "Query._read_messages" in [entry.name for entry in entries(scope.frontier())]
        await messages.aclose()
        assert not list(entries(scope.frontier()))
        assert not thinking.alive()


async def test_a_connected_client_is_idle(plain: Host) -> None:
    """A client that waits for its next prompt does not keep its scope from being idle."""
    async with Scope("test") as scope:
        async with ClaudeSDKClient(plain.options()) as client:
            await client.query("x")
            assert [m async for m in client.receive_response()]
            await scope.idle()
        assert not plain.alive()


async def test_a_cancelled_reader_of_a_client_loses_nothing(thinking: Host) -> None:
    """What a reader was cancelled for is there for the next one: a client outlives its readers."""
    async with Scope("test"), ClaudeSDKClient(thinking.options()) as client:
        await client.query("x")
        await to_the_assistant(client.receive_messages())
        with anyio.move_on_after(0.01):
            await anext(client.receive_response())
        thinking.thought.touch()
        assert isinstance(await anext(client.receive_response()), ResultMessage)


@two_backends
async def test_a_cancelled_reader_of_a_query_ends_the_cli(thinking: Host) -> None:
    """It ends while the scope is open, and the stream and the exception are kept."""
    kept: list[BaseException] = []
    async with Scope("test") as scope:
        messages = query(prompt="x", options=thinking.options(), grace=GRACE_SECONDS)
        await to_the_assistant(messages)
        with anyio.CancelScope() as reader:
            try:
                reader.cancel()
                await anext(messages)
            except anyio.get_cancelled_exc_class() as error:
                kept.append(error)
                raise
        await scope.idle()
        assert not thinking.alive()
        assert kept


async def test_reading_ends_when_another_task_disconnects(thinking: Host) -> None:
    """A reader that waits sees the end of the messages."""
    async with Scope("test"):
        client = ClaudeSDKClient(thinking.options(), grace=GRACE_SECONDS)
        await client.connect()
        await client.query("x")
        messages = await to_the_assistant(client.receive_messages())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.disconnect)
            assert [message async for message in messages] == []


async def test_a_hook_may_disconnect() -> None:
    """The close is called for from inside what it has to end."""
    with hosted("--hook") as host:
        called = anyio.Event()

        async def hook(*_: object) -> Any:
            await client.disconnect()
            called.set()
            return {}

        options = host.options(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
        async with Scope("test"):
            client = ClaudeSDKClient(options, grace=GRACE_SECONDS)
            await client.connect()
            await client.query("x")
            await called.wait()
            assert not host.alive()


async def test_a_drain_lets_a_query_and_its_hook_finish() -> None:
    """Work in flight is finished: the hook is called, and its answer comes back in the result."""
    with hosted("--hook", "--think", "{}") as host:
        seen: list[Any] = []

        async def hook(*_: object) -> Any:
            return {"systemMessage": "it was called"}

        async def ask() -> None:
            options = host.options(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
            seen.extend([message async for message in query(prompt="x", options=options)])

        async with Scope("test") as scope:
            scope.spawn(ask)
            await host.started()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(scope.drain)
                await scope.closing()
                host.thought.touch()
        assert "it was called" in seen[-1].result
        assert scope.report is not None
        assert scope.report.ok


@two_backends
async def test_a_hook_that_does_not_end_is_named_in_the_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A close is bounded; what it had to leave is told, and where it was."""
    release, begun, ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def hook(*_: object) -> Any:
        begun.set()
        with anyio.CancelScope(shield=True):
            while not release.is_set():
                try:
                    await release.wait()
                except anyio.get_cancelled_exc_class():
                    continue
        ended.set()
        return {}

    with hosted("--hook") as host:
        options = host.options(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
        async with Scope("test"):
            client = ClaudeSDKClient(options, grace=0.05)
            await client.connect()
            await client.query("x")
            await begun.wait()
            await client.disconnect()
            assert not host.alive()
            assert client.report is not None
            assert [item.name for item in client.report.stuck] == ["PreToolUse hook"]
            assert "PreToolUse hook" in caplog.text
            release.set()
            await ended.wait()


@two_backends
@pytest.mark.parametrize("way", ["query", "client"])
async def test_a_stubborn_cli_is_killed_with_its_children(stubborn: Host, way: str) -> None:
    """After the grace there is SIGTERM, then SIGKILL, to the whole group; then the close returns."""
    async with Scope("test"):
        if way == "query":
            messages = query(prompt="x", options=stubborn.options(), grace=0.1)
            await to_the_assistant(messages)
            await messages.aclose()
        else:
            async with ClaudeSDKClient(stubborn.options(), grace=0.1):
                pass
        assert len(stubborn.pids) == 1 + 1
        assert not stubborn.alive()
        assert "terminated" in stubborn.notes


async def test_the_close_of_the_scope_is_in_time(stubborn: Host) -> None:
    """A scope with little time does not wait for the grace of the CLI."""
    scope = await Scope.open("test")
    client = ClaudeSDKClient(stubborn.options(), grace=30.0, scope=scope)
    await client.connect()
    before = anyio.current_time()
    await scope.aclose(cleanup=0.5)
    assert anyio.current_time() - before < 5.0
    assert not stubborn.alive()
    assert "terminated" in stubborn.notes  # there was time for that


@two_backends
async def test_the_cli_may_flush_within_the_grace() -> None:
    """A CLI that goes by itself when its input has ended is not sent a signal."""
    with hosted("--flush", "0.2") as host:
        async with Scope("test"):
            async for _ in query(prompt="x", options=host.options(), grace=5.0):
                break
        assert host.notes[1:] == ["initialized", "ended", "flushed"]


@pytest.mark.parametrize("flags", [(), ("--novel",), ("--messages", "200")])
async def test_a_stream_that_was_left_does_not_hold_up_the_end_of_its_scope(
    flags: tuple[str, ...],
) -> None:
    """After `break` nobody reads on, so the block's end closes it, although it is still known."""
    with hosted("--think", "{}", *flags) as thinking:
        with anyio.fail_after(5):
            async with Scope("test") as scope:
                messages = query(prompt="x", options=thinking.options(), grace=0.1)
                await to_the_assistant(messages)
        assert not thinking.alive()
    assert "closed" in repr(messages) or "ended" in repr(messages)
    assert scope.state == "closed"


@two_backends
async def test_much_that_was_never_read_holds_up_nothing() -> None:
    """A CLI that still has much to write gets rid of it, and ends by itself."""
    with hosted("--messages", "1000", "--size", "2000") as host:
        async with Scope("test"):
            messages = query(prompt="x", options=host.options())
            await to_the_assistant(messages)
            processes = [each for each in gc.get_objects() if type(each) is CliProcess]
            (cli,) = [process for process in processes if process.pid == host.pids[-1]]
            await until(lambda: cli.stdout._unwatch is None)  # it is held up, as all is full
            await messages.aclose()
        assert host.notes[1:] == ["initialized", "ended", "flushed"]


async def test_what_a_transport_raises_when_it_is_closed_is_raised() -> None:
    """`disconnect()` raises it, as that of the SDK does, when all else is closed."""
    transport = Custom()
    transport.failure = ValueError("not today")
    async with Scope("test"):
        client = ClaudeSDKClient(None, transport)
        await client.connect()
        with pytest.raises(ValueError, match="not today"):
            await client.disconnect()
    assert transport.closed


def open_files() -> int:
    """Count our file descriptors."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - quick


@two_backends
@pytest.mark.parametrize("way", ["query", "client"])
async def test_many_conversations_leave_nothing(plain: Host, way: str) -> None:
    """Objects of each class, files and scopes are as many after six conversations as after the second."""
    counts = []
    async with Scope("test") as scope:
        for _ in range(6):
            await use(way, plain, scope)
            counts.append((living(), open_files(), len(scope.children), len(scope.holds)))
        assert not plain.alive()
    assert counts[-1] == counts[1]


@two_backends
@beside_the_bare_sdk
async def test_the_bare_sdk_in_the_same_program_is_left_alone(backend: str) -> None:
    """Its process is no process of ours, not even inside a hook of ours."""
    if backend == "trio" and hasattr(sdk_private._part("query"), "asyncio"):
        pytest.skip("this version of the SDK has no trio without quiesce")
    seen: list[Any] = []

    async def ask() -> None:
        async for _ in claude_agent_sdk.query(prompt="x", options=other.options()):
            seen.extend(e for e in entries(scope.frontier()) if e.kind == "process")

    async def hook(*_: object) -> Any:
        await ask()
        return {}

    with hosted("--hook") as host, hosted("--flush", "0.3") as other:  # it is there all the time
        async with Scope("test") as scope:
            await ask()
            options = host.options(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
            assert [message async for message in query(prompt="x", options=options)]
        assert len(other.pids) == 1 + 1
        assert {entry.details["pid"] for entry in seen} == {host.pids[-1]}


def test_nothing_is_made_that_nobody_would_own(plain: Host) -> None:
    """Without a scope there is an error that says what to do."""
    with pytest.raises(UsageError, match="needs a scope that owns it"):
        query(prompt="x", options=plain.options())


@two_backends
@pytest.mark.parametrize("grace", [-1, "long", float("nan")])
async def test_a_grace_is_a_number_of_seconds(plain: Host, grace: Any) -> None:
    """Anything else is refused at once."""
    async with Scope("test"):
        with pytest.raises(ArgumentError, match="grace"):
            query(prompt="x", options=plain.options(), grace=grace)
        with pytest.raises(ArgumentError, match="grace"):
            ClaudeSDKClient(plain.options(), grace=grace)


def test_an_sdk_without_what_we_need_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer version that has lost one of the private names is named, and not guessed at."""
    transport, protocol = sdk_private._part("transport.subprocess_cli"), sdk_private._part("query")
    for owner, name in (
        (transport, "SubprocessCLITransport"),
        (transport, "anyio"),
        (protocol, "anyio"),
        (protocol, "Query"),
    ):
        with monkeypatch.context() as patch:
            patch.delattr(owner, name)
            with pytest.raises(SdkUnknown, match=rf"{owner.__name__}\.{name}"):
                sdk_private.install_stand_ins()


@two_backends
async def test_an_sdk_that_starts_its_cli_otherwise_is_refused(
    plain: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is not ours is noticed, closed by the SDK, and refused."""
    transport = sdk_private._part("transport.subprocess_cli")
    monkeypatch.setattr(transport.anyio, "open_process", anyio.open_process)
    async with Scope("test"):
        with pytest.raises(SdkUnknown, match=r"anyio\.open_process"):
            await anext(query(prompt="x", options=plain.options()))
    assert not plain.alive()


def test_an_old_sdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setattr(metadata, "version", lambda _: "0.1.49")
    with pytest.raises(
        SdkMissing, match=r"0\.1\.50 or newer.*pip install --upgrade '\.\[claude\]'"
    ):
        importlib.reload(claude)


@pytest.mark.backends("trio")
async def test_a_session_store_that_needs_asyncio_is_refused_on_trio(plain: Host) -> None:
    """Those versions of the SDK that have stores only for asyncio say so, at once."""
    if not hasattr(sdk_private._optional("transcript_mirror_batcher"), "asyncio"):
        pytest.skip("this version has no stores, or has them for trio")
    options = plain.options(session_store=object())
    async with Scope("test"):
        with pytest.raises(UsageError, match="needs asyncio"):
            await anext(query(prompt="x", options=options))
        with pytest.raises(UsageError, match="needs asyncio"):
            await ClaudeSDKClient(options).connect()


async def ask_and_leave(host: Host) -> None:
    """Ask, and stop at the first message."""
    async with Scope("swept"):
        messages = query(prompt="x", options=host.options(), grace=AMPLE_SECONDS)
        async for _ in messages:
            break
        await messages.aclose()
        assert not host.alive()


async def connect_and_disconnect(host: Host) -> None:
    """Open a client, and close it."""
    async with Scope("swept"):
        client = ClaudeSDKClient(host.options(), grace=AMPLE_SECONDS)
        await client.connect()
        await client.disconnect()
        assert not host.alive()


@pytest.mark.parametrize(
    ("where", "depth"), [("all", 1), ("task", 2)], ids=["once anywhere", "twice in its own steps"]
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("scenario", [ask_and_leave, connect_and_disconnect])
def test_cancelled_anywhere_nothing_is_left(
    plain: Host,
    caplog: pytest.LogCaptureFixture,
    scenario: Callable[[Host], Any],
    backend: Any,
    where: Any,
    depth: int,
) -> None:
    """Wherever the caller is cancelled, once or twice: the CLI ends by itself, and nothing is left."""

    def check() -> None:
        assert not plain.alive()
        assert "not ended cleanly" not in caplog.text
        caplog.clear()

    ways: list[Any] = ["native", "scope"] if backend == "asyncio" else ["scope"]
    found = sweep(
        partial(scenario, plain),
        where=where,
        depth=depth,
        backend=backend,
        cancel=ways if where == "task" else ways[0],
        check=check,
        hang_seconds=10.0,
    )
    assert found.ok, str(found)
    assert found.points > 1
