"""The commands for a shared store print what an operator needs, and their exit codes tell the outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce.mesh import Hop, Ledger
from tests.unit.mesh.meshing import HandlerError, fails
from tests.unit.mesh.replicas import nothing, town

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real_time


async def command(*arguments: str) -> tuple[int, str, str]:
    """Run a command in a process of its own; return its exit code and what it has printed."""
    done = await anyio.run_process(
        [sys.executable, "-m", "quiesce.mesh", *arguments], check=False, stderr=subprocess.PIPE
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.backends("asyncio")
async def test_an_operator_looks_at_a_mesh(tmp_path: Path) -> None:
    """Cascades, verdicts, open work and replicas are printed, for people and as JSON."""

    async def leave(hop: Hop) -> None:
        hop.spawn(anyio.sleep_forever)

    async with town(tmp_path) as here:
        root, agent = await here.add("a", replica="a-0"), await here.add("b", replica="b-0")
        async with root.cascade("short") as short:
            await here.hand(agent, nothing)
        assert await short.settled(30)
        with pytest.raises(HandlerError):
            async with root.cascade("bad") as bad:
                await here.hand(agent, fails)
        assert not await bad.settled(30)
        async with root.cascade("long") as long:
            await here.hand(agent, leave)

        code, out, _ = await command("list", here.store)
        assert (code, [line.split()[1] for line in out.splitlines()]) == (
            0,
            ["open", "settled", "settled"],
        )
        code, out, _ = await command("settled", here.store, short.id)
        assert code == 0
        assert out.startswith("cascade 'short': settled")
        code, out, _ = await command("settled", here.store, bad.id)
        assert (code, out.startswith("cascade 'bad': ")) == (1, True)
        code, out, _ = await command("settled", here.store, long.id, "--within", "0.1", "--json")
        assert (code, json.loads(out)["verdict"]) == (3, "unknown")
        code, out, _ = await command("frontier", here.store, long.id)
        assert (code, "b  at work" in out) == (0, True)
        code, out, _ = await command("replicas", here.store, "--json")
        assert (code, {one["name"] for one in json.loads(out)}) == (0, {"a-0", "b-0"})
        assert (await command("doctor", here.store))[0] == 0
        assert (await command("prune", here.store))[1] == "0 rows removed\n"


@pytest.mark.backends("asyncio")
async def test_a_replica_is_buried_by_an_operator(tmp_path: Path) -> None:
    """The command says what happens next; a second one fails, and says where to look."""
    async with town(tmp_path) as here:
        await here.add("a", lease_seconds=600.0)
        (own,) = await Ledger(here.store).replicas()
        code, _, error = await command("bury", here.store, own.incarnation, "--why", "unplugged")
        assert (code, "so it runs: end its process first" in error) == (2, True)
        async with (await here.add("a")).cascade("open") as cascade:
            assert cascade.id
            bury = ("bury", here.store, own.incarnation, "--why", "unplugged", "--force")
            code, out, _ = await command(*bury)
            assert (code, "is declared dead" in out) == (0, True)
        code, _, error = await command("bury", here.store, own.incarnation, "--why", "again")
        assert (code, "is not alive in the store" in error) == (2, True)


@pytest.mark.backends("asyncio")
async def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    """A store that cannot be used and a cascade that is not there are errors without a traceback."""
    store = f"sqlite://{tmp_path / 'mesh.db'}"
    assert await command("init", store) == (0, f"{store}: ready\n", "")
    for arguments in (
        ("list", str(tmp_path / "a.journal")),
        ("list", f"sqlite://{tmp_path / 'none' / 'mesh.db'}"),
        ("doctor", f"sqlite://{tmp_path / 'none.db'}"),
        ("settled", store, "0" * 32),
        ("settled", store, "trip"),
    ):
        code, out, error = await command(*arguments)
        assert (code, out, len(error.splitlines())) == (2, "", 1)
        assert "Traceback" not in error
