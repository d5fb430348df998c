"""Seed 000: `run_agent` of the unmodified agent-client-protocol 0.8.1 leaks tasks; a scope owns them.

Each scenario runs twice over a real socket pair: as the SDK is, and with one line more.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acp
import pytest
import uvloop
from acp.schema import PromptResponse

from quiesce import Scope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Scenario = Callable[["Bridge"], Awaitable[None]]

PATIENCE_SECONDS = 20.0  # a guard against hangs
CYCLES = 50
SERVICES = ["acp.Sender.loop", "acp.Dispatcher.loop"]  # what the SDK calls its two loops
DESTROYED = "Task was destroyed but it is pending!"
pytestmark = pytest.mark.quiesce(allow=["task:acp.*"])  # that the SDK leaks them is what is shown


@dataclass
class Seen:
    """What a program left behind, and what the event loop said about it."""

    left: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)


class Agent:
    """An agent whose prompts wait until they are let go."""

    def __init__(self) -> None:
        self.prompted = asyncio.Event()
        self.gate = asyncio.Event()
        self.ended: list[str] = []

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        """Answer the handshake."""
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def prompt(self, **_: Any) -> PromptResponse:
        """Work until the gate opens."""
        self.prompted.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("completed")
        return PromptResponse(stop_reason="end_turn")


class Bridge:
    """A program that serves one client over a socket pair, like the WebSocket bridge of the seed."""

    def __init__(self, seen: Seen, *, owned: bool) -> None:
        self.seen = seen
        self.agent = Agent()
        self._owned = owned
        self.scope = Scope("client", adopt=True, services=SERVICES)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.task: asyncio.Task[None]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run the agent; the scope is the whole difference."""
        agent: Any = self.agent
        if not self._owned:
            await acp.run_agent(agent, writer, reader)
            return
        async with self.scope:
            await acp.run_agent(agent, writer, reader)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Bridge]:
        """Connect a client that has shaken hands."""
        ours, theirs = socket.socketpair()
        self.reader, self.writer = await asyncio.open_connection(sock=ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        self.task = asyncio.create_task(self.serve(reader, writer))
        try:
            await self.ask("initialize", {"protocolVersion": 1})
            yield self
        finally:
            for end in (writer, self.writer):
                end.close()
                with suppress(ConnectionError):
                    await end.wait_closed()

    async def ask(self, method: str, params: dict[str, Any]) -> None:
        """Send a request and take the answer."""
        self.send(method, params)
        await self.take()

    def send(self, method: str, params: dict[str, Any]) -> None:
        """Send a request."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def take(self) -> None:
        """Take one answer."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await self.reader.readline()
        self.seen.answers.append(json.loads(line) if line else None)

    async def prompt(self) -> None:
        """Send a prompt, and wait until the agent's handler is in the middle of it."""
        text = [{"type": "text", "text": "hello"}]
        self.send("session/prompt", {"sessionId": "s", "prompt": text})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.agent.prompted.wait()

    async def ended(self) -> BaseException | None:
        """Wait for the end of `serve`, and tell how it ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait([self.task])
        return None if self.task.cancelled() else self.task.exception()


async def cancelled_while_idle(bridge: Bridge) -> None:
    """The program cancels the task that listens; nothing is being handled."""
    async with bridge.connected():
        bridge.task.cancel()
        assert await bridge.ended() is None


async def end_of_file_while_idle(bridge: Bridge) -> None:
    """The client hangs up; nothing is being handled."""
    async with bridge.connected():
        bridge.writer.write_eof()
        assert await bridge.ended() is None


async def cancelled_in_a_prompt(bridge: Bridge) -> None:
    """The program cancels the task that listens, while a prompt is being handled."""
    async with bridge.connected():
        await bridge.prompt()
        bridge.task.cancel()
        assert await bridge.ended() is None  # the SDK swallows the cancellation


async def end_of_file_in_a_prompt(bridge: Bridge) -> None:
    """The client says that it will ask no more, and waits for the answer to its prompt."""
    async with bridge.connected():
        await bridge.prompt()
        bridge.writer.write_eof()
        await bridge.scope.closing()  # the SDK has seen it, and `run_agent` has returned
        bridge.agent.gate.set()
        await bridge.take()
        assert await bridge.ended() is None


# From 3.14 on `asyncio.all_tasks()` lists a task that was destroyed while it was pending, and its loop cancels it at the end.
LISTS_DESTROYED = sys.version_info >= (3, 14)
SCENARIOS: list[Scenario] = [
    cancelled_while_idle,
    end_of_file_while_idle,
    cancelled_in_a_prompt,
    end_of_file_in_a_prompt,
]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the event loop to run on."""
    return asyncio.SelectorEventLoop if request.param == "asyncio" else uvloop.new_event_loop


def watch(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    scenario: Scenario,
    *,
    owned: bool,
    cycles: int = 1,
    collect: bool = False,
) -> Seen:
    """Run a scenario, and look at what it leaves in the event loop, collected there or not."""
    seen = Seen()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: seen.complaints.append(context["message"]))
        for _ in range(cycles):
            bridge = Bridge(seen, owned=owned)
            await scenario(bridge)
            seen.prompts += bridge.agent.ended
            del bridge
        if collect:
            gc.collect()
        me = asyncio.current_task()
        seen.left = sorted(task.get_name() for task in asyncio.all_tasks() if task is not me)

    gc.collect()
    gc.disable()  # so that what is left behind is there to be counted
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())
            gc.collect()
    finally:
        gc.enable()
    return seen


def test_the_sdk_is_the_one_with_the_bug() -> None:
    """The tests below say nothing about another version."""
    assert version("agent-client-protocol") == "0.8.1"


@pytest.mark.parametrize("scenario", [cancelled_while_idle, end_of_file_while_idle])
def test_an_idle_agent_leaks_its_loops_unless_a_scope_owns_them(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], scenario: Scenario
) -> None:
    """Without quiesce two tasks stay, and are destroyed while pending; with it, none and nothing is."""
    today = watch(loop_factory, scenario, owned=False)
    assert today.left == ["acp.Dispatcher.loop", "acp.Sender.loop"]
    owned = watch(loop_factory, scenario, owned=True)
    assert (owned.left, owned.complaints) == ([], [])


@pytest.mark.parametrize("scenario", [cancelled_while_idle, end_of_file_while_idle])
def test_what_the_sdk_leaks_is_destroyed_in_mid_flight(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], scenario: Scenario
) -> None:
    """What the seed reports is seen when the collector runs; with a scope there is nothing to destroy."""
    today = watch(loop_factory, scenario, owned=False, collect=True)
    listed = ["acp.Dispatcher.loop", "acp.Sender.loop"] if LISTS_DESTROYED else []
    assert (today.complaints, today.left) == ([DESTROYED, DESTROYED], listed)
    owned = watch(loop_factory, scenario, owned=True, collect=True)
    assert (owned.complaints, owned.left) == ([], [])


def test_a_prompt_outlives_the_cancelled_agent_unless_a_scope_owns_it(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Without quiesce the handler is never cancelled; with it, it is, and it is in the report."""
    today = watch(loop_factory, cancelled_in_a_prompt, owned=False)
    assert today.left == ["acp.Dispatcher.loop", "acp.Dispatcher.request", "acp.Sender.loop"]
    assert today.prompts == []

    async def with_report(bridge: Bridge) -> None:
        await cancelled_in_a_prompt(bridge)
        assert bridge.scope.report is not None
        names.extend(entry.name for entry in bridge.scope.report.cancelled)

    names: list[str] = []
    owned = watch(loop_factory, with_report, owned=True)
    assert (owned.left, owned.complaints) == ([], [])
    assert (owned.prompts, names) == (["cancelled"], ["acp.Dispatcher.request"])


def test_a_prompt_is_finished_and_answered_before_the_end(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """When the client asks no more, the scope waits for the answer under way, and keeps its sender."""
    owned = watch(loop_factory, end_of_file_in_a_prompt, owned=True)
    assert (owned.left, owned.complaints, owned.prompts) == ([], [], ["completed"])
    assert owned.answers[-1]["result"] == {"stopReason": "end_turn"}


def descriptors() -> int:
    """Count the open file descriptors of this process."""
    folder = Path("/proc/self/fd")
    return len(list((folder if folder.exists() else Path("/dev/fd")).iterdir()))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_many_cycles_leave_nothing(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], scenario: Scenario
) -> None:
    """Fifty clients later there is no task and no file descriptor more than before."""
    counts: list[tuple[int, int]] = []

    async def counted(bridge: Bridge) -> None:
        await scenario(bridge)
        counts.append((len(asyncio.all_tasks()), descriptors()))

    seen = watch(loop_factory, counted, owned=True, cycles=CYCLES)
    assert (seen.left, seen.complaints) == ([], [])
    assert (len(counts), set(counts)) == (CYCLES, {counts[0]})


def test_many_cycles_without_a_scope_leave_two_tasks_each(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The same fifty clients, without quiesce, leave a hundred tasks."""
    seen = watch(loop_factory, cancelled_while_idle, owned=False, cycles=CYCLES)
    assert len(seen.left) == 2 * CYCLES
