"""The lines that a process writes: kept within a bound, and available to any number of readers.

The event loop itself reads the pipes, so a process without readers never blocks on its output.
When the kept lines exceed the bound, the oldest are dropped. If a reader has not read them yet,
the process has to wait instead: a reader misses no line after its first read.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet

from quiesce.core.tree import logger
from quiesce.errors import ArgumentError, SpawnFailed
from quiesce.processes.output_pipe import OutputPipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.core.backends import Backend
    from quiesce.errors import ProcessLost
    from quiesce.processes.process_spawn import SpawnedChild, Wiring

    Sink = Callable[[str, str], object]
    Logs = Literal["keep", "log", "inherit", "discard"] | os.PathLike[str] | logging.Logger | Sink

__all__ = ["Output", "OutputLines"]

KEPT_BYTES_MAX = 256 * 1024  # of each stream
FILE_BYTES_MAX = 16 * 1024 * 1024  # of the log file, and of the older log file
_LINE_BYTES_MAX = 64 * 1024  # a longer line is split
_TAIL_LINES = 20


class OutputLines:
    """One reader of an output, line by line: `async for line in process.stdout`."""

    __slots__ = ("__weakref__", "_output", "missed", "position")

    def __init__(self, output: Output) -> None:
        """Start at the oldest kept line."""
        self._output = output
        self.missed: int = output.first
        """Number of lines that had been dropped when this reader began."""
        self.position: int = output.first

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        """Wait for the next line.

        *Cancel safety*: if cancelled, no line is lost.
        """
        while (line := self.take()) is None:
            if self._output.over:
                raise StopAsyncIteration
            await self._output.waiters.wait()
        return line

    def take(self) -> str | None:
        """Return the next line without waiting; None if the process has not written it yet."""
        output = self._output
        if self.position >= output.end:
            return None
        line = output.at(self.position)
        self.position += 1
        output.trim()
        return line


class Output(OutputPipe):
    """One output of a process: its kept lines and its readers."""

    def __init__(self, name: str, backend: Backend, fd: int | None) -> None:
        """Own the pipe `fd`. No line is kept yet."""
        super().__init__(name, backend, fd)
        self.sink: Sink | None = None
        self._kept: deque[str] = deque()
        self._kept_bytes = 0
        self._part = bytearray()  # the beginning of a line whose end was not read yet
        self._readers: WeakSet[OutputLines] = WeakSet()
        self.first: int = 0

    # For readers.

    def __aiter__(self) -> OutputLines:
        """Return a new reader, which starts with the kept lines."""
        lines = OutputLines(self)
        self._readers.add(lines)
        return lines

    @property
    def over(self) -> bool:
        """Whether the process will write no more lines."""
        return self._fd is None

    @property
    def end(self) -> int:
        """Number of lines that the process has written so far."""
        return self.first + len(self._kept)

    def at(self, position: int) -> str:
        """Return the kept line at a position."""
        return self._kept[position - self.first]

    def tail(self) -> tuple[str, ...]:
        """Return the last lines, oldest first."""
        lines = [*self._kept, self._part.decode(errors="replace")][-_TAIL_LINES - 1 :]
        return tuple(line for line in lines if line)[-_TAIL_LINES:]

    def trim(self) -> None:
        """Drop lines beyond the bound that all readers have read; resume reading the pipe if there is room."""
        if self._is_full():
            needed = min((reader.position for reader in self._readers), default=self.end)
            while self._is_full() and self.first < needed:
                self._kept_bytes -= len(self._kept.popleft()) + 1
                self.first += 1
        if not self._is_full():
            self._resume()

    # For the event loop.

    def _is_full(self) -> bool:
        return self._kept_bytes > KEPT_BYTES_MAX

    def _take_in(self, data: bytes) -> None:
        self._part += data
        *whole, rest = self._part.split(b"\n")
        self._part = rest
        for line in whole:
            self._keep(line)
        while len(self._part) >= _LINE_BYTES_MAX:
            self._keep(self._part[:_LINE_BYTES_MAX])
            del self._part[:_LINE_BYTES_MAX]
        self.trim()

    def _keep(self, line: bytearray) -> None:
        text = line.removesuffix(b"\r").decode(errors="replace")
        self._kept.append(text)
        self._kept_bytes += len(text) + 1
        if self.sink is not None:
            try:
                self.sink(self.name, text)
            except Exception:  # noqa: BLE001 - the user's function may raise anything; it is logged
                logger.exception("the logs= function raised on a line of %s", self.name)

    def close(self) -> None:
        """Close the pipe. Readers still get the kept lines, and a last line without line end. Idempotent."""
        if self._part:
            last, self._part = self._part, bytearray()
            self._keep(last)
        super().close()


class Outputs:
    """Standard output and standard error of one process."""

    def __init__(
        self, backend: Backend, child: SpawnedChild, lost: Callable[[str], ProcessLost]
    ) -> None:
        """Own the child's pipes until `finish()`; `lost` makes the exception that readers get."""
        self._lost = lost
        self._finished = False
        self.stdout: Output = Output("stdout", backend, child.stdout)
        self.stderr: Output = Output("stderr", backend, child.stderr)

    def begin(self, sink: Sink | None) -> None:
        for output in (self.stdout, self.stderr):
            output.sink = sink
            output.begin()

    def finish(self) -> None:
        """Read what the pipes hold now, and close them."""
        self._finished = True
        for output in (self.stdout, self.stderr):
            output.finish()

    def tail(self) -> tuple[str, ...]:
        """Return the last lines of stdout, then those of stderr."""
        return (*self.stdout.tail(), *self.stderr.tail())

    async def line_matching(self, pattern: re.Pattern[str] | str) -> str:
        """Wait for a line of either output that contains the pattern, and return the line.

        *Cancel safety*: may be cancelled at any time. Other readers still get all lines.

        *Raises*: `ProcessLost` if the process has ended and no kept line matches.
        """
        wanted = re.compile(pattern)
        readers = [aiter(self.stdout), aiter(self.stderr)]
        while True:
            for reader in readers:
                while (line := reader.take()) is not None:
                    if wanted.search(line):
                        return line
            if self._finished:
                raise self._lost(f"has ended, and wrote no line that matches {wanted.pattern!r}")
            await self.stdout.waiters.wait(self.stderr.waiters)


class LogFile:
    """A sink that writes lines to a file. When the file is full, it is renamed and a new one begins."""

    def __init__(self, path: Path) -> None:
        """Append to `path`. A full file is renamed to `path` with the suffix `.1`."""
        self._path = path
        self._open()

    def _open(self) -> None:
        self._file = self._path.open("ab")
        self._size = self._file.tell()

    def __call__(self, stream: str, line: str) -> None:  # noqa: ARG002 - both streams share the file
        data = line.encode() + b"\n"
        if self._size + len(data) > FILE_BYTES_MAX:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._open()
        self._file.write(data)
        self._file.flush()
        self._size += len(data)

    def close(self) -> None:
        self._file.close()


def wiring(logs: Any) -> Wiring:
    """Check the argument `logs`, and return how to connect the outputs."""
    if logs == "inherit":
        return "inherit"
    if logs == "discard":
        return "discard"
    if isinstance(logs, str) and logs not in {"keep", "log"}:
        message = (
            "logs must be 'keep', 'log', 'inherit', 'discard', a pathlib.Path, a logger or a "
            f"function, not {logs!r}"
        )
        raise ArgumentError(message)
    if not (isinstance(logs, str | os.PathLike | logging.Logger) or callable(logs)):
        message = f"logs must be a string, a path, a logger or a function, not {logs!r}"
        raise ArgumentError(message)
    return "pipe"


def sink_of(logs: Logs, name: str, cleanup: list[Callable[[], None]]) -> Sink | None:
    """Return the function that gets each line, if `logs` asks for one; open the log file if it is a path."""
    if isinstance(logs, os.PathLike):
        try:
            file = LogFile(Path(logs))
        except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
            message = f"cannot write logs to {os.fspath(logs)!r}: {error}"
            raise SpawnFailed(message) from error
        cleanup.append(file.close)
        return file
    if logs == "log":
        return _to_logger(logging.getLogger("quiesce.process"), name)
    if isinstance(logs, logging.Logger):
        return _to_logger(logs, name)
    return logs if callable(logs) else None


def _to_logger(target: logging.Logger, name: str) -> Sink:
    def write(stream: str, line: str) -> None:
        target.info("%s %s: %s", name, stream, line)

    return write
