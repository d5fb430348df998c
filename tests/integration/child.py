"""A real process for a test: its lines are waited for, signals are sent to it, and it never stays."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import signal
    from types import TracebackType

PATIENCE_SECONDS = 15.0  # a guard against hangs, far above what anything takes
PROGRAMS = Path(__file__).with_name("run_programs.py")


class Stream:
    """The lines of one output of a process, as they come."""

    def __init__(self, fd: int) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, args=(fd,), daemon=True)
        self._thread.start()

    def _read(self, fd: int) -> None:
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            while True:
                try:
                    line = file.readline()
                except OSError:  # a terminal says so when its other side is closed
                    line = ""
                with self._news:
                    self._ended = not line
                    if line:
                        self.lines.append(line.rstrip("\r\n"))
                    self._news.notify_all()
                if not line:
                    return

    def expect(self, part: str, count: int = 1) -> None:
        """Wait for a line with `part` in it, or for several."""

        def come() -> bool:
            return sum(part in line for line in self.lines) >= count or self._ended

        with self._news:
            assert self._news.wait_for(come, PATIENCE_SECONDS), f"no {part!r} in {self.lines}"
            assert sum(part in line for line in self.lines) >= count, f"{part!r}: {self.lines}"

    def finish(self) -> str:
        """Wait for the end of the output, and give all of it."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "somebody still has the output open"
        return "\n".join(self.lines)


class Child:
    """One of the programs in run_programs.py, as a process."""

    def __init__(self, *arguments: str, terminal: bool = False, deaf: bool = False) -> None:
        command = [sys.executable, "-W", "always", str(PROGRAMS), *arguments]
        out, out_child = os.pipe()
        err, err_child = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out_child, stderr=err_child
        )
        os.close(out_child)
        os.close(err_child)
        self.stdout = Stream(out)
        if deaf:
            os.close(err)  # nobody listens: what the program writes there fails
        else:
            self.stderr = Stream(err)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def send(self, which: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(which)

    def end(self) -> tuple[int, list[str], str]:
        """Wait for the end; give the exit code, the lines of stdout, and stderr as text."""
        code = self.process.wait(PATIENCE_SECONDS)
        self.stdout.finish()
        err = self.stderr.finish() if hasattr(self, "stderr") else ""
        return code, self.stdout.lines, err
