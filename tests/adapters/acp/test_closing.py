"""How agents end with the ACP adapter: closed from inside, stuck, with processes, over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import quiesce
from quiesce.integrations.acp import handler_children, send_buffer
from quiesce.integrations.acp.agent import serve_agent
from quiesce.testing import sweep
from tests.adapters.acp.agents import (
    PROMPT,
    Agent,
    busy,
    cancelled,
    forever,
    memory,
    quick,
    run,
    stalled,
    stays_flat,
    wire,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


async def test_a_handler_that_closes_goes_on_when_the_others_have_ended() -> None:
    """The others are cancelled and awaited, the one that called gets its turn, and all is over."""
    order: list[str] = []

    async def prompt(agent: Agent) -> None:
        if not agent.begun.is_set() or not order:
            order.append("other")
            try:
                await asyncio.Event().wait()
            finally:
                order.append("other ended")
        await agent.client.close()
        order.append("closed")

    agent = Agent(prompt)
    async with quick(agent) as (task, peer):
        peer.prompt(1)
        peer.prompt(2)
        await task
    assert order == ["other", "other ended", "closed"]


async def test_close_from_outside_ends_the_session() -> None:
    """Whoever has the connection may close it; run_agent returns a report of what was cut short."""
    agent = Agent(forever)
    async with quick(agent) as (task, peer):
        peer.prompt()
        await agent.begun.wait()
        await agent.client.close()
        assert agent.ended.is_set()
        assert [cut.name for cut in (await task).cancelled] == ["session/prompt"]


async def test_a_handler_that_cannot_be_stopped_is_reported_as_stuck() -> None:
    """The end is bounded, and the report has the handler with its stack."""
    released = asyncio.Event()

    async def stubborn(_: Agent) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    agent = Agent(stubborn)
    async with quick(agent, cleanup=0.2) as (task, peer):
        peer.prompt()
        await agent.begun.wait()
        peer.writer.write_eof()
        (stuck,) = (await task).stuck
        assert (stuck.kind, stuck.name) == ("request", "session/prompt")
        assert any("stubborn" in frame for frame in stuck.stack)
        released.set()
        await agent.ended.wait()
        await asyncio.sleep(0)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time after which peers that take nothing, and processes that do not end, are given up."""
    monkeypatch.setattr(send_buffer, "_FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(handler_children, "_TERM_SECONDS", 0.05)


@pytest.mark.usefixtures("hurried")
async def test_what_a_stalled_peer_does_not_take_is_reported() -> None:
    """Nobody waits for it longer than the flush; those who send have waited for room before."""
    sent: list[int] = []

    async def flood(agent: Agent) -> None:
        while True:
            await agent.update("…" * 20_000)
            sent.append(1)

    agent = Agent(flood)
    async with wire(4096) as (writer, reader, peer):
        task = asyncio.create_task(run(agent, writer, reader, grace=0.1, cleanup=60))
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]  # or it buffers
        peer.prompt()
        await agent.begun.wait()
        await stalled(sent)
        assert len(sent) * 60_000 < 2 * send_buffer._BYTES_MAX
        peer.writer.write_eof()
        async with asyncio.timeout(10):
            report = await task
        assert [lost.kind for lost in report.undelivered] == ["output"]
        assert writer.transport.get_write_buffer_size() == 0


class SlowTransport:
    """A transport that sends when the test says so."""

    decoded: ClassVar[bool] = False

    def __init__(self, *messages: dict[str, Any]) -> None:
        """Record the messages to receive; the transport never ends."""
        self.inbox = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]
        self.sending = asyncio.Event()
        self.allowed = asyncio.Event()
        self.sent: list[bytes] = []
        self.closed = False

    async def receive(self) -> bytes | None:
        """Return a message."""
        if not self.inbox:
            await asyncio.Event().wait()
        return self.inbox.pop()

    async def send(self, messages: Any) -> None:
        """Take messages, later."""
        self.sending.set()
        await self.allowed.wait()
        self.sent += messages

    async def close(self) -> None:
        """End."""
        self.closed = True


async def test_a_drain_waits_until_the_last_answer_is_sent() -> None:
    """An answer that is on its way is in flight, and the frontier shows it."""
    transport = SlowTransport({"id": 1, "method": "_echo", "params": {}})
    scope = await quiesce.Scope.open("outer")
    task = asyncio.create_task(serve_agent(Agent(), transport, scope=scope))
    await transport.sending.wait()
    draining = asyncio.create_task(scope.drain(grace=60))
    for _ in range(10):
        await asyncio.sleep(0)
    (entry,) = scope.frontier().in_flight
    assert (entry.kind, entry.details) == ("output", {"messages": 1})
    transport.allowed.set()
    assert (await draining).ok
    assert (await task).ok
    assert len(transport.sent) == 1
    assert transport.closed


@pytest.mark.usefixtures("hurried")
async def test_an_answer_that_comes_late_in_the_cleanup_is_sent() -> None:
    """A peer that has taken all there was is not given up, however long it is since."""

    async def slow(agent: Agent) -> str:
        await agent.update()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            transport.allowed.set()  # the close has looked at what is unsent
            await busy(0.3)
        return "cancelled"

    transport = SlowTransport({"id": 1, "method": "session/prompt", "params": PROMPT})
    task = asyncio.create_task(serve_agent(Agent(slow), transport, cleanup=10))
    await transport.sending.wait()
    await cancelled(task)
    assert b"cancelled" in transport.sent[-1]


async def test_what_a_handler_starts_is_the_sessions() -> None:
    """A task that outlives its request is held, and ends with the session."""
    started: list[asyncio.Task[Any]] = []

    async def prompt(agent: Agent) -> None:
        started.append(asyncio.create_task(forever(agent), name="helper"))

    async with quick(Agent(prompt)) as (task, peer):
        peer.prompt()
        await peer.answer()
        peer.writer.write_eof()
        report = await task
        assert [cut.name for cut in report.cancelled] == ["helper"]
        assert started[0].cancelled()


async def test_what_is_sent_after_the_end_is_dropped() -> None:
    """A straggler is neither kept waiting nor told."""
    agent = Agent()
    async with quick(agent) as (task, peer):
        peer.writer.write_eof()
        assert (await task).ok
        with pytest.raises(ConnectionError):
            await agent.client.ext_method("late", {})


# --- processes ----------------------------------------------------------------------------------


STUBBORN = """
import os
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""


async def starts(*command: str) -> Any:
    """Start a process that nobody ends."""
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


async def test_a_process_that_outlives_its_request_ends_with_the_session() -> None:
    """Until then it is a service: seen in the frontier, and not in the way of being idle."""
    started = []

    async def prompt(_: Agent) -> None:
        started.append(await starts("sleep", "60"))

    async with quiesce.Scope("outer") as scope, quick(Agent(prompt), scope=scope) as (task, peer):
        peer.prompt()
        assert "result" in (await peer.answer() or {})
        (process,) = started
        await scope.idle()
        told = str(scope.frontier())
        assert "process (service) sleep · " in told
        assert f" · started at an unknown place · pid={process.pid}" in told
        peer.writer.write_eof()
        assert (await task).ok
        assert process.returncode == -signal.SIGTERM


@pytest.mark.usefixtures("hurried")
async def test_a_process_that_ignores_sigterm_is_killed() -> None:
    """After a moment, and before the session's end."""
    started = []

    async def prompt(_: Agent) -> None:
        started.append(await starts(sys.executable, "-c", STUBBORN))
        await started[0].stdout.readline()

    async with quick(Agent(prompt), cleanup=60) as (task, peer):
        peer.prompt()
        await peer.answer()
        peer.writer.write_eof()
        async with asyncio.timeout(10):
            await task
        assert started[0].returncode == -signal.SIGKILL


@pytest.mark.backends("asyncio")  # uvloop sees to it by itself
async def test_the_exit_status_of_a_process_that_is_ended_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asyncio's, which may be late to ask for it: whoever waits for the process would be told another."""
    waits, is_dead = os.waitpid, threading.Event()

    def late(pid: int, options: int) -> tuple[int, int]:
        if threading.current_thread() is not threading.main_thread():
            is_dead.wait(5)
        return waits(pid, options)

    monkeypatch.setattr(os, "waitpid", late)
    async with quiesce.Scope("session") as scope:
        end = handler_children.watch_children(scope)
        process = await starts(sys.executable, "-c", STUBBORN)
        await process.stdout.readline()
        (child,) = scope.services.values()
        child.request_stop()
        child.request_stop(force=True)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - asyncio must not see it first
        child.request_stop(force=True)  # as a close does, again and again
        is_dead.set()
        assert await process.wait() == -signal.SIGKILL
        child.request_stop(force=True)
        end()


async def test_a_process_that_has_ended_is_forgotten() -> None:
    """Nothing is held that is not there."""

    async def prompt(_: Agent) -> None:
        await (await starts("true")).wait()

    async with quiesce.Scope("outer") as scope, quick(Agent(prompt), scope=scope) as (task, peer):
        peer.prompt()
        await peer.answer()
        assert "process" not in str(scope.frontier())
        await cancelled(task)


async def test_the_event_loop_is_left_as_it_was() -> None:
    """Two sessions share what stands in for the loop's functions; the last takes it away."""
    loop = asyncio.get_running_loop()
    before = (loop.subprocess_exec, loop.subprocess_shell)
    async with quick(Agent()) as (one, _), quick(Agent()) as (two, peer):
        peer.send({"id": 1, "method": "_echo", "params": {}})
        await peer.answer()
        assert loop.subprocess_exec != before[0]
        await cancelled(one)
        assert loop.subprocess_exec != before[0]
        await cancelled(two)
    assert (loop.subprocess_exec, loop.subprocess_shell) == before
    assert not handler_children._watches


async def test_a_process_of_nobodys_session_is_let_be() -> None:
    """What is started outside the session is not the session's."""
    async with quick(Agent()) as (task, peer):
        peer.send({"id": 1, "method": "_echo", "params": {}})
        await peer.answer()
        process = await starts("sleep", "60")
        await cancelled(task)
        assert process.returncode is None
        process.kill()
        await process.wait()
        process._transport.close()


async def spawning() -> None:
    """Serve an agent whose handler starts a process, and ends it as one should."""

    async def prompt(_: Agent) -> None:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        try:
            await asyncio.sleep(0)
        finally:
            process.kill()
            await process.wait()

    stream, reader = memory({"id": 1, "method": "session/prompt", "params": PROMPT})
    await run(Agent(prompt), stream.writer, reader, grace=2, cleanup=2)


def test_cancellation_at_every_suspension_leaves_no_process() -> None:
    """Of the caller, once and twice."""
    sweep(spawning, depth=2, runs_max=60).raise_if_failed()


# --- again and again ----------------------------------------------------------------------------


async def cycle() -> None:
    """Connect, prompt, be answered, cancel; with a prompt in flight that answers “cancelled”."""

    async def prompt(agent: Agent) -> str:
        if agent.begun.is_set() and not agent.ended.is_set():
            return "end_turn"
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "cancelled"

    agent = Agent(prompt)
    async with quick(agent) as (task, peer):
        peer.prompt(1)
        await peer.answer(1)
        peer.prompt(2)
        agent.begun.clear()
        await agent.begun.wait()
        await cancelled(task)


async def test_many_sessions_leave_nothing() -> None:
    """Tasks, files and memory are what they were."""
    await stays_flat(cycle)


# --- a real process -----------------------------------------------------------------------------

PROGRAM = """
import sys
import threading
import acp, quiesce
from quiesce.integrations.acp import run_agent

class Agent:
    async def initialize(self, protocol_version, **_):
        return acp.InitializeResponse(protocol_version=protocol_version)
    def on_connect(self, conn):
        self.client = conn
    async def prompt(self, **_):
        await self.client.ext_notification("begun", {})
        await quiesce.current_scope().closing()
        return acp.PromptResponse(stop_reason="end_turn")

async def main():
    report = await run_agent(Agent(), grace=5)
    print(report, file=sys.stderr)
    print("bye", flush=True)

quiesce.run(main, grace=5, backend=sys.argv[1])
"""


@pytest.mark.parametrize("end", ["SIGTERM", "EOF"])
async def test_an_agent_over_stdio_ends_well(end: str, backend: str) -> None:
    """A prompt in flight is answered first; afterwards the program's own output still works."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, backend, stdin=-1, stdout=-1, stderr=-1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    prompt = {"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": PROMPT}
    process.stdin.write(json.dumps(prompt).encode() + b"\n")
    assert b"begun" in await process.stdout.readline()
    if end == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        process.stdin.close()
    out, told = await process.communicate()
    answer, bye = out.splitlines()
    assert json.loads(answer)["result"] == {"stopReason": "end_turn"}
    assert bye == b"bye"
    assert b"nothing it owned was lost: 1 job completed" in told
    assert process.returncode == 0


def test_an_ordinary_file_is_no_standard_input(tmp_path: Path) -> None:
    """The error says what it may be; what was opened for it is closed again."""
    empty = tmp_path / "empty"
    empty.touch()
    with empty.open() as file:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", PROGRAM, "asyncio"],
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    assert done.returncode == 1
    assert "must be pipes, sockets or terminals" in done.stderr
    assert "ResourceWarning" not in done.stderr


def test_json_is_what_the_peer_reads() -> None:
    """The encoder writes one line a message, whatever is in it."""
    assert json.loads(send_buffer._encode({"a": "\n"})) == {"a": "\n"}
    assert "\n" not in send_buffer._encode({"a": "\n"})
