"""Agents as child processes: started, spoken to, and gone with all that they have started."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acp
import pytest

import quiesce
from quiesce.errors import ArgumentError, SpawnFailed, UsageError
from quiesce.integrations.acp import AgentLost, ConnectionClosed, scope_of
from quiesce.integrations.acp.agent_process import (
    open_agent_process,
    spawn_agent_process,
)
from quiesce.testing import sweep
from tests.adapters.acp.fake_agent import TEXT, Client

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]

AGENT = str(Path(__file__).with_name("client_agent.py"))
BRIEF = {"shutdown_timeout": 0.1}


def runs(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_the_signature_is_the_sdks() -> None:
    """What the installed SDK takes can be given in the same way."""
    theirs = inspect.signature(acp.spawn_agent_process).parameters
    ours = inspect.signature(spawn_agent_process).parameters
    assert list(ours) == list(theirs)


async def test_an_agent_lives_as_long_as_its_block() -> None:
    """It answers, sees the end of its input, and exits by itself."""
    async with spawn_agent_process(Client(), sys.executable, AGENT, "plain") as (agent, process):
        assert (await agent.initialize(protocol_version=1)).protocol_version == 1
        assert (await agent.new_session(cwd="/", mcp_servers=[])).session_id == "s"
        assert runs(process.pid)
    assert process.returncode == 0
    assert not runs(process.pid)
    report = scope_of(agent).report
    assert report is not None
    assert report.ok


async def test_a_stubborn_agent_is_killed_with_its_children(tmp_path: Path) -> None:
    """It ignores the end of its input and SIGTERM; it and its child are gone after the close."""
    line = f'tail -f /dev/null & echo $! > {tmp_path}/pid; exec "$@"'
    argv = ("sh", "-c", line, "sh", sys.executable, AGENT, "stubborn")
    agent = await open_agent_process(Client(), *argv, transport_kwargs=BRIEF)
    await agent.connection.initialize(protocol_version=1)
    child = int((tmp_path / "pid").read_text())
    assert runs(child)
    report = await agent.aclose()
    assert agent.process.returncode == -9
    assert not runs(child)
    assert not report.stuck


async def test_large_messages_come_through_whole() -> None:
    """A message of 600 KB in two-byte characters is not cut."""
    client = Client()
    async with spawn_agent_process(client, sys.executable, AGENT, "big") as (agent, _):
        await agent.initialize(protocol_version=1)
        await agent.prompt(prompt=TEXT, session_id="s")
        await client.updated.wait()
        assert client.updates == ["s " + "é" * 300_000]
        text = "ü" * 500_000
        assert await agent.ext_method("echo", {"text": text}) == {"text": text}


READER = """
import pathlib, sys
count = sum(len(line) for line in sys.stdin.buffer)
sys.stdout.write("x" * int(sys.argv[2]))
sys.stdout.flush()
pathlib.Path(sys.argv[1]).write_text(str(count))
"""


async def test_what_was_said_before_the_close_arrives(tmp_path: Path) -> None:
    """Also what the pipe had no room for: the end of the input comes after it."""
    found = tmp_path / "found"
    argv = (sys.executable, "-c", READER, str(found), "0")
    async with spawn_agent_process(Client(), *argv) as (agent, process):
        await agent.ext_notification("big", {"text": "x" * 900_000})
        await agent.ext_notification("big", {"text": "x" * 900_000})
    assert process.returncode == 0
    assert int(found.read_text()) > 1_800_000


async def test_an_agent_may_say_a_lot_before_it_ends(tmp_path: Path) -> None:
    """Nobody reads it any more, and it does not have to wait for anybody: it exits by itself."""
    found = tmp_path / "found"
    argv = (sys.executable, "-c", READER, str(found), "2000000")
    async with spawn_agent_process(Client(), *argv) as (_, process):
        pass
    assert process.returncode == 0
    assert found.exists()


async def test_an_agent_that_dies_is_told_with_its_last_words() -> None:
    """Whoever waits for an answer learns the exit code, and what the agent said last."""
    async with spawn_agent_process(Client(), sys.executable, AGENT, "dies") as (agent, process):
        await agent.initialize(protocol_version=1)
        with pytest.raises(AgentLost, match=r"exit code 3\)\n    the model fell over"):
            await agent.prompt(prompt=TEXT, session_id="s")
        assert await process.wait() == 3


async def test_an_agent_that_closes_its_input_is_lost() -> None:
    """Its output is open, and what it is asked does not arrive: nobody waits for the answer."""
    line = 'exec <&-; echo \'{"method": "_closed", "params": {}}\'; exec sleep 60'
    told = asyncio.Event()

    class Told(Client):
        async def ext_notification(self, method: str, params: Any) -> None:
            assert (method, params) == ("closed", {})
            told.set()

    async with spawn_agent_process(Told(), "sh", "-c", line, transport_kwargs=BRIEF) as (agent, _):
        await told.wait()
        with pytest.raises(AgentLost, match="does not read its input any more"):
            await agent.prompt(prompt=TEXT, session_id="s")


async def test_agents_may_be_closed_in_any_order_and_from_any_task() -> None:
    """Three are opened, and closed in the order of opening, each by a task of its own."""
    async with quiesce.Scope("program", grace=5) as scope:
        agents = [
            await open_agent_process(Client(), sys.executable, AGENT, "plain") for _ in range(3)
        ]
        for agent in agents:
            await agent.connection.initialize(protocol_version=1)
        assert f"process {Path(sys.executable).name}" in str(agents[0].frontier())
        for agent in agents:
            await scope.spawn(agent.aclose)
            assert agent.process.returncode == 0
            with pytest.raises(ConnectionClosed):
                await agent.connection.ext_method("log", {})


async def test_the_scope_around_ends_an_agent_that_nobody_closes() -> None:
    """It belongs to the current scope, or to the one that is given."""
    async with quiesce.Scope("program", grace=5, cleanup=3) as scope:
        first = await open_agent_process(Client(), sys.executable, AGENT, "plain")
    other = await quiesce.Scope.open("other", cleanup=3)
    second = await open_agent_process(Client(), sys.executable, AGENT, "plain", scope=other)
    assert (await other.aclose()).ok
    assert not runs(first.process.pid)
    assert not runs(second.process.pid)
    assert scope.report is not None
    assert scope.report.ok


@pytest.mark.parametrize("what", ["stubborn", "deaf"])
async def test_a_double_cancel_leaves_nothing(what: str) -> None:
    """Cancelled in the block, and again while it ends the agent, the caller comes back last."""
    inside = asyncio.Event()
    pids: list[int] = []

    async def use() -> None:
        agent = spawn_agent_process(
            Client(), sys.executable, AGENT, what, transport_kwargs={"shutdown_timeout": 0.3}
        )
        async with agent as (connection, process):
            pids.append(process.pid)
            inside.set()
            await connection.ext_method("echo", {"text": "x" * 500_000})
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await inside.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.wait({task}, timeout=0.05)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not runs(pids[0])


CANCELLABLE = """
import asyncio
from quiesce.integrations.acp import run_agent

class Agent:
    outcome = "none"
    async def prompt(self, **_):
        self.outcome = "running"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            raise
    async def ext_method(self, method, params):
        return {"outcome": self.outcome}

asyncio.run(run_agent(Agent()))
"""


@pytest.mark.backends("asyncio")
async def test_an_agent_under_quiesce_stops_what_is_given_up() -> None:
    """From the client's timeout to the agent's handler: it is cancelled there."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    agent = spawn_agent_process(Client(), sys.executable, "-c", CANCELLABLE, env=env)
    async with asyncio.timeout(15), agent as (connection, process):
        prompt = asyncio.create_task(connection.prompt(prompt=TEXT, session_id="s"))
        while (await connection.ext_method("outcome", {}))["outcome"] != "running":
            pass
        prompt.cancel()
        await asyncio.wait({prompt})
        assert prompt.cancelled()
        while (await connection.ext_method("outcome", {}))["outcome"] == "running":
            pass
        assert await connection.ext_method("outcome", {}) == {"outcome": "cancelled"}
    assert process.returncode == 0


async def test_a_missing_program_is_told() -> None:
    """The error names the program, and nothing is left."""
    with pytest.raises(SpawnFailed, match="no-such-agent"):
        async with spawn_agent_process(Client(), "no-such-agent"):
            pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stdout": 1}, "may have stderr, limit and shutdown_timeout"),
        ({"stderr": 7}, "use logs="),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
    ],
)
async def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    """The error says what there is."""
    with pytest.raises(ArgumentError, match=words):
        await open_agent_process(Client(), sys.executable, transport_kwargs=settings)


@pytest.mark.backends("trio")
async def test_trio_is_refused() -> None:
    """The SDK is made for asyncio, and the error says so."""
    with pytest.raises(UsageError, match="needs asyncio"):
        await open_agent_process(Client(), sys.executable)


@pytest.fixture
def secret() -> Iterator[str]:
    """Put something into this program's environment."""
    os.environ["QUIESCE_TEST_SECRET"] = "hush"  # noqa: S105 - not one
    yield "QUIESCE_TEST_SECRET"
    del os.environ["QUIESCE_TEST_SECRET"]


async def test_its_environment_is_the_sdks_default_and_what_is_given(secret: str) -> None:
    """As with the SDK, an agent does not get all of this program's environment."""
    code = "import os, sys; print(sorted(os.environ), file=sys.stderr)"
    agent = await open_agent_process(Client(), sys.executable, "-c", code, env={"GIVEN": "1"})
    await agent.process.wait()
    told = str(agent.process.stderr.tail())
    await agent.aclose()
    assert "'PATH'" in told
    assert "'GIVEN'" in told
    assert secret not in told


async def test_its_standard_error_may_be_ours(capfd: pytest.CaptureFixture[str]) -> None:
    """`stderr=None`, as with the SDK: what it complains of is seen."""
    code = "import sys; print('a complaint', file=sys.stderr)"
    agent = await open_agent_process(
        Client(), sys.executable, "-c", code, transport_kwargs={"stderr": None}
    )
    await agent.process.wait()
    await agent.aclose()
    assert "a complaint" in capfd.readouterr().err


async def test_many_agents_leave_no_files() -> None:
    """After the first, each start and close leaves as many open files as before."""
    counts = []
    for _ in range(5):
        async with spawn_agent_process(Client(), "cat", transport_kwargs=BRIEF):
            pass
        counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - numbers
    assert len(set(counts)) == 1


async def scenario() -> None:
    """Start an agent that is quick to end, speak to it, and leave."""
    async with spawn_agent_process(
        Client(), "cat", transport_kwargs={"stderr": subprocess.DEVNULL, "shutdown_timeout": 0.5}
    ) as (agent, _):
        await agent.ext_notification("hello", {})


@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_a_process_stands_cancellation_at_every_await(backend: Any) -> None:
    """Cancelled anywhere, of the caller's awaits and of our own tasks', nothing is left."""
    found = sweep(scenario, backend=backend, depth=1, where="all", cancel=["native", "scope"])
    assert found.ok, str(found)


def test_a_process_stands_a_second_cancellation() -> None:
    """Cancelled twice, at each pair of the caller's awaits, nothing is left."""
    found = sweep(scenario, depth=2, cancel=["native"])
    assert found.ok, str(found)
