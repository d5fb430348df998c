"""The package can be imported where the system is not POSIX."""

from __future__ import annotations

import subprocess
import sys

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

for name in quiesce.__all__:
    getattr(quiesce, name)
for package in ("processes", "pool", "channels", "streams"):
    found = importlib.import_module(f"quiesce.{package}")
    for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
        importlib.import_module(module.name)
importlib.import_module("quiesce.ready")
importlib.import_module("quiesce.mesh")


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


def test_it_can_be_imported_where_there_is_no_posix() -> None:
    """All of it, without fcntl, pwd, SIGCHLD and fork; and scopes and channels work there."""
    found = subprocess.run(
        [sys.executable, "-c", HIDDEN + IMPORTS], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.returncode) == ("1\nTrue\n", 0), found.stderr


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
