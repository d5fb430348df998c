"""What a process writes, as bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from quiesce import ArgumentError, LineTooLong, Scope, start_process
from quiesce.core.backends import running_backend
from quiesce.processes import exit_watch, output_pipe, raw_stdio
from quiesce.testing import sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Backend

pytestmark = pytest.mark.real_time
GRACE = 0.2
UNREAD_BYTES_MAX = 256 * 1024  # as the docstring of `RawOutput` has it


async def test_bytes_are_given_as_they_come_and_standard_error_is_text() -> None:
    """Nothing is decoded, nothing is cut; the other output is as always."""
    async with Scope("a"):
        script = r"printf '\377\000\n\n' ; echo said >&2; printf end"
        process = await start_process(["sh", "-c", script], stdout="bytes")
        await process.wait()
        assert await process.raw.receive(2) == b"\xff\0"
        assert await process.raw.line() == b""
        assert await process.raw.line() == b""
        assert await process.raw.line() == b"end"
        with pytest.raises(anyio.EndOfStream):
            await process.raw.line()
        with pytest.raises(anyio.EndOfStream):
            await process.raw.receive()
        assert process.stderr.tail() == ("said",)
        assert [line async for line in process.stdout] == []


async def test_lines_of_every_size_come_whole() -> None:
    """Short ones, empty ones, ones of many chunks, in their order."""
    sizes = [0, 1, 70_000, 3, 1_000_000, 0, 65_536, 65_535, *range(200)]
    script = f"import sys\nfor size in {sizes}: sys.stdout.write('x' * size + '\\n')"
    async with Scope("a"):
        process = await start_process(["python3", "-c", script], stdout="bytes")
        assert [len(await process.raw.line()) for _ in sizes] == sizes
        with pytest.raises(anyio.EndOfStream):
            await process.raw.line()


async def test_a_process_whose_bytes_nobody_takes_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unread has a bound; what comes later is still there for who reads."""
    paused: list[str] = []
    real = exit_watch.watch_readable

    def watch(backend: Backend, fd: int, call: Callable[[], None]) -> Callable[[], None]:
        unwatch = real(backend, fd, call)

        def pause() -> None:
            unwatch()
            paused.append(call.__qualname__)

        return pause

    monkeypatch.setattr(exit_watch, "watch_readable", watch)
    async with Scope("a"):
        script = "import sys; sys.stdout.write('x' * 2_000_000)"
        process = await start_process(["python3", "-c", script], stdout="bytes")
        while not paused:
            await anyio.lowlevel.checkpoint()
        assert process.returncode is None
        count = len(await process.raw.receive(2_000_000))  # all that was read, in one step
        assert UNREAD_BYTES_MAX <= count < UNREAD_BYTES_MAX + output_pipe.CHUNK_BYTES
        while count < 2_000_000:
            count += len(await process.raw.receive())
        with pytest.raises(anyio.EndOfStream):
            await process.raw.receive()
        assert count == 2_000_000


async def test_what_was_written_before_the_exit_can_be_read_after_it() -> None:
    """Also what was in the pipe when nobody read."""
    async with Scope("a"):
        script = "import sys; sys.stdout.write('x' * 320_000)"
        process = await start_process(["python3", "-c", script], stdout="bytes")
        await process.wait()
        assert len(await process.raw.line()) == 320_000


async def test_what_is_posted_comes_behind_what_is_in_line() -> None:
    """Although there is room again in the pipe, which the event loop has not seen so far."""
    ours, theirs = os.pipe()
    for end in (ours, theirs):
        os.set_blocking(end, False)
    sent = raw_stdio.Input(running_backend(), theirs)
    try:
        sent.post(b"x" * 1_000_000)
        os.read(ours, 65_536)
        sent.post(b"y")
        got = b""
        while len(got) < 1_000_001 - 65_536:
            with suppress(BlockingIOError):
                got += os.read(ours, 1_000_000)
            await anyio.lowlevel.checkpoint()
        assert got.index(b"y") == len(got) - 1
    finally:
        sent.close()
        os.close(ours)


async def test_a_process_whose_bytes_nobody_wants_goes_on() -> None:
    """Nobody will read any more, so it need not wait."""
    async with Scope("a"):
        script = "import sys; sys.stdout.write('x' * 2_000_000)"
        process = await start_process(["python3", "-c", script], stdout="bytes")
        await process.raw.aclose()
        assert await process.wait() == 0
        with pytest.raises(anyio.EndOfStream):
            await process.raw.receive()


async def test_a_line_without_an_end_has_a_bound() -> None:
    """A process that never ends its line is not given all memory; it can go on all the same."""
    async with Scope("a"):
        script = "import sys; sys.stdout.write('x' * 1_000_000)"
        process = await start_process(["python3", "-c", script], stdout="bytes")
        with pytest.raises(LineTooLong, match="more than 300000 bytes"):
            await process.raw.line(max_bytes=300_000)
        assert await process.wait() == 0


async def test_a_cancelled_reader_loses_nothing() -> None:
    """A line is taken in the step that returns it."""
    async with Scope("a"):
        process = await start_process(
            ["cat"], stdin="pipe", stdout="bytes", grace=GRACE, service=True
        )
        await process.send(b"half a ")
        with anyio.move_on_after(0.01):
            await process.raw.line()
        await process.send(b"line\n")
        assert await process.raw.line() == b"half a line"


async def test_the_pipes_are_closed_with_the_process() -> None:
    """Also those that nobody has read to their end."""
    async with Scope("a"):
        await start_process(["true"])  # the first one starts the watcher, too
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is enough
    async with Scope("a"):
        process = await start_process(
            ["sh", "-c", "echo 1; sleep 60"], stdin="pipe", stdout="bytes", grace=GRACE
        )
        await process.stop()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - likewise


def test_speaking_with_a_process_stands_being_cancelled_anywhere(backend_name: str) -> None:
    """Once, at each suspension: no process, task or file is left."""

    async def speak() -> None:
        async with Scope("a"):
            process = await start_process(
                ["cat"], stdin="pipe", stdout="bytes", grace=GRACE, service=True
            )
            await process.send(b"word\n")
            assert await process.raw.line() == b"word"

    assert sweep(speak, backend=backend_name).points > 0  # type: ignore[arg-type]  # a name of one


@pytest.mark.parametrize("wrong", [{"stdout": "text"}, {"user": "nobody knows"}, {"user": -1}])
async def test_what_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    """Before anything is started."""
    async with Scope("a"):
        with pytest.raises(ArgumentError):
            await start_process(["true"], **wrong)  # type: ignore[arg-type]  # wrong on purpose


async def test_it_runs_as_another_user() -> None:
    """By name or by number; this test can only ask for its own."""
    async with Scope("a"):
        process = await start_process(["id", "-u"], user=os.getuid(), stdout="bytes")
        assert await process.raw.line() == str(os.getuid()).encode()


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def backend_name(request: pytest.FixtureRequest) -> str:
    """Name an event loop, for tests that run one themselves."""
    return str(request.param)
