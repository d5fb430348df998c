"""What a process writes: read as it comes, kept within a bound, and given to whoever wants it.

The pipes are read by the event loop itself, so a process whose output nobody wants never blocks
on it. A bound on the bytes kept says what is forgotten: the oldest lines. Only while somebody
is reading, and is that far behind, the process has to wait: a reader misses nothing of what
comes after its first read.
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
FILE_BYTES_MAX = 16 * 1024 * 1024  # of a log file, and of the one before it
_LINE_BYTES_MAX = 64 * 1024  # a longer line is given in parts
_TAIL_LINES = 20


class OutputLines:
    """One reader of an output, line by line: `async for line in process.stdout`."""

    __slots__ = ("__weakref__", "_output", "_position", "missed")

    def __init__(self, output: Output) -> None:
        """Begin with the oldest line that is kept."""
        self._output = output
        self.missed: int = output.first
        """How many lines had been forgotten when it began to read."""
        self._position = output.first

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> str:
        """Wait for the next line.

        *Cancel safety*: a line is taken in the step that returns it; none is lost.
        """
        while (line := self.take()) is None:
            if self._output.over:
                raise StopAsyncIteration
            await self._output.waiters.wait()
        return line

    def take(self) -> str | None:
        """Take the next line; None if there is none so far."""
        output = self._output
        if self._position >= output.end:
            return None
        line = output.at(self._position)
        self._position += 1
        output.trim()
        return line


class Output(OutputPipe):
    """One output of a process: what is kept of it, and who reads it."""

    def __init__(self, name: str, backend: Backend, fd: int | None) -> None:
        """Keep nothing, so far."""
        super().__init__(name, backend, fd)
        self.sink: Sink | None = None
        self._kept: deque[str] = deque()
        self._kept_bytes = 0
        self._part = bytearray()  # of a line that has not ended
        self._readers: WeakSet[OutputLines] = WeakSet()
        self.first: int = 0

    # For readers.

    def __aiter__(self) -> OutputLines:
        """Read the lines, the kept ones first."""
        lines = OutputLines(self)
        self._readers.add(lines)
        return lines

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._fd is None

    @property
    def end(self) -> int:
        """How many lines there were so far."""
        return self.first + len(self._kept)

    def at(self, position: int) -> str:
        """Return a line that is kept."""
        return self._kept[position - self.first]

    def tail(self) -> tuple[str, ...]:
        """Return the last lines."""
        lines = [*self._kept, self._part.decode(errors="replace")][-_TAIL_LINES - 1 :]
        return tuple(line for line in lines if line)[-_TAIL_LINES:]

    def trim(self) -> None:
        """Forget what is beyond the bound and was read by all who read; then read on."""
        if self._is_full():
            needed = min((reader._position for reader in self._readers), default=self.end)
            while self._is_full() and self.first < needed:
                self._kept_bytes -= len(self._kept.popleft()) + 1
                self.first += 1
        if not self._is_full():
            self._resume()

    # As it comes in.

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
            except Exception:  # noqa: BLE001 - logged: it is the user's
                logger.exception("what takes the %s of a process failed", self.name)

    def close(self) -> None:
        """End: the readers get what was kept, be it a line without its end. Idempotent."""
        if self._part:
            last, self._part = self._part, bytearray()
            self._keep(last)
        super().close()


class Outputs:
    """Both outputs of one process."""

    def __init__(
        self, backend: Backend, child: SpawnedChild, lost: Callable[[str], ProcessLost]
    ) -> None:
        """Own the child's pipes, until `finish()`; `lost` makes the error of a reader."""
        self._lost = lost
        self._finished = False
        self.stdout: Output = Output("stdout", backend, child.stdout)
        self.stderr: Output = Output("stderr", backend, child.stderr)

    def begin(self, sink: Sink | None) -> None:
        """Read what the child writes from now on."""
        for output in (self.stdout, self.stderr):
            output.sink = sink
            output.begin()

    def finish(self) -> None:
        """Take what is there, and end."""
        self._finished = True
        for output in (self.stdout, self.stderr):
            output.finish()

    def tail(self) -> tuple[str, ...]:
        """Return the last lines: those of stderr after those of stdout."""
        return (*self.stdout.tail(), *self.stderr.tail())

    async def line_matching(self, pattern: re.Pattern[str] | str) -> str:
        """Wait for a line of either output in which the pattern is found, and return it.

        *Cancel safety*: it takes nothing from other readers.

        *Raises*: `ProcessLost` if the process has ended, and no line that is kept matches.
        """
        wanted = re.compile(pattern)
        readers = [aiter(self.stdout), aiter(self.stderr)]
        while True:
            for reader in readers:
                while (line := reader.take()) is not None:
                    if wanted.search(line):
                        return line
            if self._finished:
                raise self._lost(f"has ended without a line that matches {wanted.pattern!r}")
            await self.stdout.waiters.wait(self.stderr.waiters)


class LogFile:
    """A sink that writes to a file; beyond its bound, the file is moved aside, and begun anew."""

    def __init__(self, path: Path) -> None:
        """Append to `path`; the one before it has `.1` at the end."""
        self._path = path
        self._open()

    def _open(self) -> None:
        self._file = self._path.open("ab")
        self._size = self._file.tell()

    def __call__(self, stream: str, line: str) -> None:  # noqa: ARG002 - both into one
        """Write a line."""
        data = line.encode() + b"\n"
        if self._size + len(data) > FILE_BYTES_MAX:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._open()
        self._file.write(data)
        self._file.flush()
        self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def wiring(logs: Any) -> Wiring:
    """Check `logs`, and tell where the outputs lead."""
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
        message = f"logs must be a word, a path, a logger or a function, not {logs!r}"
        raise ArgumentError(message)
    return "pipe"


def sink_of(logs: Logs, name: str, cleanup: list[Callable[[], None]]) -> Sink | None:
    """Return what takes each line, if anything does; a file is opened here."""
    if isinstance(logs, os.PathLike):
        try:
            file = LogFile(Path(logs))
        except (OSError, ValueError) as error:  # a NUL in the path
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
