"""A half-read stream at the end of its loop, of its thread's loop, and of the interpreter."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
import trio

from quiesce import Scope
from quiesce.core.roots import roots
from quiesce.streams.stream import Stream, stream
from tests.unit.streams.stream_sources import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = """
import asyncio
import sys
import anyio
from quiesce import Scope
from quiesce.streams.stream import stream

kept = []

async def numbers():
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield 1
            yield 2
    finally:
        print("cleaned up")

async def main():
    if BACKEND == "asyncio":  # a busy machine makes steps slow, and the debug mode tells of them
        asyncio.get_running_loop().slow_callback_duration = 60
    async with Scope("a"):
        source = stream(numbers)
        if HOW == "kept":
            kept.append(source)
        elif HOW == "in a cycle":
            kept_by_itself = [source]
            kept_by_itself.append(kept_by_itself)
        print(await anext(source))
        if HOW == "exit":
            sys.exit(3)

anyio.run(main, backend=BACKEND)
"""


@pytest.mark.parametrize("how", ["kept", "in a cycle", "exit"])
@pytest.mark.parametrize("backend_name", ["asyncio", "trio"])
def test_the_interpreter_exits_quietly(backend_name: str, how: str) -> None:
    """A program that ends with a half-read stream cleans up, and says nothing of its own."""
    program = textwrap.dedent(PROGRAM).replace("HOW", repr(how))
    program = program.replace("BACKEND", repr(backend_name))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "1\ncleaned up\n"
    assert done.stderr == ""
    assert done.returncode == (3 if how == "exit" else 0)


def forget_scopes() -> None:
    """Collect the scopes that were never closed."""
    roots.clear()
    gc.collect()


def run_asyncio(main: Callable[[], object]) -> None:
    """Run on asyncio."""
    asyncio.run(main())  # type: ignore[arg-type]  # both runners take the same function


def run_trio(main: Callable[[], object]) -> None:
    """Run on trio."""
    trio.run(main)  # type: ignore[arg-type]  # likewise


@pytest.mark.quiesce(allow=["task:stream Counter"])
@pytest.mark.parametrize("run", [run_asyncio, run_trio])
def test_a_stream_that_outlives_its_loop_is_dropped_quietly(
    run: Callable[[Callable[[], object]], None],
) -> None:
    """The loop's own end closes the generator in its task; collecting the handle does nothing."""
    counter = Counter()
    kept: list[Stream[int]] = []

    async def main() -> None:
        scope = await Scope.open("never closed")
        kept.append(stream(counter, scope=scope))
        await anext(kept[0])

    run(main)
    assert counter.cleaned_up
    kept.clear()
    with pytest.warns(ResourceWarning, match="never closed"):
        forget_scopes()
