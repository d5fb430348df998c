"""The package can be imported where the system is not POSIX."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN = """
import sys
import asyncio, concurrent.futures, multiprocessing, os, select, signal, socket, subprocess, threading
import anyio, anyio._backends._asyncio

loop = asyncio.new_event_loop()  # that of this system
for name in ("fcntl", "grp", "pwd", "resource", "termios", "pty", "tty", "syslog"):
    sys.modules[name] = None
GONE = {
    os: "fork forkpty register_at_fork waitid killpg pidfd_open memfd_create MFD_CLOEXEC getuid geteuid "
    "getgid getpgid getpgrp setsid P_PID P_ALL WNOHANG WEXITED WNOWAIT posix_spawn POSIX_SPAWN_DUP2 "
    "POSIX_SPAWN_OPEN set_blocking mkfifo fchmod environb sched_getaffinity O_CLOEXEC O_NOFOLLOW",
    signal: "SIGCHLD SIGKILL SIGHUP SIGPIPE SIGQUIT SIGALRM SIGUSR1 SIGUSR2 SIGCONT SIGSTOP SIGTSTP "
    "pthread_sigmask",
    select: "poll epoll",
    socket: "AF_UNIX SO_PEERCRED AF_NETLINK SCM_RIGHTS SCM_CREDENTIALS CMSG_LEN CMSG_SPACE",
}
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""

IMPORTS = """
import importlib, pkgutil

import quiesce

# These need trio, which has another source on Windows, and httpx.
OPTIONAL = ("trio_backend", "on_trio", "mesh.http", "http_transport")

for name in quiesce.__all__:
    getattr(quiesce, name)
for package in ("core", "processes", "pool", "channels", "streams", "mesh", "integrations.asgi", "testing"):
    found = importlib.import_module(f"quiesce.{package}")
    for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
        if not module.name.endswith(OPTIONAL):
            importlib.import_module(module.name)
importlib.import_module("quiesce.ready")


async def main():
    async with quiesce.Scope("a") as scope:
        channel = quiesce.Channel(1)
        scope.spawn(channel.send, 1)
        print(await channel.receive())
    async with quiesce.mesh.Node("a") as node:
        async with node.cascade("c") as cascade:
            pass
        print(bool(await cascade.settled(1, require="participants")))


loop.run_until_complete(main())
loop.close()
"""


def printed(program: str) -> str:
    """Return what a program prints where the system is not POSIX."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", HIDDEN + program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.stderr, found.returncode) == ("", 0)
    return found.stdout


def test_it_can_be_imported_where_there_is_no_posix() -> None:
    """All of it, without fcntl, pwd, SIGCHLD and fork; and scopes, channels and nodes work there."""
    assert printed(IMPORTS) == "1\nTrue\n"


REFUSED = """
import quiesce
import quiesce.mesh
import quiesce.ready
import quiesce.testing


def no_signals(*_):
    raise NotImplementedError


loop.add_signal_handler = no_signals
asyncio.events.new_event_loop = lambda: loop


async def main():
    pass


async def process():
    async with quiesce.Scope("a"):
        await quiesce.start_process(["true"])


async def journal():
    async with quiesce.mesh.Node("a", store="a.journal"):
        pass


def say(call, *args):
    try:
        call(*args)
    except quiesce.UsageError as error:
        print(error)


say(loop.run_until_complete, process())
say(loop.run_until_complete, journal())
say(quiesce.ready.UnixSocket, "a")
say(quiesce.ready.Listener.unix, "a")
say(quiesce.testing.guard)
say(quiesce.testing.sweep, main)
say(quiesce.run, main)  # closes the loop
"""


def test_what_cannot_work_there_says_why(tmp_path: Path) -> None:
    """The error names the feature, what the platform lacks, and what to do."""
    calls = "does not work on this platform: Python has no os.fork, os.killpg, os.waitid here."
    advice = "Run this program on Linux (on Windows: in WSL)"
    sockets = "needs unix sockets, which Python does not have on this platform: use TCP"
    process, journal, *others = printed(
        f"import os; os.chdir({str(tmp_path)!r})\n{REFUSED}"
    ).splitlines()
    assert process == f"start_process() {calls} {advice}"
    assert journal.startswith(
        f"the journal {tmp_path}/a.journal cannot be locked against other processes, because this platform does not have"
    )
    signals = "run() handles signals, which this platform's asyncio loop does not support"
    assert others == [
        f"UnixSocket {sockets}",
        f"Listener.unix {sockets}",
        f"guard() {calls} {advice}",
        f"sweep() {calls} {advice}",
        f'{signals}: use backend="trio", or open a Scope in asyncio.run()',
    ]


FORKS = """
import os

from quiesce.processes import watchdog

tokens = []
for _ in range(2):  # as a server forks its workers, before any of them has started a process
    reader, writer = os.pipe()
    if os.fork() == 0:
        environment = {}
        watchdog.mark_environment(environment)
        os.write(writer, environment[watchdog.MARK].partition(".")[0].encode())
        os._exit(0)
    tokens.append(os.read(reader, 1000))
    os.wait()
print(len(set(tokens)))
"""


def test_workers_that_are_forked_after_the_import_have_marks_of_their_own() -> None:
    """Else the end of one worker would kill the processes of the others."""
    found = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False)  # fmt: skip
    assert (found.stdout, found.stderr) == ("2\n", "")
