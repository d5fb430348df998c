"""Open sessions in one task, and close them in others, in any order; on asyncio and trio.

A session is made of an anyio task group, as those of many SDKs are. A task group must be left by
the task that entered it, the last one first; `Scope.enter` sees to that.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

import anyio

import quiesce


class Session:
    """A session with one server."""

    def __init__(self, name: str) -> None:
        """Make a session with the server of this name."""
        self.name = name

    async def listen(self) -> None:
        """Read what the server says, for ever."""
        await anyio.sleep_forever()


@asynccontextmanager
async def connect(name: str) -> AsyncIterator[Session]:
    """Open a session with a server, and close it."""
    session = Session(name)
    async with anyio.create_task_group() as group:
        group.start_soon(session.listen)
        yield session
        group.cancel_scope.cancel()
    print(f"  {name}: closed")


class Client:
    """A client that keeps some sessions open, and can close each."""

    def __init__(self, scope: quiesce.Scope) -> None:
        """Own the sessions in `scope`."""
        self._scope = scope
        self.sessions: dict[str, Session] = {}

    async def open(self, name: str) -> None:
        """Open a session."""
        self.sessions[name] = await self._scope.enter(connect(name))
        print(f"  {name}: open")

    async def close(self, name: str) -> None:
        """Close a session."""
        await self._scope.exit(self.sessions.pop(name))

    async def aclose(self) -> None:
        """Close all sessions."""
        report = await self._scope.aclose()
        print(f"  nothing lost: {report.ok}")


async def main() -> None:
    """Open three sessions, close the first one first, and the others at the end."""
    client = Client(await quiesce.Scope.open("client"))
    for name in ("files", "mail", "web"):
        await client.open(name)
    async with anyio.create_task_group() as group:
        group.start_soon(client.close, "files")  # by another task than the one that opened it
    async with anyio.create_task_group() as group:
        group.start_soon(client.aclose)


if __name__ == "__main__":
    for backend in ("asyncio", "trio"):
        if find_spec(backend) is not None:
            print(f"{backend}:")
            anyio.run(main, backend=backend)
