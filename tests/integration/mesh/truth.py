"""The ground truth of a mesh: what agents really did, and when; written by them, outside of quiesce.

A line a fact, each in one `write` to the agent's standard output, a pipe: lines do not mix, are read after SIGKILL, and
can be written when the disk is full. The rig puts all of them into one file. Times are those of the machine's
monotonic clock, which all of its processes share. A piece of work is there from before it can run until nothing of it
does; it writes its own end, where it is done.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count()
_PIPE_BYTES = 4096  # that are written to a pipe at once


class Log:
    """Where one process writes what it does."""

    def __init__(self, file: int, agent: str) -> None:
        """Write to a descriptor: a pipe, or a file that is opened for appending."""
        self._file = file
        self._agent = agent

    @classmethod
    def at(cls, path: Path, agent: str) -> Log:
        """Append to a file."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return cls(os.open(path, flags, 0o600), agent)

    def write(self, what: str, **facts: Any) -> None:
        """Write a fact, as of now; or as of `t`."""
        line = {
            "t": time.monotonic(),
            "is": what,
            "agent": self._agent,
            "pid": os.getpid(),
            **facts,
        }
        text = json.dumps(line) + "\n"
        assert len(text) <= _PIPE_BYTES, text  # longer ones could mix with others
        self.copy(text.encode())

    def copy(self, line: bytes) -> None:
        """Write what another process has said."""
        os.write(self._file, line)

    def piece(self, cascade: str, hop: str, name: str, *, joined: bool) -> Piece:
        """Begin a piece of work."""
        return Piece(self, cascade, hop, name, joined=joined)

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)


class Piece:
    """A piece of work, from now on; ends once."""

    def __init__(self, log: Log, cascade: str, hop: str, name: str, *, joined: bool) -> None:
        self._log = log
        self.key = f"{os.getpid()}/{next(_numbers)}"
        self._ended = False
        self.joined = joined
        log.write("begin", key=self.key, cascade=cascade, hop=hop, name=name, joined=joined)

    def end(self) -> None:
        """Record that it has ended, however."""
        if not self._ended:
            self._ended = True
            self.say_end()

    def say_end(self) -> None:
        """Write the end, also of one that was handed over."""
        self._log.write("end", key=self.key)

    def hand_over(self) -> None:
        """Leave it to another process to write the end."""
        self._ended = True

    def __del__(self) -> None:
        """End, where nothing is left that could do it: it was dropped before it began, as by a cancellation."""
        if not self._ended:
            self._ended = True
            self._log.write("end", key=self.key, dropped=True)

    def __enter__(self) -> None:
        """Go on."""

    def __exit__(self, *exc_info: object) -> None:
        """End."""
        self.end()


@dataclass
class Work:
    """A piece of work, as the judge sees it."""

    cascade: str
    hop: str
    name: str
    agent: str
    pid: int
    joined: bool
    """Whether it was part of the cascade, as its agent saw it: not so in, and below, one that takes no part."""
    begin: float
    end: float = math.inf
    cut: bool = False
    """Whether its process was killed before it had ended."""
    dropped: bool = False
    """Whether it was never done, and never will be: nothing had a reference to it any more."""


@dataclass
class Told:
    """What a cascade's beginner was told."""

    at: float
    full: str
    participants: str
    counts: dict[str, int]
    missing: list[str]


@dataclass
class Course:
    """What became of a cascade."""

    begin: float = math.inf
    works: list[Work] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    answered: float | None = None
    """When the answers to its first messages had come to their end."""
    all_answered: bool = False
    """Whether there were answers to all of them, good or bad."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """Messages of it that were not answered, or not in time, and why."""
    unread: set[str] = field(default_factory=set)
    """Messages whose sender had left before the agent could read them."""

    def end(self, *, joined_only: bool) -> float:
        """Return when the last of its work really ended."""
        ends = [work.end for work in self.works if work.joined or not joined_only]
        return max(ends, default=self.begin)


@dataclass
class Truth:
    """All that is in the file."""

    courses: dict[str, Course]
    faults: list[dict[str, Any]]
    copies: list[dict[str, Any]]

    def works(self) -> Iterator[Work]:
        """Return all work."""
        return (work for course in self.courses.values() for work in course.works)


def read(path: Path) -> Truth:
    """Read the file; work of a process that died has ended with it."""
    reader = _Reader()
    verdicts = []
    for text in path.read_bytes().splitlines():
        line: dict[str, Any] = json.loads(text)
        if line["is"] == "verdict":
            verdicts.append(line)
        elif line["is"] in {"begin", "end", "died"}:
            reader.work(line)
        else:
            reader.other(line)
    for line in verdicts:
        with contextlib.suppress(KeyError):  # killed before it could write which one it is
            course = reader.truth.courses[reader.names[line["id"]]]
            what = ("at", "full", "participants", "counts", "missing")
            course.told.append(Told(*(line[name] for name in what)))
    return reader.truth


class _Reader:
    """What was read so far."""

    def __init__(self) -> None:
        self.truth = Truth({}, [], [])
        self.names: dict[str, str] = {}
        self._open: dict[str, Work] = {}
        self._cut: dict[str, Work] = {}  # a child process may still say that it has ended

    def work(self, line: dict[str, Any]) -> None:
        """Record that work begins or ends, or that a process has died."""
        if line["is"] == "begin":
            what = ("cascade", "hop", "name", "agent", "pid", "joined", "t")
            work = self._open[line["key"]] = Work(*(line[name] for name in what))
            self._course(line).works.append(work)
        elif line["is"] == "end":
            known = self._open if line["key"] in self._open else self._cut
            if (
                line["key"] in known
            ):  # else it is a child process that was told to end in its last moment
                work = known.pop(line["key"])
                work.end, work.cut, work.dropped = line["t"], False, line.get("dropped", False)
        else:
            for key, work in list(self._open.items()):
                if work.pid == line["of"]:
                    self._cut[key] = self._open.pop(key)
                    work.end, work.cut = line["t"], True

    def other(self, line: dict[str, Any]) -> None:
        """Take in a line of any other kind."""
        match line["is"]:
            case "start":
                self.names[line["id"]] = line["cascade"]
                self._course(line).begin = line["t"]
            case "answered":
                course = self._course(line)
                course.answered, course.all_answered = line["t"], line["ok"]
            case "unanswered":
                self._course(line).unanswered[line["hop"]] = line["why"]
            case "unread":
                self._course(line).unread.add(line["hop"])
            case "fault":
                self.truth.faults.append(line)
            case "copy":
                self.truth.copies.append(line)

    def _course(self, line: dict[str, Any]) -> Course:
        return self.truth.courses.setdefault(line["cascade"], Course())
