"""Connections to PostgreSQL: a few, each used by one call at a time, and all calls bounded.

A connection whose call was cancelled, or was lost in the middle of a change, is *in doubt*: the server may still work on
the change, and write it later than a newer one. It is closed at once, and before the next call the server ends the
process that served it. So a change is written before its call ends, or by then it is known that it will never be.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from quiesce.core.current import detached
from quiesce.core.python_private import running_loop
from quiesce.errors import QuiesceError, StoreLost, UsageError
from quiesce.mesh.store import postgres_address, postgres_tables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from quiesce.mesh.store.postgres_address import PostgresAddress

__all__: list[str] = []

_T = TypeVar("_T")

_CONNECTIONS = 4
_IDLE_SECONDS = 30.0  # an idle connection may be forgotten by a firewall, which tells nobody
_CLOSE_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
_PAUSE_MAX_SECONDS = 0.5

# Read committed: a row that was locked is looked at again after the wait, on which `apply` and `end` rely.
_SET_UP = """
SELECT pg_backend_pid() AS pid, (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()) AS started,
    set_config('search_path', quote_ident($1) || ', pg_temp', false), set_config('lock_timeout', $2, false),
    set_config('statement_timeout', $3, false), set_config('default_transaction_isolation', 'read committed', false),
    set_config('idle_in_transaction_session_timeout', $3, false), set_config('jit', 'off', false)
"""
_END_OTHERS = """
SELECT COALESCE(bool_and(pg_terminate_backend(there.pid, $3)), true) FROM pg_stat_activity AS there
JOIN unnest($1::int[], $2::timestamptz[]) AS doubtful (pid, started)
    ON there.pid = doubtful.pid AND there.backend_start = doubtful.started
"""


@dataclass(slots=True, eq=False)
class _Session:
    """One connection, and the process of the server that serves it."""

    connection: Any
    pid: int
    started: datetime
    used_at: float = 0.0


class PostgresLink:
    """A pool of connections to one database."""

    def __init__(self, address: str, seconds: float) -> None:
        self.address: PostgresAddress = postgres_address.parse_address(address)
        self.seconds = seconds
        self._asyncpg: Any = postgres_address.driver()
        self._errors = (
            QuiesceError, OSError, ValueError, self._asyncpg.PostgresError, self._asyncpg.InterfaceError,
            self._asyncpg.InternalClientError,
        )  # fmt: skip
        self.is_open: bool = False
        self._idle: list[_Session] = []
        self._all: set[_Session] = set()
        self._unclaimed: list[asyncio.Task[_Session]] = []  # whose callers were cancelled
        self._doubtful: set[tuple[int, datetime]] = set()
        self._room = anyio.Semaphore(_CONNECTIONS)
        self._fence = anyio.Lock()

    async def open(self) -> None:
        """Connect, and prepare the tables."""
        _check_loop(self.address.label)
        for path in self.address.files:
            if not await anyio.Path(path).exists():
                message = f"the store {self.address.label} cannot be opened: there is no file {path}, which its address names"
                raise UsageError(message)
        self.is_open = True
        try:
            await self._try(
                lambda connection: postgres_tables.prepare(connection, self.address),
                postgres_address.explain_opening,
            )
        except BaseException:
            self.is_open = False
            self._drop_all()
            raise

    async def do(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        """Do some work with a connection. Do it again on another one if the connection is lost, within the bound."""
        return await self._try(work, postgres_address.explain)

    async def _try(
        self,
        work: Callable[[Any], Awaitable[_T]],
        explain: Callable[[BaseException, PostgresAddress], Exception],
    ) -> _T:
        last: BaseException = TimeoutError()
        pause = _PAUSE_SECONDS
        with anyio.move_on_after(self.seconds), detached():
            while True:
                try:
                    return await self._attempt(work)
                except self._errors as error:
                    reason = explain(error, self.address)
                    if isinstance(reason, UsageError) or not postgres_address.may_pass(error):
                        raise reason from None
                    last = error
                await anyio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_SECONDS)
        raise explain(last, self.address) from None

    async def _attempt(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        async with self._room:
            session = await self._take()
            try:
                result = await work(session.connection)
            except BaseException as error:
                if postgres_address.is_sound(error):
                    self._give_back(session)
                else:
                    self._discard(session)
                raise
            self._give_back(session)
            return result

    async def _take(self) -> _Session:
        now = anyio.current_time()
        session = None
        while session is None and self._idle:
            session = self._idle.pop()
            if session.connection.is_closed() or now - session.used_at > _IDLE_SECONDS:
                self._all.discard(session)
                session.connection.terminate()
                session = None
        if session is None:
            session = await self._connected()
            self._all.add(session)
        try:
            await self._end_doubtful(session.connection)
        except BaseException:
            self._discard(session)
            raise
        return session

    async def _end_doubtful(self, connection: Any) -> None:
        """Wait until the server has ended all processes that may still work on a change that was given up."""
        if not self._doubtful:
            return
        async with self._fence:
            doubtful = list(self._doubtful)
            wait = int(self.seconds * 1000)
            pids, starts = [pid for pid, _ in doubtful], [started for _, started in doubtful]
            if not await connection.fetchval(_END_OTHERS, pids, starts, wait):
                message = f"the store {self.address.label} cannot be used now: an earlier change is still under way there"
                raise StoreLost(message)
            self._doubtful.difference_update(doubtful)

    async def connect(self) -> Any:
        """Return a connection that is not of the pool: the caller closes it."""
        return (await self._connected()).connection

    async def _connected(self) -> _Session:
        """Return a new connection. If the caller is cancelled, it is kept for the next one.

        The driver does not clean up after itself if it is cancelled while it connects. So tasks of the link connect: each
        ends by itself within the time limit, and `close` waits for them.
        """
        while self._unclaimed:
            task = self._unclaimed.pop()
            if not task.done() or _usable(task):
                break
        else:
            task = asyncio.get_running_loop().create_task(self._connect())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._unclaimed.append(task)
            raise

    async def _connect(self) -> _Session:
        self._check_open()
        connection = await self._asyncpg.connect(
            self.address.dsn,
            user=self.address.user,
            password=self.address.password,
            timeout=self.seconds,
        )
        try:
            # The server gives up a little earlier than the caller: then the connection stays sound.
            lock, statement = (str(max(1, int(self.seconds * part * 1000))) for part in (0.8, 0.9))
            made = await connection.fetchrow(_SET_UP, self.address.schema, lock, statement)
            self._check_open()  # it may have been closed in the meantime
        except BaseException:
            connection.terminate()
            raise
        return _Session(connection, made["pid"], made["started"])

    def _check_open(self) -> None:
        if not self.is_open:
            message = f"the store {self.address.label} is not open: call open() first"
            raise UsageError(message)

    def _give_back(self, session: _Session) -> None:
        if self.is_open and not session.connection.is_closed():
            session.used_at = anyio.current_time()
            self._idle.append(session)
        else:
            self._discard(session)

    def _discard(self, session: _Session) -> None:
        """Close a connection in doubt."""
        self._all.discard(session)
        self._doubtful.add((session.pid, session.started))
        session.connection.terminate()  # at once; it waits for nothing

    def _drop_all(self) -> None:
        for session in [*self._all, *filter(None, map(_usable, self._unclaimed))]:
            session.connection.terminate()
        self._all.clear()
        self._idle.clear()

    async def close(self) -> None:
        """Close the connections; a call under way fails. Idempotent."""
        self.is_open = False
        idle, self._idle = self._idle, []
        try:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True), detached():
                await self._collect()
                for session in idle:
                    await session.connection.close(timeout=_CLOSE_SECONDS)
        except (OSError, self._asyncpg.PostgresError, self._asyncpg.InterfaceError):
            pass  # the server is gone
        finally:
            self._drop_all()

    async def _collect(self) -> None:
        """Wait for the tasks that still connect."""
        if self._unclaimed:
            _, late = await asyncio.wait(self._unclaimed, timeout=_CLOSE_SECONDS / 2)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._unclaimed, return_exceptions=True)


def _usable(task: asyncio.Task[_Session]) -> _Session | None:
    """Return the connection that a task has made, if it is still open."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    session = task.result()
    return None if session.connection.is_closed() else session


def _check_loop(label: str) -> None:
    trio = sys.modules.get("trio")
    if running_loop() is None or (trio is not None and trio.lowlevel.in_trio_task()):
        message = (
            f"the store {label} cannot be opened on trio: the driver of PostgreSQL needs asyncio or uvloop. Run the program"
            " on one of these, or use a store in an SQLite file"
        )
        raise UsageError(message)
