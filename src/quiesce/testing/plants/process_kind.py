"""A child process that is planted: it tells by itself that it runs, and how it ends.

It does so through a named pipe, so that nothing has to be known of whoever starts it. The pipe is
open for as long as the process, or a copy of it, lives. A second one ends the process if this one
dies, so that no test leaves it behind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from quiesce.errors import UsageError
from quiesce.processes.descriptors import readable
from quiesce.processes.process import start_process
from quiesce.testing.plants.kinds import BEGIN_SECONDS, Planted

if TYPE_CHECKING:
    from quiesce.core.scope import Scope
    from quiesce.processes.process import Process
    from quiesce.testing.plants.kinds import Way
    from quiesce.testing.plants.observed_work import State

__all__: list[str] = []

_BURIAL_SECONDS = 5.0

_CHILD = """
import os, select, signal, sys
tell, stay = os.open(sys.argv[1], os.O_WRONLY), os.open(sys.argv[2], os.O_RDONLY)
def finish(*_):
    os.write(tell, b"finished\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, finish)
os.write(tell, b"%d\\n" % os.getpid())
if not select.select([stay], [], [], float(sys.argv[3]))[0]:
    finish()
"""


class PlantedProcess(Planted):
    """A child process: it exits with 0 when its work is done, and also when it gets SIGTERM."""

    kind = "process"
    about = "a child process"

    def __init__(self, target: object, seconds: float, way: Way | None) -> None:
        """Describe it."""
        super().__init__(target, seconds, way)
        self.pid: int | None = None
        """Its number, once it runs."""
        self._said = b""
        self._over = False
        self._own: subprocess.Popen[bytes] | None = None
        self._process: Process | None = None
        self._files = ExitStack()
        self._tell = self._stay = -1

    @property
    def state(self) -> State:
        """What became of it."""
        self._listen()
        if not self._over:
            return "alive"
        return "finished" if b"finished" in self._said else "cut"

    def _listen(self) -> None:
        while self.pid is not None and not self._over:
            try:
                said = os.read(self._tell, 100)
            except BlockingIOError:
                return
            self._said += said
            self._over = not said

    def is_named_in(self, text: str) -> bool:
        """Return whether a text speaks of it, by its name or its number."""
        number = rf"\b(?:pid|process)\W{{0,3}}{self.pid}\b"
        return super().is_named_in(text) or re.search(number, text, re.IGNORECASE) is not None

    def _argv(self) -> list[str]:
        folder = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="planted-")))
        tell, stay = folder / "tell", folder / "stay"
        os.mkfifo(tell)
        os.mkfifo(stay)
        self._tell = os.open(tell, os.O_RDONLY | os.O_NONBLOCK)
        self._files.callback(os.close, self._tell)
        self._stay = os.open(stay, os.O_RDWR)  # also to read: else it would wait for a reader
        self._files.callback(os.close, self._stay)
        program = [sys.executable, "-I", "-S", "-c", _CHILD]
        return [*program, str(tell), str(stay), str(self._seconds), self.name]

    async def _put_by(self, way: Way) -> None:
        await self._ask(way, self._argv())
        await self._begun()

    async def _put_into(self, scope: Scope) -> None:
        self._process = await start_process(self._argv(), scope=scope, name=self.name)
        await self._begun()

    async def _put_alone(self) -> None:
        self._own = subprocess.Popen(self._argv(), stdin=subprocess.DEVNULL)  # noqa: ASYNC220, S603 - it is quick, and our own
        await self._begun()

    async def _begun(self) -> None:
        with anyio.move_on_after(BEGIN_SECONDS):
            await readable(self._tell)
            # On a busy machine it may have finished before it is listened to.
            number, _, self._said = os.read(self._tell, 100).partition(b"\n")
            self.pid = int(number)
            return
        message = (
            f"{self.about} was planted, and does not run after {BEGIN_SECONDS:.0f} s; "
            "if the clock is a mock one, plant processes in real time"
        )
        raise UsageError(message)

    def let_go(self) -> None:
        """Kill it; the pipe says whether the number is still its own."""
        super().let_go()
        if self.pid is not None and self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def remove(self) -> None:
        """Kill it, bury it if it is ours, and remove the pipes."""
        try:
            self.let_go()
            while self.pid is not None and self.alive():
                await readable(self._tell)
            if self._own is not None:
                self._own.wait()
            if self._process is not None:
                with anyio.move_on_after(_BURIAL_SECONDS):
                    await self._process.wait()  # until its scope knows, too
        finally:
            self._files.close()
