"""Run one program in a process of its own, and record what was seen."""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# These would change what a program prints, and the demo reads what it prints.
_NOISE = frozenset({"PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONWARNINGS"})
_END_SECONDS_MAX = 5.0


@dataclass(frozen=True)
class Observation:
    """What was seen of one program: nothing in it is inferred."""

    stdout: str
    stderr: str
    exit_code: int
    seconds: float
    out_of_time: bool
    left_processes: bool
    orphans: tuple[int, ...]  # of the process ids that the program had printed

    @property
    def ended_well(self) -> bool:
        """Whether the program ended by itself, with exit code 0."""
        return self.exit_code == 0 and not self.out_of_time

    @property
    def output(self) -> list[str]:
        """Every line that the program wrote, its complaints first."""
        return [*self.stderr.splitlines(), *self.stdout.splitlines()]


class Lifeline:
    """A pipe that is the standard input of a program, and of all it leaves behind.

    Asking for a process id is not enough: a dead process keeps its id until somebody
    buries it. A pipe without a reader is a fact: nobody is left.
    """

    def __init__(self) -> None:
        """Open the pipe."""
        self.reader, self._writer = os.pipe()

    def hand_over(self) -> None:
        """Close our copy of the reading end, once the program has its own."""
        os.close(self.reader)

    def is_released(self, within_seconds: float = 0.0) -> bool:
        """Return whether no process holds the reading end any more."""
        poll = select.poll()
        poll.register(self._writer, 0)  # a pipe without readers always reports POLLERR
        return bool(poll.poll(within_seconds * 1000))

    def close(self) -> None:
        """Close our end."""
        os.close(self._writer)


def observe(program: Path, limit_seconds: float) -> Observation:
    """Run `program` to its end, or to the time limit, and end what it leaves behind."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        began = time.monotonic()
        with _started(program, stdout, stderr) as (process, lifeline):
            out_of_time = not _ends_within(process, limit_seconds)
            seconds = time.monotonic() - began
            left_processes = not lifeline.is_released()
            orphans = _orphans(process.pid, _text(stdout)) if left_processes else ()
            _end(orphans, lifeline)
        return Observation(
            stdout=_text(stdout),
            stderr=_text(stderr),
            exit_code=process.returncode,
            seconds=seconds,
            out_of_time=out_of_time,
            left_processes=left_processes,
            orphans=orphans,
        )


@contextmanager
def _started(
    program: Path, stdout: IO[bytes], stderr: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], Lifeline]]:
    lifeline = Lifeline()
    process = subprocess.Popen(
        [sys.executable, "-u", str(program)],
        stdin=lifeline.reader,
        stdout=stdout,
        stderr=stderr,
        env={name: value for name, value in os.environ.items() if name not in _NOISE},
        start_new_session=True,  # its process id now names the group of all it starts
    )
    lifeline.hand_over()
    try:
        yield process, lifeline
    finally:
        if not lifeline.is_released():  # interrupted, or an unknown process: end the whole group
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        lifeline.close()


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def _orphans(group: int, stdout: str) -> tuple[int, ...]:
    """Return the process ids, of those that the program printed, that have outlived it."""
    told = [int(pid) for pid in re.findall(r"\bpid (\d+)", stdout)]
    return tuple(pid for pid in told if _is_in_group(pid, group))


def _end(orphans: tuple[int, ...], lifeline: Lifeline) -> None:
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    if orphans:
        lifeline.is_released(_END_SECONDS_MAX)


def _is_in_group(pid: int, group: int) -> bool:
    # The group proves that the process is of this program, and not another one that got the id.
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
