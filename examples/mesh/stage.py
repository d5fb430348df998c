"""The agents' processes: start, kill and end them, and read what they have really done."""

import json
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

NAMES = ("planner", "flights", "hotel", "bank", "taxi")
LEGACY = "taxi"
START_SECONDS, END_SECONDS = 30.0, 20.0
WEBHOOK_SECONDS = 0.15


@dataclass(frozen=True)
class Work:
    """One piece of work, as its agent has written it down."""

    agent: str
    what: str
    began: float
    ended: float
    was_cut: bool


class Stage:
    """Five agents, from start to end."""

    def __init__(self, folder: Path, store: str = "") -> None:
        """Choose an address for each agent. `store` is shared by all; without it each has a file of its own."""
        self._folder = folder
        self._store = store
        self._listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
        self.urls = {
            name: f"http://127.0.0.1:{listener.getsockname()[1]}"
            for name, listener in self._listeners.items()
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: list[tuple[int, float]] = []

    def __enter__(self) -> Self:
        """Start all of them."""
        config = {
            "folder": str(self._folder),
            "store": self._store,
            "urls": self.urls,
            "legacy": LEGACY,
            "webhook_seconds": WEBHOOK_SECONDS,
        }
        (self._folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            for name in NAMES:
                self.start(name)
        except BaseException:
            self._end_all()
            raise
        return self

    def start(self, name: str) -> None:
        """Start one agent; its address is open already, so no connection is refused meanwhile."""
        listener = self._listeners[name].fileno()
        command = [sys.executable, "-m", "examples.mesh.agent", str(self._folder / "config.json")]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*command, name, str(listener)],
                pass_fds=[listener],
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which ends them in order
            )

    def logs(self) -> str:
        """Return the warnings and errors that the agents have written."""
        found = {name: (self._folder / f"{name}.log").read_text(encoding="utf-8") for name in NAMES}
        return "\n".join(f"--- {name}\n{text}" for name, text in found.items() if text)

    def kill(self, name: str) -> None:
        """Kill one agent, from one step to the next."""
        process = self._processes[name]
        process.kill()
        process.wait()
        self._killed.append((process.pid, time.monotonic()))

    def terminate(self, name: str) -> None:
        """Send one agent the signal to end."""
        self._processes[name].send_signal(signal.SIGTERM)

    def wait(self, name: str) -> int:
        """Wait until an agent that was told to end has ended; return its exit code."""
        return self._processes[name].wait(END_SECONDS)

    def works(self, act: str) -> list[Work]:
        """Return all work of an act; work that has not ended by now, and was not killed, never ends."""
        found: dict[tuple[str, int, str], list[float]] = {}
        for at, of, agent, pid, what in self._lines():
            kind, _, work = what.partition(" ")
            if of == act and kind == "begin":
                found[agent, pid, work] = [at]
            elif of == act and kind == "end":
                found[agent, pid, work].append(at)
        killed = dict(self._killed)
        return [
            Work(agent, what, times[0], *self._end_of(times, killed.get(pid)))
            for (agent, pid, what), times in found.items()
        ]

    def is_at_work(self, act: str, agent: str) -> bool:
        """Return whether an agent has begun, and has not ended."""
        return any(work.agent == agent and work.ended == float("inf") for work in self.works(act))

    @staticmethod
    def _end_of(times: list[float], killed: float | None) -> tuple[float, bool]:
        if len(times) > 1:
            return times[1], False
        return (float("inf"), False) if killed is None else (killed, True)

    def pushes(self, act: str) -> int:
        """Count the pushes of an act that have arrived and tell of an end."""
        return sum(of == act and what == "pushed" for _, of, _, _, what in self._lines())

    def _lines(self) -> list[tuple[float, str, str, int, str]]:
        path = self._folder / "truth"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all of them, and leave nothing behind."""
        self._end_all()

    def _end_all(self) -> None:
        # Before the agents end: a call to one that has ended is then refused, and does not wait for an answer.
        for listener in self._listeners.values():
            listener.close()
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
                process.wait()
