"""What goes wrong with claude-agent-sdk: the table of the documentation, each fault a small program.

In the way `bare` the SDK is used as its documentation says; in the way `quiesce`, through the
adapter, in a scope. `claude_host.py` has the fake CLI.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import threading
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import claude_agent_sdk
import sniffio
import trio
from claude_agent_sdk import AssistantMessage, HookMatcher, PermissionResultAllow, ResultMessage

import quiesce
from tests.adapters.claude.host import Custom, Host, exists, hosted, tool_server, until
from tests.adapters.known_faults import Absent, KnownFaults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.adapters.known_faults import Way

known_fault = KnownFaults()

GRACE_SECONDS = 0.4
FLUSH = ("--flush", "0.15")  # it is still there when we look, and within the grace
SLOW_SECONDS = 0.1
ALL = ("asyncio", "uvloop", "trio")
BOTH = ("asyncio", "trio")


def scope(way: Way) -> Any:
    """Open a scope, if there is to be one."""
    return quiesce.Scope("fault") if way == "quiesce" else nullcontext()


def adapter() -> Any:
    """Import it, in a fault that is about it: the others have the SDK as it is."""
    from quiesce.integrations import claude  # noqa: PLC0415 - see above

    return claude


def ask(way: Way, host: Host, **more: Any) -> Any:
    """Ask, with the SDK or with the adapter; more are options."""
    transport = more.pop("transport", None)
    grace = more.pop("grace", GRACE_SECONDS)
    given = {"prompt": "Are you there?", "options": host.options(**more), "transport": transport}
    if way == "bare":
        return claude_agent_sdk.query(**given)
    return adapter().query(**given, grace=grace)


def client(way: Way, host: Host, **more: Any) -> Any:
    """Return a client, of the SDK or of the adapter; more are options."""
    transport, grace = more.pop("transport", None), more.pop("grace", GRACE_SECONDS)
    if way == "bare":
        return claude_agent_sdk.ClaudeSDKClient(host.options(**more), transport)
    return adapter().ClaudeSDKClient(host.options(**more), transport, grace=grace)


async def read_to_the_result(messages: Any) -> None:
    """Leave the loop as a program does that has what it asked for."""
    async for message in messages:
        if isinstance(message, ResultMessage):
            break


@asynccontextmanager
async def complaints() -> AsyncIterator[list[str]]:
    """Note what the event loop complains of."""
    found: list[str] = []
    if sniffio.current_async_library() == "trio":
        yield found
        return
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: found.append(str(context.get("exception") or context["message"]))
    )
    try:
        yield found
    finally:
        loop.set_exception_handler(None)


def told(found: list[str]) -> str | None:
    """Say in a few words what the event loop has complained of."""
    for words in ("different task", "already running"):
        if any(words in text for text in found):
            return "cross-task error" if words == "different task" else f"generator {words}"
    return "the event loop complains" if found else None


def tasks_living() -> int:
    """Count the tasks of this event loop."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


async def gone_or_not(host: Host, tasks_before: int, seconds: float = 0.5) -> None:
    """Let a program that has stopped reading go on until nothing of it is left, or for a while."""
    with anyio.move_on_after(seconds):
        await until(lambda: not any(map(exists, host.pids)) and tasks_living() <= tasks_before)


@known_fault("`break` on the result", backends=ALL, seconds=6)
async def _(way: Way) -> str | None:
    before = tasks_living()
    with hosted() as host:
        async with complaints() as found:
            try:
                async with scope(way):
                    await read_to_the_result(ask(way, host))
                if way == "bare":
                    gc.collect()
                    await gone_or_not(host, before)
            except asyncio.CancelledError:
                return "host cancelled"
        return told(found)


@known_fault("`break`, then collected in another task", backends=BOTH, seconds=6)
async def _(way: Way) -> str | None:
    async def read(host: Host) -> None:
        messages = ask(way, host)
        cycle: list[Any] = [messages]
        cycle.append(cycle)
        await read_to_the_result(messages)

    async def collect() -> None:
        gc.collect()

    before = tasks_living()
    gc.disable()
    with hosted(*FLUSH) as host:
        async with complaints() as found:
            try:
                async with scope(way):
                    await read(host)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(collect)
                    await anyio.lowlevel.checkpoint()
                if way == "bare":
                    await gone_or_not(host, before)
            except asyncio.CancelledError:
                return "host cancelled"
        return told(found)


@known_fault("`aclosing(query())` exits", backends=ALL, seconds=6)
async def _(way: Way) -> str | None:
    before = tasks_living()
    with hosted(*FLUSH) as host:
        try:
            async with scope(way):
                async with aclosing(ask(way, host)) as messages:
                    await read_to_the_result(messages)
                alive = host.alive()
            if way == "bare":
                await gone_or_not(host, before)
        except asyncio.CancelledError:
            return "host cancelled"
        return "CLI alive" if alive else None


@known_fault("reader cancelled in mid-stream", backends=BOTH, seconds=6)
async def _(way: Way) -> str | None:
    thinking = anyio.Event()

    async def read(messages: Any) -> None:
        async for message in messages:
            if isinstance(message, AssistantMessage):
                thinking.set()

    with hosted(*FLUSH, "--think", "{}") as host:
        async with scope(way):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, ask(way, host))
                await thinking.wait()
                host.thought.touch()
                tasks.cancel_scope.cancel()
            return "CLI alive" if host.alive() else None  # while the scope is open


@known_fault("cancel `connect()`", backends=ALL, seconds=6)
async def _(way: Way) -> str | None:
    with hosted("--mute") as host:
        async with scope(way):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client(way, host).connect)
                await host.started()
                tasks.cancel_scope.cancel()
            return "CLI alive" if host.alive() else None


@known_fault("`disconnect()` from another task", backends=ALL, seconds=6)
async def _(way: Way) -> str | None:
    with hosted() as host:
        async with scope(way):
            it = client(way, host)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(it.connect)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(it.disconnect)
            return "CLI alive" if host.alive() else None


@known_fault("a CLI that has a child of its own", backends=BOTH, seconds=6)
async def _(way: Way) -> str | None:
    with hosted("--child") as host:
        async with scope(way):
            async with client(way, host) as it:
                await it.query("Are you there?")
                await read_to_the_result(it.receive_response())
            return "process alive" if host.alive() else None


@known_fault("two cancellations, stubborn CLI", backends=("asyncio", "uvloop"), seconds=8)
async def _(way: Way) -> str | None:
    with hosted("--stubborn", "--flush", "20") as host:

        async def converse() -> None:
            async with client(way, host):
                connected.set()
                await anyio.sleep_forever()

        connected = asyncio.Event()
        async with scope(way):
            task = asyncio.create_task(converse())
            await connected.wait()
            task.cancel()
            await host.noted("ended")  # its input: it is waited for
            task.cancel()
            await asyncio.wait([task])
            if host.alive():
                return "CLI alive"
        return None if task.cancelled() else "cancellation swallowed"


@known_fault("`disconnect()` cancelled, stubborn CLI", backends=("trio",), seconds=8)
async def _(way: Way) -> str | None:
    with hosted("--stubborn", "--flush", "20") as host:
        async with scope(way):
            it = client(way, host)
            await it.connect()
            with anyio.CancelScope() as patience:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cancel_when_noted, host, "ended", patience)
                    await it.disconnect()
            return "CLI alive" if host.alive() else None


async def cancel_when_noted(host: Host, event: str, patience: anyio.CancelScope) -> None:
    """Cancel what is under way when the CLI has told something."""
    await host.noted(event)
    patience.cancel()


class Slow:
    """A function of the user's that takes its time to clean up when it is cancelled."""

    def __init__(self, answer: Any) -> None:
        """Begin nothing."""
        self.begun = anyio.Event()
        self.answer = answer
        self.ended = False

    async def __call__(self, *_: object) -> Any:
        """Wait in flight until it is cancelled."""
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(SLOW_SECONDS)
            self.ended = True
        return self.answer


async def disconnected(way: Way, flag: str, slow: Slow, **more: Any) -> str | None:
    """Disconnect while a function of the user's is in flight."""
    with hosted(flag) as host:
        async with scope(way):
            it = client(way, host, **more)
            await it.connect()
            await it.query("Are you there?")
            await slow.begun.wait()
            await it.disconnect()
            running = not slow.ended
        await until(lambda: slow.ended)
        return "still running" if running else None


@known_fault("`disconnect()` with a hook in flight", backends=ALL, seconds=6)
async def _(way: Way) -> str | None:
    slow = Slow({})
    return await disconnected(
        way, "--hook", slow, hooks={"PreToolUse": [HookMatcher(hooks=[slow])]}
    )


@known_fault("`disconnect()` with `can_use_tool` in flight", backends=BOTH, seconds=6)
async def _(way: Way) -> str | None:
    slow = Slow(PermissionResultAllow())
    return await disconnected(way, "--permission", slow, can_use_tool=slow)


@known_fault("`disconnect()` with an SDK MCP tool in flight", backends=BOTH, seconds=6)
async def _(way: Way) -> str | None:
    slow = Slow({"content": []})

    try:
        server = tool_server(slow)
    except AttributeError as error:  # an SDK for mcp 1, with mcp 2
        raise Absent from error
    return await disconnected(way, "--tool", slow, mcp_servers={"tools": server})


def exit_after(program: Callable[[], Awaitable[None]], backend: str) -> None:
    """Run a program in a process of its own, to the end of its interpreter."""
    pid = os.fork()
    if pid == 0:
        try:
            anyio.run(program, backend=backend)
            atexit._run_exitfuncs()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@known_fault(
    "`break`, then the interpreter exits while the CLI flushes", backends=("asyncio", "trio")
)
async def _(way: Way) -> str | None:
    with hosted("--flush", "0.8") as host:

        async def program() -> None:
            async with scope(way):
                await read_to_the_result(ask(way, host, grace=3.0))

        # In a thread that has no event loop, so the fork has none either.
        backend = sniffio.current_async_library()
        thread = threading.Thread(target=exit_after, args=(program, backend))
        thread.start()
        await until(lambda: not thread.is_alive())
        await until(lambda: not host.alive())
        return None if "flushed" in host.notes else "killed in mid-flush"


@known_fault("custom `Transport.connect()` cancelled", backends=BOTH, seconds=6)
async def _(way: Way) -> str | None:
    transport = Custom(connects=False, closes=True)
    with hosted() as host:
        async with scope(way):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client(way, host, transport=transport).connect)
                await transport.connecting.wait()
                tasks.cancel_scope.cancel()
            return None if transport.closed else "`close()` never called"


@known_fault("custom `Transport.close()` hangs", backends=BOTH, seconds=5)
async def _(way: Way) -> str | None:
    transport = Custom(connects=True, closes=False)
    with hosted() as host:
        async with scope(way):
            it = client(way, host, transport=transport, grace=0.05)
            await it.connect()
            await it.disconnect()
    return None


@known_fault("a connected client is dropped", backends=BOTH, seconds=6)
async def _(way: Way) -> str | None:
    async def converse(host: Host) -> None:
        it = client(way, host)
        await it.connect()

    with hosted("--child") as host:
        async with complaints(), scope(way):
            before = tasks_living()
            await converse(host)
            gc.collect()
            await gone_or_not(host, before, 2.0)
            return "CLI alive" if host.alive() else None
