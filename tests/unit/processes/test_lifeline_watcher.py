"""The program of the watcher, run with a system of the test's own making."""

from __future__ import annotations

import array
import builtins
import io
from types import SimpleNamespace
from typing import Any

from quiesce.processes import watchdog

MARK = f"{watchdog.MARK}=1234."  # and a number for each process


class System:
    """Processes whose environments are seen in turn, one look after the other."""

    def __init__(self, looks: dict[int, list[bytes]]) -> None:
        """Return each process what is read at each look; when that is over, it is gone."""
        self.looks = looks
        self.killed: list[int] = []
        self.pauses: list[float] = []
        self.name = io.StringIO()
        self.name.close = lambda: None  # type: ignore[method-assign]  # to be read afterwards

    def open(self, path: str, mode: str = "r") -> Any:
        """Open a file of /proc."""
        if path == "/proc/self/comm":
            assert mode == "w"
            return self.name
        left = self.looks[int(path.split("/")[2])]
        if not left:
            raise FileNotFoundError(path)
        return io.BytesIO(left.pop(0))

    def kill(self, pid: int, _: int) -> None:
        """Kill a process."""
        self.killed.append(pid)
        self.looks[pid].clear()

    def run(self) -> None:
        """Run the watcher of a program that has ended."""
        system = SimpleNamespace(
            read=lambda *_: b"",
            pread=lambda *_: b"",
            fstat=lambda _: SimpleNamespace(st_size=0),
            closerange=lambda *_: None,
            listdir=lambda _: [str(pid) for pid in self.looks],
            kill=self.kill,
        )
        signals = SimpleNamespace(
            SIGINT=2, SIGTERM=15, SIGHUP=1, SIGPIPE=13, SIG_IGN=1, SIGKILL=9, signal=print
        )
        signals.signal = lambda *_: None
        modules = {
            "array": array,
            "os": system,
            "signal": signals,
            "sys": SimpleNamespace(argv=["-c", MARK, "64"]),
            "time": SimpleNamespace(sleep=self.pauses.append),
        }
        own: dict[str, Any] = {"__import__": lambda name, *_: modules[name], "open": self.open}
        exec(watchdog.WATCHER, {"__builtins__": {**vars(builtins), **own}})  # noqa: S102 - it is ours


def test_a_process_in_its_exec_is_found_by_the_second_look() -> None:
    """It has no environment in that moment, so one look that finds nothing is not enough."""
    system = System({7: [b"", f"A=1\0{MARK}5\0".encode()], 8: [b"A=1\0"] * 9})
    system.run()
    assert system.killed == [7]
    assert len(system.pauses) == 2  # before the second look, and before the last one


def test_it_goes_after_two_looks_that_find_nothing() -> None:
    """There is an end, although others run."""
    system = System({8: [b"A=1\0"] * 9})
    system.run()
    assert system.killed == []
    assert len(system.looks[8]) == 9 - 2


def test_it_has_a_name() -> None:
    """So that nobody who counts children takes it for one that was left behind."""
    system = System({})
    system.run()
    assert system.name.getvalue() == "quiesce-watcher"
