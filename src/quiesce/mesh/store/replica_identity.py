"""Who a replica is, and how another process can prove that it has ended.

Only a proof that its code has stopped allows to call a replica dead: its message may have started work that nobody can
see. These are proofs:

1. The same replica has started again. (The platform that names the replica sees to it that there is one at a time.)
2. Its process is not in the process table of the host that both run on, or another process has its pid.
3. The machine has started again since, and all processes with the store run on it.
4. It fences itself, and its lease is over: a timer of the kernel has ended the process before (see `fence`).
5. An operator says so.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from quiesce.core.tree import logger
from quiesce.errors import UsageError
from quiesce.mesh.store.rows import Replica

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_PROC = Path("/proc")
_STARTED_AT = 19  # the place of the start time in /proc/PID/stat, behind the name of the program
_SPARE_SECONDS = 5.0  # between the end of a lease and the belief that the process has ended


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def boot_of_machine() -> str:
    """Return the id of this start of the machine; empty if the system does not have one."""
    return _read(_PROC / "sys/kernel/random/boot_id")


def host_of_processes() -> str:
    """Return this start of the machine and the namespace of processes; empty if it cannot be told from others.

    The id of a boot is random. The id of a machine is not used: cloned machines and containers may have the same one.
    """
    machine = boot_of_machine()
    try:
        namespace = (_PROC / "self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{machine} {namespace}" if machine else ""


def start_of_process(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None if there is no such process.

    *Raises*: `OSError` if that cannot be known: the process is hidden from this one, or all file descriptors are in use.
    """
    try:
        line = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        if _has_process(pid):
            raise
        return None
    fields = line.rpartition(")")[2].split()
    if len(fields) <= _STARTED_AT:
        message = f"the entry of process {pid} cannot be read: {line!r}"
        raise OSError(message)
    if fields[0] in {"Z", "X"}:  # a zombie runs no code
        return None
    return int(fields[_STARTED_AT])


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    return True


def this_replica(agent: str, name: str | None, *, lease: float, fences: bool) -> Replica:
    """Return the entry of a new incarnation in this process.

    Args:
        agent: The name of the node.
        name: The name of the replica; None for a name that no other replica has.
        lease: For how many seconds a heartbeat counts.
        fences: Whether the process ends before its lease does.
    """
    incarnation = secrets.token_hex(8)
    pid = os.getpid()
    try:
        started = start_of_process(pid)
    except OSError:  # a system without /proc: no other process can tell whether this one has ended
        started = None
    host = host_of_processes() if started is not None else ""
    return Replica(
        incarnation=incarnation, agent=agent, name=name or f"{socket.gethostname()}-{pid}-{incarnation}", host=host,
        boot=boot_of_machine(), pid=pid, started=started or 0, lease=lease, fences=fences,
    )  # fmt: skip


def proof_of_death(
    other: Replica,
    own: Replica,
    *,
    is_starting: bool = False,
    is_one_machine: bool = False,
    start_of: Callable[[int], int | None] = start_of_process,
) -> str:
    """Return how it is proven that a replica has ended; empty if it is not.

    Args:
        other: The replica, as the store has it now.
        own: The replica that asks, which runs in this process.
        is_starting: Whether `own` has just started. Later, another one of its name is the one that has started.
        is_one_machine: Whether all processes with this store run on one machine.
        start_of: A function that returns the start of a process, if it is there.

    *Raises*: `UsageError` if a process of the same name, which has just started, runs on this host.
    """
    if other.incarnation == own.incarnation:
        return ""
    if is_one_machine and other.boot and own.boot and other.boot != own.boot:
        return "its machine has started again since"
    runs = False
    if other.host and other.host == own.host:
        try:
            runs = start_of(other.pid) == other.started
        except OSError:
            logger.debug("it is not known whether process %s runs", other.pid, exc_info=True)
        else:
            if not runs:
                return f"its process {other.pid} has ended"
    if is_starting and other.agent == own.agent and other.name == own.name:
        if runs and other.pid != own.pid:
            message = (
                f"replica {own.name!r} of {own.agent!r} runs already, as process {other.pid}: give each process its own"
                " replica=, or leave replica= out. The workers of one server are several processes"
            )
            raise UsageError(message)
        return f"replica {own.name} has started again"
    if other.fences and other.age > other.lease + _SPARE_SECONDS:
        return f"its lease of {other.lease:g} s is over, and it fences itself"
    return ""
