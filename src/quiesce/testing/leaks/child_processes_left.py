"""Find the child processes of this process, and their descendants.

On Linux it finds the children of every thread, their descendants, and processes whose parent has
ended: a mark in their environment identifies these. Elsewhere it knows only children that
`subprocess` has started.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quiesce.processes import watchdog
from quiesce.testing.leaks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from quiesce.testing.leaks.births import Birth

MARK = "QUIESCE_GUARD"
_TOKEN = secrets.token_hex(8)
_PROC = "/proc"
_COMMAND_MAX = 80
_NOTES_BETWEEN_LOOKS = 64


class ProcessEntry(NamedTuple):
    """A process's number and start time; another process of the same number has another start time."""

    pid: int
    started: int


class ProcessStat(NamedTuple):
    """The system's record of a process."""

    name: str
    letter: str
    parent: int
    started: int


def has_proc() -> bool:
    """Return whether the system has /proc."""
    return Path(_PROC, "self", "task").is_dir()


def present_children(noted: Iterable[int]) -> dict[ProcessEntry, ProcessEntry]:
    """Return the children and their descendants; `noted` are process numbers known to be started here."""
    if not _has_children():
        return {}
    if not has_proc():
        return {ProcessEntry(pid, 0): ProcessEntry(pid, 0) for pid in noted if is_child(pid)}
    found: dict[ProcessEntry, ProcessEntry] = {}
    kept = _kept()
    children_of = _listed if _are_listed() else _by_parent()
    unseen = [pid for pid in children_of(os.getpid()) if pid not in kept]
    while unseen:
        pid = unseen.pop()
        state = state_of(pid)
        if state is None or ProcessEntry(pid, state.started) in found:
            continue
        found[ProcessEntry(pid, state.started)] = ProcessEntry(pid, state.started)
        unseen.extend(children_of(pid))
    return found


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def is_child(pid: int) -> bool:
    """Return whether a process is a child of this one that has not been reaped."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def note_child(births: dict[int, Birth], pid: int, birth: Birth) -> None:
    """Record which code started a process. Now and then forget processes that are gone."""
    births[pid] = birth
    if len(births) % _NOTES_BETWEEN_LOOKS == 0:
        for each in list(births):
            try:
                os.kill(each, 0)
            except ProcessLookupError:
                births.pop(each, None)
            except PermissionError:
                pass  # the number belongs to another user's process now


def _are_listed() -> bool:
    """Return whether the kernel lists the children of a thread; it may be built without that."""
    return Path(_PROC, "self", "task", str(threading.get_native_id()), "children").exists()


def _listed(pid: int) -> list[int]:
    """List the children of every thread of a process."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(_PROC, str(pid), "task").iterdir():
            with suppress(OSError):
                found.extend(map(int, (thread / "children").read_bytes().split()))
    return found


def _by_parent() -> Callable[[int], list[int]]:
    """Return a function that lists the children of a process, from the parents of all processes."""
    found: dict[int, list[int]] = {}
    for path in Path(_PROC).iterdir():
        state = state_of(int(path.name)) if path.name.isdigit() else None
        if state is not None:
            found.setdefault(state.parent, []).append(int(path.name))
    return lambda pid: found.get(pid, [])


def _kept() -> set[int]:
    """Return the processes that Python or quiesce shares and ends itself."""
    kept = {watchdog.watcher.pid}
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    kept.add(getattr(getattr(tracker, "_resource_tracker", None), "_pid", None))
    server = sys.modules.get("multiprocessing.forkserver")
    kept.add(getattr(getattr(server, "_forkserver", None), "_forkserver_pid", None))
    return {pid for pid in kept if pid is not None}


def state_of(pid: int) -> ProcessStat | None:
    """Read the system's record of a process; None if the process is gone."""
    try:
        head, _, tail = Path(_PROC, str(pid), "stat").read_bytes().rpartition(b")")
    except OSError:
        return None
    fields = tail.split()
    name = head.partition(b"(")[2].decode(errors="replace")
    return ProcessStat(name, fields[0].decode(), int(fields[1]), int(fields[19]))


# --- processes whose parent has ended -------------------------------------------------------------


def usage() -> tuple[float, ...]:
    """Return the resources that ended children have used: they change whenever a child is reaped."""
    import resource  # noqa: PLC0415 - Windows has none, and the package can be imported there

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_minflt, used.ru_utime, used.ru_stime, used.ru_nvcsw, used.ru_nivcsw)


def mark_children(number: int) -> str | None:
    """Mark all processes that are started from now on; return the previous mark."""
    before = os.environ.get(MARK)
    os.environ[MARK] = f"{_TOKEN}.{os.getpid()}.{number}"
    return before


def unmark_children(before: str | None) -> None:
    """Restore the previous mark."""
    if before is None:
        os.environ.pop(MARK, None)
    else:
        os.environ[MARK] = before


def marked_since(number: int) -> dict[ProcessEntry, ProcessEntry]:
    """Find the processes marked with this number or a later one, whatever their parent is now."""
    if not has_proc():
        return {}
    found: dict[ProcessEntry, ProcessEntry] = {}
    start = f"{MARK}={_TOKEN}.{os.getpid()}.".encode()
    kept = _kept() | {os.getpid()}
    for path in Path(_PROC).iterdir():
        if not path.name.isdigit() or (pid := int(path.name)) in kept:
            continue
        with suppress(OSError):
            _, there, rest = (path / "environ").read_bytes().partition(start)
            state = state_of(pid) if there and int(rest.partition(b"\0")[0]) >= number else None
            if state is not None and state.letter != "Z":
                found[ProcessEntry(pid, state.started)] = ProcessEntry(pid, state.started)
    return found


def process_finding(process: ProcessEntry, births: Mapping[int, Birth]) -> Finding:
    """Describe a process that was left."""
    state = state_of(process.pid)
    name, words = _command(process.pid)
    details = [f"pid {process.pid}", words]
    birth = births.get(process.pid)
    if state is not None:
        name = name or state.name
        if state.letter == "Z":
            details.append("it has ended, but no code has waited for it")
        if state.parent != os.getpid():
            details.append(f"its parent is {state.parent}")
            birth = birth or _nearest(state.parent, births)
    where = None if birth is None else birth.where
    return Finding("process", name or "process", where, "; ".join(filter(None, details)))


def _nearest(pid: int, births: Mapping[int, Birth]) -> Birth | None:
    """Find the start of the nearest ancestor that was started here."""
    while pid > 1 and pid not in births:
        state = state_of(pid)
        pid = 0 if state is None else state.parent
    return births.get(pid)


def _command(pid: int) -> tuple[str, str]:
    """Return a process's program and its command line."""
    try:
        line = Path(_PROC, str(pid), "cmdline").read_bytes()
    except OSError:
        return "", ""
    words = [word.decode(errors="replace") for word in line.split(b"\0") if word]
    if not words:
        return "", ""
    text = " ".join(words).replace("\n", " ")
    return Path(words[0]).name, text if len(text) <= _COMMAND_MAX else text[:79] + "…"
