#!/usr/bin/env python3
"""Draw the diagrams of the explanation pages: boxes and arrows. tools/draw_pages.py draws the plots.

python tools/draw_diagrams.py            writes docs/img/*.svg
python tools/draw_diagrams.py --check    exits with 1 if a picture is out of date
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[1] / "docs"

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2733}.small{font-size:11.5px;fill:#45596b}.bold{font-weight:600}"
    ".mid{text-anchor:middle}.end{text-anchor:end}.paper{fill:#fbfdff;stroke:#d8e2ea}"
    ".box{fill:#e8f0f7;stroke:#4a6f8f;stroke-width:1.5}.work{fill:#f3d9a4;stroke:#b98220;stroke-width:1.5}"
    ".ours{fill:#d5ecdd;stroke:#2e7d4f;stroke-width:1.5}.area{fill:none;stroke:#8aa3b8;stroke-dasharray:5 4;stroke-width:1.5}"
    ".way{fill:none;stroke:#4a6f8f;stroke-width:1.6}.told{fill:none;stroke:#2e7d4f;stroke-width:1.6;stroke-dasharray:5 3}"
    ".bad{fill:#d9694f}.good{fill:#2e7d4f}.some{fill:#e0b252}.none{fill:#dfe7ee}.wanted{stroke:#1b2733;stroke-width:2}"
)


def svg(wide: int, high: int, title: str, parts: list[str]) -> str:
    """Return an SVG picture of these parts, with a frame, and with a title for screen readers."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        (
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#4a6f8f"/></marker><marker id="b" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#2e7d4f"/></marker></defs>'
        ),
        f'<rect class="paper" x="1" y="1" width="{wide - 2}" height="{high - 2}" rx="10"/>',
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


class Box(NamedTuple):
    """A rectangle with lines of text; the first line is bold."""

    x: int
    y: int
    wide: int
    high: int
    words: str
    kind: str = "box"

    def draw(self) -> list[str]:
        """Return the box as SVG. The text of an area is in its corner."""
        parts = [
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.wide}" height="{self.high}" rx="8"/>'
        ]
        lines = self.words.split("\n")
        if self.kind == "area":
            return [*parts, text(self.x + 10, self.y + 18, lines[0], "bold")]
        top = self.y + self.high / 2 - (len(lines) - 1) * 8 + 4
        middle = self.x + self.wide / 2
        return parts + [
            text(middle, top + 16 * at, line, "mid small" if at else "mid bold")
            for at, line in enumerate(lines)
        ]


class Way(NamedTuple):
    """An arrow with a label."""

    points: str
    words: str = ""
    at: tuple[int, int] = (0, 0)
    kind: str = "way"

    def draw(self) -> list[str]:
        """Return the arrow as SVG."""
        end = "b" if self.kind == "told" else "a"
        parts = [f'<path class="{self.kind}" d="{self.points}" marker-end="url(#{end})"/>']
        return [*parts, *([text(*self.at, self.words, "small")] if self.words else [])]


def _diagram(wide: int, high: int, title: str, *things: Box | Way) -> str:
    return svg(wide, high, title, [part for thing in things for part in thing.draw()])


def holds_and_scopes() -> str:
    """Return the diagram of a tree of scopes, and of what each scope holds."""
    return _diagram(
        760, 300,
        "A tree of scopes. The scope of the server holds a plain hold and two busy child scopes; these hold jobs, a thread and an"
        " adopted task. The scope is idle when its table is empty.",
        Box(280, 20, 200, 46, "scope: server\nbusy: 3 holds"),
        Box(40, 130, 200, 46, "scope: requests\nbusy: 2 holds"),
        Box(290, 130, 180, 46, "hold: webhook\nuntil release()", "work"),
        Box(520, 130, 200, 46, "scope: mail\nbusy: 2 holds"),
        Box(20, 230, 110, 46, "job\nhandle()", "work"), Box(150, 230, 110, 46, "thread\nresize()", "work"),
        Box(500, 230, 110, 46, "job\nsend()", "work"), Box(630, 230, 110, 46, "adopted task\na library's", "work"),
        Way("M140,130 L330,68", "in the table while it is busy", (62, 98)), Way("M380,130 L380,68"), Way("M620,130 L430,68"),
        Way("M75,230 L120,178"), Way("M205,230 L160,178"), Way("M555,230 L600,178"), Way("M685,230 L640,178"),
    )  # fmt: skip


def graceful_close() -> str:
    """Return the diagram of what a queue's close waits for, and of what closes a channel."""
    return _diagram(
        760, 270,
        "A close that waits for a reader that is gone waits for ever. A channel is told that no reader is left: by its readers'"
        " ends, by an immediate close, or by its scope. What is queued is then undelivered.",
        Box(20, 20, 350, 100, "a queue with join()", "area"), Box(40, 56, 90, 46, "close()\nwaits"), Box(160, 56, 90, 46, "queue\n3 items"),
        Box(275, 56, 85, 46, "reader\nis gone", "work"), Way("M130,79 L158,79"), Way("M250,79 L273,79"),
        _note("for ever", 150, 114),
        Box(20, 140, 720, 112, "a channel", "area"), Box(40, 176, 130, 56, "channel.close()\none step, no wait", "ours"),
        Box(230, 176, 150, 56, "channel\n3 items in flight"), Box(470, 166, 250, 24, "read_by(job): the last has ended", "ours"),
        Box(470, 194, 250, 24, "close(immediate=True)", "ours"), Box(470, 222, 250, 24, "the scope is closed", "ours"),
        Way("M170,204 L228,204"), Way("M470,178 L382,196", kind="told"), Way("M470,206 L382,206", kind="told"), Way("M470,234 L382,216", kind="told"),
        _note("told", 425, 170),
    )  # fmt: skip


def _note(words: str, x: int, y: int) -> Box:
    return Box(x - 1, y - 1, 1, 1, words, "paper")


def processes() -> str:
    """Return the diagram of what ends a child process while the program runs, and after the program was killed."""
    return _diagram(
        760, 280,
        "In the program, callers ask an owner task, which nobody can cancel; it signals the whole process group and sees the exit by a"
        " pidfd. A watcher process of its own ends the group when the pipe from the program breaks.",
        Box(20, 20, 330, 120, "your program", "area"), Box(40, 60, 110, 50, "callers\nmay be cancelled"), Box(210, 60, 120, 50, "owner task\ncannot be", "ours"),
        Way("M150,85 L208,85", "ask", (168, 78)),
        Box(470, 20, 270, 120, "the child's process group", "area"), Box(490, 60, 100, 50, "child", "work"), Box(625, 60, 100, 50, "grandchild", "work"),
        Way("M330,76 L488,76", "SIGTERM, SIGKILL", (362, 68)), Way("M488,98 L332,98", "exit, by pidfd", (368, 116), "told"),
        Box(210, 200, 160, 56, "watcher\na process of its own", "ours"),
        Way("M270,112 L270,198", "pipe: breaks if the program is killed", (42, 178)), Way("M370,222 L560,142", "then SIGKILL: by the table, by the mark", (440, 228)),
    )  # fmt: skip


def limits() -> str:
    """Return the diagram of what a scope sees by itself, and of what you have to declare."""
    return _diagram(
        760, 230,
        "A scope sees jobs, adopted tasks, its threads and its child processes. Other threads, executors, callbacks and other processes it"
        " has to be told of by a hold. Another machine is for the mesh.",
        Box(20, 20, 400, 190, "seen by a scope", "area"), Box(40, 54, 170, 46, "scope.spawn()\njobs", "ours"), Box(230, 54, 170, 46, "create_task()\nif it adopts", "ours"),
        Box(40, 114, 170, 46, "scope.to_thread()\nthreads", "ours"), Box(230, 114, 170, 46, "start_process()\nand its group", "ours"),
        Box(40, 174, 360, 26, "scope.hold(): all that you tell it of", "ours"),
        Box(480, 20, 260, 120, "not seen", "area"), Box(496, 50, 110, 36, "call_later()", "work"), Box(616, 50, 110, 36, "executors", "work"),
        Box(496, 94, 110, 36, "Popen()", "work"), Box(616, 94, 110, 36, "Thread()", "work"),
        Way("M496,140 L402,184", "hold()", (428, 156)),
        Box(480, 160, 260, 50, "another machine\nfor the mesh to tell", "box"),
    )  # fmt: skip


def mesh_memory() -> str:
    """Return the diagram of when a message may begin, and of how long its receiver remembers the message."""
    return _diagram(
        760, 210,
        "A message is sent, and may begin until b, which is keep_seconds later, with five minutes to spare for clocks. The receiver"
        " remembers its id for keep_seconds and ten minutes after its receipt was taken. A copy that comes later is refused by b.",
        Box(20, 30, 110, 46, "message\nis sent"), Box(330, 30, 120, 46, "b\nkeep_seconds later"),
        Way("M130,53 L328,53", "may begin", (196, 46)), Way("M450,53 L738,53", "refused by its time (5 minutes to spare)", (480, 46)),
        Box(110, 120, 120, 46, "receipt\nis taken", "work"), Box(560, 120, 180, 46, "id is forgotten\nkeep_seconds + 10 minutes", "ours"),
        Way("M230,143 L558,143", "a copy is recognised by its id", (300, 136), "told"),
        _note("The two overlap: a copy is always refused by its id or by its time.", 380, 190),
    )  # fmt: skip


def mesh_security() -> str:
    """Return the diagram of which peer may send which request to a node."""
    return _diagram(
        760, 220,
        "A stranger can ask about edges and send messages, within bounds, and is refused by accept=. An agent that has the id of an"
        " edge can end that edge: its sender, its receiver, and the agents before them. The node itself calls its peers only.",
        Box(20, 20, 230, 70, "a stranger\nhas no id", "work"), Box(20, 130, 230, 70, "a node of the cascade\nhas the ids of its edges", "ours"),
        Box(440, 60, 140, 90, "node\nids: 96 random bits"), Box(630, 80, 110, 50, "peers", "ours"),
        Way("M250,55 L438,90", "bounded; accept= looks first", (262, 44)), Way("M250,165 L438,125", "receipts, questions, cancel", (262, 182), "told"),
        Way("M580,105 L628,105", "calls only", (578, 72)),
    )  # fmt: skip


def replicas() -> str:
    """Return the diagram of two replicas and the row that decides which of them runs a message."""
    return _diagram(
        760, 260,
        "A message reaches one replica, which inserts its row in the store and runs it. A copy reaches another replica, which finds"
        " the row and answers with what it says. Any process reads the verdict from the store.",
        Box(20, 40, 130, 50, "sender"), Box(20, 170, 130, 50, "a proxy's copy", "work"),
        Box(280, 30, 170, 70, "replica hotel-0\nruns the message", "ours"), Box(280, 160, 170, 70, "replica hotel-1\ndoes not run it"),
        Box(590, 90, 150, 80, "store\none row a side\nof each message"),
        Way("M150,65 L278,65", "message", (180, 55)), Way("M150,195 L278,195", "the same message", (158, 185)),
        Way("M450,65 L588,115", "inserts the row: it was first", (460, 50), "told"), Way("M450,195 L588,150", "finds the row, and says what it says", (460, 222)),
    )  # fmt: skip


def asgi() -> str:
    """Return the diagram of when app and server get SIGTERM, and of what happens between."""
    return _diagram(
        760, 200,
        "SIGTERM reaches Quiesce, which serves new requests for the time of the notice, then refuses them while open requests and their"
        " tasks have the grace, then cancels what is left, which has the cleanup, then reports. Only then the server stops.",
        Box(20, 66, 90, 50, "SIGTERM", "work"),
        Box(150, 40, 460, 130, "Quiesce", "area"),
        Box(165, 66, 95, 50, "notice\nready: 503", "ours"), Box(272, 66, 110, 50, "grace\nnew ones: 503", "ours"),
        Box(394, 66, 105, 50, "cleanup\ncut ones: 500", "ours"), Box(511, 66, 85, 50, "report\nin the log", "ours"),
        Box(640, 66, 100, 50, "the server\nstops"),
        Way("M110,91 L163,91"), Way("M596,91 L638,91"),
        Way("M165,140 L499,140", "open requests, WebSockets and background tasks go on", (172, 158), "told"),
    )  # fmt: skip


def a2a_pushes() -> str:
    """Return the diagram of the order of writing a push, storing its state, and sending the push."""
    return _diagram(
        760, 200,
        "The executor says a state. The push is written to the outbox, then the state is stored, then the push is sent. After SIGKILL the"
        " next start reads the outbox and the store, and sends what was stored and not sent.",
        Box(20, 40, 110, 50, "executor\nCOMPLETED", "work"), Box(190, 40, 130, 50, "1. outbox\nthe push is written", "ours"),
        Box(380, 40, 130, 50, "2. store\nthe state is stored"), Box(570, 40, 170, 50, "3. webhook\nthe push is sent", "ours"),
        Way("M130,65 L188,65"), Way("M320,65 L378,65"), Way("M510,65 L568,65"),
        Box(190, 130, 320, 46, "after SIGKILL: the next start reads both", "ours"),
        Way("M255,90 L300,128", kind="told"), Way("M445,90 L400,128", kind="told"),
        Way("M510,153 L650,92", "what is stored and not sent", (560, 165), "told"),
    )  # fmt: skip


def sdks() -> str:
    """Return the diagram of five ways in which work outlives an SDK's call, and of what owns the work with quiesce."""
    return _diagram(
        760, 250,
        "Five causes: a task that nothing refers to, a context that another task leaves, a second cancellation in a cleanup, a child of a"
        " child process, a generator that is left at its yield. In each case a task of the scope owns the thing instead.",
        Box(20, 20, 330, 212, "with the SDK alone", "area"),
        Box(35, 48, 300, 28, "a task that nothing refers to", "work"), Box(35, 84, 300, 28, "a context that another task leaves", "work"),
        Box(35, 120, 300, 28, "a second cancellation, in a cleanup", "work"), Box(35, 156, 300, 28, "a child of a child process", "work"),
        Box(35, 192, 300, 28, "a generator that is left at its yield", "work"),
        Box(430, 20, 310, 212, "with an adapter: owned by the scope", "area"),
        Box(445, 48, 280, 28, "the task is a hold", "ours"), Box(445, 84, 280, 28, "one task enters and leaves it", "ours"),
        Box(445, 120, 280, 28, "callers only ask for the end", "ours"), Box(445, 156, 280, 28, "the whole process group ends", "ours"),
        Box(445, 192, 280, 28, "a job runs the generator to its end", "ours"),
        Way("M335,62 L443,62"), Way("M335,98 L443,98"), Way("M335,134 L443,134"), Way("M335,170 L443,170"), Way("M335,206 L443,206"),
    )  # fmt: skip


def failures() -> str:
    """Return the diagram of where the failure of a task is reported."""
    return _diagram(
        760, 190,
        "A failure goes to a task that awaits it, which handles it if the failed task was adopted; to on_error, which handles it; else"
        " to the report, and the end of the block raises it.",
        Box(20, 70, 130, 50, "a job, or a task\nraises", "work"),
        Box(300, 20, 200, 44, "a task receives it\nawait, gather, result()"), Box(300, 76, 200, 44, "on_error(task, error)\na function"),
        Box(300, 132, 200, 44, "neither of them"),
        Way("M150,85 L298,44"), Way("M150,95 L298,98"), Way("M150,105 L298,150"),
        Box(570, 20, 170, 100, "handled\n(a job's failure stays\nin the report)", "ours"), Box(570, 132, 170, 44, "the block raises it\nfailed, in the report", "work"),
        Way("M500,42 L568,50", kind="told"), Way("M500,98 L568,90", kind="told"), Way("M500,154 L568,154"),
    )  # fmt: skip


DIAGRAMS: dict[str, Callable[[], str]] = {
    "a2a-pushes": a2a_pushes,
    "asgi": asgi,
    "failures": failures,
    "graceful-close": graceful_close,
    "holds-and-scopes": holds_and_scopes,
    "limits": limits,
    "mesh-memory": mesh_memory,
    "mesh-security": mesh_security,
    "processes": processes,
    "replicas": replicas,
    "sdks": sdks,
}


def write_pictures(pictures: dict[str, Callable[[], str]], about: str, program: str) -> int:
    """Write the pictures, or with --check compare them; return the exit code."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if one is out of date"
    )
    asked = parser.parse_args()
    stale = []
    for name, draw in pictures.items():
        path = DOCS / "img" / f"{name}.svg"
        if not asked.check:
            path.write_text(draw(), "utf-8")
        elif not path.exists() or path.read_text("utf-8") != draw():
            stale.append(path.name)
    if stale:
        print(f"out of date: {', '.join(stale)}; run python tools/{program}")  # noqa: T201 - its output
    return bool(stale)


if __name__ == "__main__":
    sys.exit(write_pictures(DIAGRAMS, __doc__ or "", "draw_diagrams.py"))
