"""What a process writes and reads: in order, within bounds, and never in the way of its end."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import Scope, UsageError
from quiesce.errors import ProcessLost
from quiesce.processes import output, output_pipe
from quiesce.processes.process import Process, start_process
from quiesce.processes.raw_stdio import Input
from tests.stress import turns
from tests.unit.processes.small_programs import GRACE, counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real_time

MANY = ["sh", "-c", "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done"]
NUMBERS = [str(number) for number in range(1, 3001)]


@pytest.fixture(autouse=True)
def census() -> Iterator[object]:
    """Fail if a process is left."""
    with counted() as found:
        yield found


async def test_lines_of_both_outputs() -> None:
    """Each output has its own lines, without their ends, and the last need not have one."""
    async with Scope("a"):
        script = r"printf 'one\r\ntwo\n\nthree'; echo oops >&2"
        process = await start_process(["sh", "-c", script])
        assert [line async for line in process.stdout] == ["one", "two", "", "three"]
        assert [line async for line in process.stderr] == ["oops"]
        assert await process.wait() == 0
        assert [line async for line in process.stdout] == ["one", "two", "", "three"]


async def test_what_is_no_text_is_replaced() -> None:
    """Bytes that are no UTF-8 do not stop the reading."""
    async with Scope("a"):
        process = await start_process(["sh", "-c", r"printf '\377x\n'"])
        assert [line async for line in process.stdout] == ["\ufffdx"]


async def test_a_long_line_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end takes no more memory than the bound."""
    monkeypatch.setattr(output, "_LINE_BYTES_MAX", 1000)
    async with Scope("a"):
        process = await start_process(["sh", "-c", "printf '%02500d\\n' 0"])
        lines = [line async for line in process.stdout]
    assert "".join(lines) == "0" * 2500
    assert max(map(len, lines)) <= 2500
    assert len(lines) >= 1


async def test_output_that_nobody_reads_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest lines are forgotten, and a reader is told how many it has missed."""
    monkeypatch.setattr(output, "KEPT_BYTES_MAX", 100)
    async with Scope("a"):
        process = await start_process(MANY)
        assert await process.wait() == 0
        lines = aiter(process.stdout)
        kept = [line async for line in lines]
    assert kept == NUMBERS[-len(kept) :]
    assert lines.missed == 3000 - len(kept)
    assert 0 < sum(len(line) + 1 for line in kept) <= 100


async def test_a_slow_reader_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process waits for a reader that is behind, so the bound is kept and no line lost."""
    monkeypatch.setattr(output, "KEPT_BYTES_MAX", 100)
    monkeypatch.setattr(output_pipe, "CHUNK_BYTES", 64)
    script = "import sys; sys.stdout.writelines(f'{number:049}\\n' for number in range(4000))"
    seen: list[str] = []
    async with Scope("a"):
        process = await start_process(["python3", "-c", script])
        async for line in process.stdout:
            seen.append(line)
            if len(seen) < 1000:  # most of the rest has no room in the pipe
                await turns(10)
                assert process.returncode is None
    assert seen == [f"{number:049}" for number in range(4000)]


async def test_a_reader_that_has_gone_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who breaks out of the loop does not make the process wait."""
    monkeypatch.setattr(output, "KEPT_BYTES_MAX", 100)
    async with Scope("a"):
        process = await start_process(MANY)
        async for _ in process.stdout:
            break
        assert await process.wait() == 0


async def test_a_cancelled_reader_loses_no_line() -> None:
    """A line is taken in the step that returns it."""
    async with Scope("a"):
        process = await start_process(["sh", "-c", "read x; echo $x"], stdin="pipe")
        lines = aiter(process.stdout)
        with anyio.move_on_after(0.01):
            await anext(lines)
        await process.send(b"word\n")
        assert await anext(lines) == "word"


async def test_a_line_is_found_in_either_output() -> None:
    """It may have been written before anybody looks."""
    async with Scope("a"):
        process = await start_process(
            ["sh", "-c", "echo 1; echo port 80 >&2; read x"], stdin="pipe"
        )
        assert await process.lines.line_matching(r"port \d+") == "port 80"
        assert await process.lines.line_matching("^1$") == "1"
        process.close_stdin()


async def test_a_function_gets_each_line(caplog: pytest.LogCaptureFixture) -> None:
    """One that fails is complained of, and called again."""
    seen: list[tuple[str, str]] = []

    def sink(stream: str, line: str) -> None:
        seen.append((stream, line))
        message = "no room"
        raise OSError(message)

    async with Scope("a"):
        process = await start_process(["sh", "-c", "echo 1; echo 2; echo 3 >&2"], logs=sink)
        await process.wait()
    assert sorted(seen) == [("stderr", "3"), ("stdout", "1"), ("stdout", "2")]
    assert caplog.text.count("no room") == 3


@pytest.mark.parametrize("word", [True, False])
async def test_a_logger_gets_each_line(word: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001 - a parameter
    """The library's own, or one that is given."""
    logger = logging.getLogger("mine")
    caplog.set_level(logging.INFO)
    async with Scope("a"):
        argv = ["sh", "-c", "echo hello"]
        process = await start_process(argv, logs="log" if word else logger, name="x")
        await process.wait()
    (record,) = [record for record in caplog.records if "hello" in record.getMessage()]
    assert record.name == ("quiesce.process" if word else "mine")
    assert record.getMessage() == "x stdout: hello"


async def test_a_file_gets_each_line_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its bound the file is begun anew, and the one before it is kept."""
    monkeypatch.setattr(output, "FILE_BYTES_MAX", 1000)
    path = tmp_path / "log"
    path.write_text("before\n")
    async with Scope("a"):
        process = await start_process(MANY, logs=path)
        await process.wait()
    assert (tmp_path / "log.1").stat().st_size <= 1000
    assert path.stat().st_size <= 1000
    lines = ((tmp_path / "log.1").read_text() + path.read_text()).split()
    assert lines == NUMBERS[-len(lines) :]


async def test_output_may_be_discarded_or_inherited(capfd: pytest.CaptureFixture[str]) -> None:
    """There is nothing to read then, and that is told at once."""
    async with Scope("a"):
        for logs in ("discard", "inherit"):
            process = await start_process(["sh", "-c", f"echo {logs}"], logs=logs)
            assert [line async for line in process.stdout] == []
            await process.wait()
    assert capfd.readouterr().out == "inherit\n"


async def test_a_process_reads_what_is_sent() -> None:
    """More than a pipe holds goes through, while the process reads and writes."""
    data = b"x" * 99 + b"\n"
    async with Scope("a"):
        process = await start_process(["cat"], stdin="pipe")
        async with anyio.create_task_group() as group:

            async def send() -> None:
                await process.send(data * 5000)
                process.close_stdin()

            group.start_soon(send)
            assert len([line async for line in process.stdout]) == 5000
        assert await process.wait() == 0


async def test_sending_to_one_that_does_not_read_ends_with_it() -> None:
    """Whoever waits for room is told when there will be none."""
    async with Scope("a") as scope:
        process = await start_process(["sleep", "60"], stdin="pipe", grace=GRACE)

        async def send() -> None:
            with pytest.raises(ProcessLost):
                await process.send(b"x" * 1_000_000)

        jobs = [scope.spawn(send), scope.spawn(send)]
        await anyio.wait_all_tasks_blocked()
        await process.stop()
        for job in jobs:
            await job
        with pytest.raises(ProcessLost):
            await process.send(b"x")


async def test_what_was_posted_is_written_before_the_input_is_closed() -> None:
    """More than a pipe holds is in line when it is closed: all of it comes, then the end."""
    async with Scope("a"):
        process = await start_process(["cat"], stdin="pipe", stdout="bytes", grace=GRACE)
        process.post(b"x" * 999_999 + b"\n")
        process.close_stdin()
        assert not process.reads
        with pytest.raises(UsageError, match="no open standard input"):
            process.post(b"y\n")
        assert len(await process.raw.line()) == 999_999
        with pytest.raises(anyio.EndOfStream):
            await process.raw.line()
        assert await process.wait() == 0


async def test_a_sender_does_not_wait_for_an_input_that_is_gone() -> None:
    """The input was closed with much in line, and the process ends without reading it."""
    async with Scope("a") as scope:
        process = await start_process(["sleep", "60"], stdin="pipe", grace=GRACE)

        async def send() -> None:
            with pytest.raises(ProcessLost, match=r"has ended|no longer reads"):
                await process.send(b"x" * 1_000_000)

        job = scope.spawn(send)
        await anyio.wait_all_tasks_blocked()
        process.close_stdin()
        await process.stop()
        await job


async def test_a_sender_is_told_when_the_owner_closes_the_input() -> None:
    """Another process may have the other end of the pipe, so that it does not break."""
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    async with Scope("a") as scope:
        pipe = Input(scope.backend, ours)
        waiting = scope.spawn(pipe.written, pipe.post(b"x" * 1_000_000))
        await turns()
        pipe.close()
        assert await waiting is False
    os.close(theirs)


async def test_what_a_cancelled_sender_has_sent_is_written_whole() -> None:
    """What others send comes behind it, not in the middle of it."""
    first, second = b"x" * 999_999 + b"\n", b"y\n"
    async with Scope("a"):
        process = await start_process(
            ["cat"], stdin="pipe", stdout="bytes", grace=GRACE, service=True
        )
        with anyio.move_on_after(0.01) as limit:
            await process.send(first)  # nobody reads what cat writes, so it does not read on
        assert limit.cancelled_caught
        process.post(second)
        assert await process.raw.line() == first[:-1]
        assert await process.raw.line() == second[:-1]
        process.close_stdin()
        with pytest.raises(anyio.EndOfStream):
            await process.raw.line()


async def test_what_cannot_be_written_is_told_at_once() -> None:
    """Whoever posts does not have to wait to learn that nobody reads it."""
    async with Scope("a"):
        process = await start_process(
            ["sh", "-c", "exec 0<&-; echo shut; sleep 60"], stdin="pipe", grace=GRACE, service=True
        )
        assert await anext(aiter(process.stdout)) == "shut"
        assert process.reads
        with pytest.raises(ProcessLost, match="no longer reads"):
            process.post(b"x")
        assert not process.reads


@pytest.mark.parametrize("dismissed", [True, False])
async def test_a_service_that_exits_at_the_end_of_its_input_is_no_surprise(
    dismissed: bool,  # noqa: FBT001 - a parameter
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that exits although nobody has told it to is complained of."""
    async with Scope("a"):
        process = await start_process(
            ["sh", "-c", "read x; exit 3"], stdin="pipe", service=True, grace=GRACE
        )
        if dismissed:
            process.close_stdin()
        else:
            await process.send(b"go\n")
        assert await process.wait() == 3
    assert ("has ended by itself" in caplog.text) is not dismissed


async def test_those_who_post_a_lot_can_wait_for_room() -> None:
    """There is room when most of it was written, or when there never will be."""
    async with Scope("a") as scope:
        process = await start_process(
            ["cat"], stdin="pipe", stdout="bytes", grace=GRACE, service=True
        )
        process.post(b"x" * 2_000_000)
        waiting = scope.spawn(process.room)
        with anyio.move_on_after(0.01):
            await process.room()
        assert waiting.outcome is None
        got = 0
        while got < 2_000_000:
            got += len(await process.raw.receive())
        await waiting
        process.post(b"x" * 2_000_000)
        waiting = scope.spawn(process.room)
        await process.stop()
        await waiting


async def test_there_is_no_standard_input_by_default() -> None:
    """It reads nothing, and sending is an error of the caller's."""
    async with Scope("a"):
        process = await start_process(["cat"], service=True)
        with pytest.raises(UsageError, match="stdin='pipe'"):
            await process.send(b"x")
        assert await process.wait() == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_search_for_a_line_ends_with_the_process(when: str) -> None:
    """No line will match any more: the search raises, with the exit code and the last lines."""
    async with Scope("a") as scope:
        process = await start_process(["sh", "-c", "echo other; read x; exit 3"], stdin="pipe")
        if when == "before":
            process.close_stdin()
            await process.wait()
        else:
            scope.spawn(close_after_a_line, process)
        with pytest.raises(ProcessLost, match="wrote no line that matches 'wanted'") as caught:
            await process.lines.line_matching("wanted")
        assert caught.value.returncode == 3
        assert await process.lines.line_matching("other") == "other"


async def close_after_a_line(process: Process) -> None:
    """End a process when it has written its line."""
    await process.lines.line_matching("other")
    process.close_stdin()
