"""A library that quiesce does not know: the verdict names what it has started, and the line that declares it."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from quiesce.mesh import Settled, Unknown
from quiesce.mesh.runtime import progress
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quiesce.mesh import Hop

pytestmark = pytest.mark.backends("asyncio", "uvloop")

SOURCE = """
import asyncio
import threading

class Pool:
    def __init__(self):
        self.idle = asyncio.Queue()
        self.over = threading.Event()
        self.tasks = []

    async def keep(self):
        await asyncio.Event().wait()

    def use_task(self):
        self.tasks.append(asyncio.get_running_loop().create_task(self.keep()))

    def use_thread(self):
        threading.Thread(target=self.over.wait, daemon=True).start()

    def use_queue(self):
        self.idle.put_nowait("a connection")
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a pool of a library that nobody knows."""
    package = tmp_path / "unheard"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "pool.py").write_text(textwrap.dedent(SOURCE), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("unheard", "unheard.pool"):
        monkeypatch.delitem(importlib.import_module("sys").modules, name, raising=False)
    made = importlib.import_module("unheard.pool").Pool()
    yield made
    made.over.set()
    for thread in threading.enumerate():
        if thread.daemon and "wait" in thread.name:
            thread.join()


async def verdict(folder: Path, pool: Any, use: str, services: list[str]) -> Any:
    """Return the verdict on a message whose handler uses the library."""

    async def handler(_: Hop) -> None:
        getattr(pool, use)()

    async with World(folder) as world:
        root, _ = await world.add("a"), await world.add("b", services=services)
        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(5 if services else 0.6)
        pool.idle = asyncio.Queue()  # or an item that nobody takes would be stuck in the old one
        return found


@pytest.mark.parametrize(
    ("use", "told", "name"),
    [
        (
            "use_task",
            r"http://b .* at work for \d\.\d s: task Pool\.keep since \d\.\d s, started at ",
            "Pool.keep",
        ),
        ("use_thread", "daemon thread, Event.wait started at ", None),
        (
            "use_queue",
            r"item in asyncio\.Queue, which no worker has taken since \d\.\d s, started at ",
            None,
        ),
    ],
)
async def test_the_verdict_names_it_and_the_line_that_declares_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pool: Any,
    use: str,
    told: str,
    name: str | None,
) -> None:
    """What it is, where it was started and since when; with the line, if there is one, it is settled."""
    monkeypatch.setattr(progress, "_LASTING_SECONDS", 0.0)
    folders = [tmp_path / name for name in ("unknown", "named", "module")]
    for folder in folders:
        folder.mkdir()
    found = await verdict(folders[0], pool, use, [])
    assert isinstance(found, Unknown)
    (missing,) = found.missing
    assert re.search(told, missing), missing
    place = SOURCE.splitlines().index(f"    def {use}(self):") + 2
    assert f"unheard/pool.py:{place}" in missing
    line = re.search(
        r"\. If it lives as long as the process, declare it: Node\(services=(\[.*\])\)", missing
    )
    assert (line is None) is (name is None), missing
    if line is not None:
        services = json.loads(line[1])
        assert services == [f"unheard.pool.{name}"]
        assert isinstance(await verdict(folders[1], pool, use, services), Settled)
    assert isinstance(await verdict(folders[2], pool, use, ["unheard.pool.*"]), Settled)


async def test_work_that_has_just_begun_is_not_to_be_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: Any
) -> None:
    """It may be the work itself, and end soon."""
    monkeypatch.setattr(progress, "_LASTING_SECONDS", 3600.0)  # also on a busy machine
    found = await verdict(tmp_path, pool, "use_task", [])
    assert "task Pool.keep since" in str(found)
    assert "declare it" not in str(found)


async def test_work_that_goes_on_in_the_handler_is_not_to_be_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: Any
) -> None:
    """As long as the handler has not returned, what it has started may be what it waits for."""
    monkeypatch.setattr(progress, "_LASTING_SECONDS", 0.0)
    async with World(tmp_path) as world:
        root, _ = await world.add("a"), await world.add("b")
        found: list[Unknown] = []

        async def handler(_: Hop) -> None:
            pool.use_task()
            verdict = await cascade.settled(0.6)
            assert isinstance(verdict, Unknown)
            found.append(verdict)

        async with root.cascade("c") as cascade:
            await world.hand("b", handler)
        begun, message = found[0].missing
        assert "work on the cascade: cascade c" in begun
        assert "handler handler since" in message
        assert "task Pool.keep since" in message
        assert "declare it" not in message
