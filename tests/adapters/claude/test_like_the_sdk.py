"""The adapter for claude-agent-sdk gives what the SDK gives: messages, options, errors, callbacks."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import anyio
import claude_agent_sdk
import pytest
from claude_agent_sdk import (
    AssistantMessage,
    CLIConnectionError,
    CLINotFoundError,
    HookMatcher,
    PermissionResultAllow,
    ResultMessage,
)

from quiesce import Scope, current_scope
from quiesce.integrations.claude import ClaudeSDKClient, query
from quiesce.integrations.claude.handover import ReceivingEnd, SendingEnd
from tests.adapters.claude.host import Host, beside_the_bare_sdk, tool_server, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = pytest.mark.real_time
two_backends = pytest.mark.backends("asyncio", "trio")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Host]:
    """Return a maker of hosts."""

    def host(*flags: str) -> Host:
        folder = tmp_path / f"host{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return Host(folder, *flags)

    return host


def bare(program: Callable[[], Awaitable[Any]]) -> Any:
    """Run a program with the SDK alone, on asyncio: every version can do that."""

    async def main() -> Any:
        return await program()

    return asyncio.run(main())


async def collect(messages: Any) -> list[Any]:
    """Read to the end."""
    return [message async for message in messages]


def told(messages: list[Any]) -> Any:
    """Return what the CLI has told in its result."""
    (result,) = [message for message in messages if isinstance(message, ResultMessage)]
    assert result.result is not None
    return json.loads(result.result)


RICH = {
    "model": "some-model",
    "system_prompt": "Be brief.",
    "allowed_tools": ["Bash"],
    "max_turns": 3,
    "extra_args": {"debug": None, "flag": "value"},
    "env": {"ROW": "of the options"},
}


def rich(host: Host) -> Any:
    """Return options of many kinds."""
    return host.options(**RICH, cwd=host.folder)


@beside_the_bare_sdk
async def test_query_gives_the_messages_of_the_sdk(backend: str, make: Any) -> None:
    """Command line, environment, folder, prompt and messages are those of the bare SDK."""
    host = make("--messages", "3")
    prompt = "Are you there?"
    expected = await anyio.to_thread.run_sync(
        bare, lambda: collect(claude_agent_sdk.query(prompt=prompt, options=rich(host)))
    )
    async with Scope("test"):
        got = await collect(query(prompt=prompt, options=rich(host)))
    assert got == expected
    facts = told(got)
    assert facts["prompts"] == [prompt]
    assert facts["environment"]["ROW"] == "of the options"
    assert facts["folder"] == str(host.folder)
    assert {"--model", "some-model", "--flag"} <= set(facts["arguments"])


async def prompts() -> AsyncIterator[dict[str, Any]]:
    """Ask in more than one message."""
    for text in ("first", "second"):
        yield {"type": "user", "message": {"role": "user", "content": text}}


async def test_a_prompt_may_be_an_async_iterable(make: Any) -> None:
    """Each message of the prompt is sent."""
    async with Scope("test"):
        got = await collect(query(prompt=prompts(), options=make().options()))
    results = [message.result for message in got if isinstance(message, ResultMessage)]
    assert json.loads(results[-1])["prompts"] == ["first", "second"]


async def converse(client: Any) -> list[Any]:
    """Use many methods of a client."""
    async with client:
        seen: list[Any] = [await client.get_server_info()]
        for prompt in ("one", "two"):
            await client.query(prompt)
            seen.append([message async for message in client.receive_response()])
        await client.interrupt()
        await client.set_model("another-model")
        seen.append(await client.get_mcp_status())
    return seen


@beside_the_bare_sdk
async def test_a_client_converses_as_the_sdks_does(make: Any) -> None:
    """Every method gives the same as that of the SDK's client."""
    host = make()
    expected = await anyio.to_thread.run_sync(
        bare, lambda: converse(claude_agent_sdk.ClaudeSDKClient(rich(host)))
    )
    async with Scope("test"):
        got = await converse(ClaudeSDKClient(rich(host)))
    assert got == expected
    assert told(got[2])["prompts"] == ["one", "two"]


async def test_what_the_cli_writes_to_stderr_gets_to_the_callback(make: Any) -> None:
    """`options.stderr` is called with the lines of the CLI's stderr."""
    lines: list[str] = []
    async with Scope("test"):
        options = make("--complain").options(stderr=lines.append)
        await collect(query(prompt="Are you there?", options=options))
    assert lines == ["a complaint"]


@two_backends
@pytest.mark.parametrize("size", [70_000, 900_000])
async def test_a_long_message_arrives_whole(make: Any, size: int) -> None:
    """A line may be longer than a pipe holds, and than what is read at once."""
    async with Scope("test"):
        got = await collect(
            query(prompt="Are you there?", options=make("--size", str(size)).options())
        )
    (message,) = [message for message in got if isinstance(message, AssistantMessage)]
    assert len(message.content[0].text) == size + len("I am on it.")


@two_backends
async def test_a_slow_reader_misses_nothing(make: Any) -> None:
    """The CLI waits when more is written than anybody wants to keep."""
    options = make("--messages", "600", "--size", "2000").options()
    async with Scope("test"):
        seen = []
        async for message in query(prompt="Are you there?", options=options):
            if isinstance(message, AssistantMessage):
                seen.append(message.content[0].text.rstrip("."))
                await anyio.lowlevel.checkpoint()
    assert seen[1:] == [str(number) for number in range(1, 600)]


@two_backends
async def test_an_error_comes_after_all_that_was_said_before(make: Any) -> None:
    """A CLI that has failed long ago: its reader gets every message first, in order."""
    host = make("--messages", "300", "--exit", "3")
    seen: list[Any] = []

    async def listen() -> None:
        async for message in messages:
            seen.extend(block.text for block in message.content)

    async with Scope("test"):
        messages = query(prompt="Are you there?", options=host.options())
        await anext(messages)
        await until(lambda: not host.alive())
        with pytest.raises(Exception, match="exit code 3"):
            await listen()
    assert seen[1:] == [str(number) for number in range(1, 300)]


@two_backends
@pytest.mark.parametrize("turns", range(6))
async def test_the_last_word_comes_after_all_messages_whenever_it_is_sent(turns: int) -> None:
    """The SDK's reader task fails while the stream is full, and while a read has begun and has not ended."""
    send, receive = anyio.create_memory_object_stream[dict[str, Any]](2)
    receiving = ReceivingEnd(receive)
    sending = SendingEnd(send, receiving)
    seen: list[str] = []

    async def read() -> None:
        while "end" not in seen:
            seen.append((await receiving.receive())["type"])

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group, send, receive:
            group.start_soon(read)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            for word in ("user", "assistant", "error", "end"):
                if word in {"user", "assistant"}:
                    send.send_nowait({"type": word})
                else:
                    await sending.send({"type": word})
            while "end" not in seen:
                await anyio.lowlevel.checkpoint()
    assert seen == ["user", "assistant", "error", "end"]


@pytest.mark.parametrize("way", ["query", "client"])
async def test_messages_that_are_there_need_no_turn_of_the_event_loop(make: Any, way: str) -> None:
    """The CLI writes twenty at once: the one who reads the first waits for none of the others."""
    options = make("--messages", "20", "--novel").options()
    async with Scope("test"), ClaudeSDKClient(options) as client:
        if way == "query":
            messages: Any = query(prompt="Are you there?", options=options)
        else:
            await client.query("Are you there?")
            messages = client.receive_response()
        while not isinstance(await anext(messages), AssistantMessage):
            pass
        for number in range(1, 20):
            with pytest.raises(StopIteration) as told:
                messages.__anext__().send(None)
            assert told.value.value.content[0].text == str(number)
        assert isinstance(await anext(messages), ResultMessage)
        if way == "query":
            await messages.aclose()


def failing(name: str, make: Any) -> Any:
    """Return options with which asking fails."""
    host = make(*(["--exit", "3"] if name == "a CLI that fails" else []))
    if name == "no CLI":
        host.command.unlink()
    if name == "no folder":
        return host.options(cwd=host.folder / "nowhere")
    if name == "too long a message":
        return make("--size", "3000").options(max_buffer_size=2000)
    return host.options()


async def asked(ask: Any, client: Any, way: str, options: Any) -> None:
    """Ask one way or the other."""
    if way == "query":
        await collect(ask(prompt="Are you there?", options=options))
        return
    async with client(options) as it:
        await it.query("Are you there?")
        await collect(it.receive_response())


@two_backends
@beside_the_bare_sdk
@pytest.mark.parametrize("name", ["no CLI", "no folder", "a CLI that fails", "too long a message"])
@pytest.mark.parametrize("way", ["query", "client"])
async def test_errors_are_those_of_the_sdk(make: Any, name: str, way: str) -> None:
    """What the SDK raises comes out as it is: type and text."""
    options = failing(name, make)

    async def fail(ask: Any, client: Any) -> BaseException:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - compared below
            await asked(ask, client, way, options)
        return caught.value

    expected = await anyio.to_thread.run_sync(
        bare, lambda: fail(claude_agent_sdk.query, claude_agent_sdk.ClaudeSDKClient)
    )
    async with Scope("test"):
        got = await fail(query, ClaudeSDKClient)
    assert (type(got), str(got)) == (type(expected), str(expected))


async def test_without_a_cli_the_error_says_what_to_install(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's own advice gets to the user."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    async with Scope("test"):
        with pytest.raises(CLINotFoundError, match="npm install -g @anthropic-ai/claude-code"):
            await collect(query(prompt="Are you there?"))


async def hook(given: Any, tool_use_id: Any, context: Any) -> Any:
    """Answer with what was given, and with the scope that has this call."""
    scope = current_scope()
    return {"given": given, "scope": None if scope is None else scope.name}


async def permit(name: str, given: Any, context: Any) -> Any:
    """Permit, with another input."""
    return PermissionResultAllow(updated_input={"name": name, **given})


async def add(given: Any) -> Any:
    """Answer with the sum, as the tool."""
    return {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}


async def test_hooks_are_called_and_answered(make: Any) -> None:
    """A hook's answer gets to the CLI; the hook runs in the scope of the callbacks."""
    async with Scope("test"):
        options = make("--hook").options(hooks={"PreToolUse": [HookMatcher(hooks=[hook])]})
        got = await collect(query(prompt="Are you there?", options=options))
    assert told(got)["answers"] == [{"given": {"tool": "x"}, "scope": "claude query callbacks"}]


async def test_a_hook_that_raises_is_answered_with_its_error(make: Any) -> None:
    """Its failure is the CLI's to know, and no failure of the scope."""

    async def fail(*_: object) -> Any:
        message = "not today"
        raise ValueError(message)

    async with Scope("test") as scope:
        options = make("--hook").options(hooks={"PreToolUse": [HookMatcher(hooks=[fail])]})
        got = await collect(query(prompt="Are you there?", options=options))
    assert told(got)["answers"] == ["not today"]
    assert scope.report is not None
    assert scope.report.ok


async def test_permissions_are_asked_for_and_answered(make: Any) -> None:
    """`can_use_tool` answers the CLI, with a client as with a query."""
    async with Scope("test"):
        options = make("--permission").options(can_use_tool=permit)
        async with ClaudeSDKClient(options) as client:
            await client.query("Are you there?")
            got = await collect(client.receive_response())
    answer = {"behavior": "allow", "updatedInput": {"name": "Bash", "command": "ls"}}
    assert told(got)["answers"] == [answer]
    assert "stdio" in told(got)["arguments"]  # the SDK has told the CLI to ask it


async def test_tools_of_an_sdk_mcp_server_are_called(make: Any) -> None:
    """A tool's answer gets to the CLI."""
    try:
        server = tool_server(add)
    except AttributeError:
        pytest.skip("an SDK for mcp 1, with mcp 2")
    async with Scope("test"):
        options = make("--tool").options(mcp_servers={"tools": server})
        got = await collect(query(prompt="Are you there?", options=options))
    answer = told(got)["answers"][-1]["mcp_response"]
    assert answer["result"]["content"] == [{"type": "text", "text": "3"}]


async def test_a_client_that_is_not_connected_says_so_as_the_sdks_does(make: Any) -> None:
    """Reading, asking and the rest raise the SDK's error; disconnecting is nothing."""
    client = ClaudeSDKClient(make().options())
    await client.disconnect()
    for call in (
        lambda: client.query("Are you there?"),
        client.interrupt,
        lambda: anext(client.receive_messages()),
        lambda: client.set_model("x"),
    ):
        with pytest.raises(CLIConnectionError, match="Not connected"):
            await call()


@two_backends
async def test_a_client_may_connect_again(make: Any) -> None:
    """After a disconnect, or while it is connected: then the first conversation ends first."""
    host = make()
    async with Scope("test"):
        client = ClaudeSDKClient(host.options())
        await client.connect()
        await client.connect("with a prompt")
        assert len(host.alive()) == 1
        await client.disconnect()
        assert client.report is not None
        assert client.report.ok
        await client.connect()
        await client.query("again")
        assert told(await collect(client.receive_response()))["prompts"] == ["again"]
        await client.disconnect()
    assert len(host.pids) == 3
