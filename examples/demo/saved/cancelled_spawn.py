"""A harness starts a runner process for a conversation that is then deleted."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import quiesce


class Harness:
    """One runner process for every conversation."""

    def __init__(self, scope: quiesce.Scope) -> None:
        """Make a harness without runners."""
        self.scope = scope
        self.runners: dict[str, subprocess.Popen[bytes]] = {}
        self.started = asyncio.Event()
        self.bound = asyncio.Event()

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a runner process."""
        runner = subprocess.Popen(["sleep", "60"])
        print(f"harness: started a runner, pid {runner.pid}")
        self.started.set()
        return runner

    @asynccontextmanager
    async def runner(self) -> AsyncIterator[subprocess.Popen[bytes]]:
        """Run a runner process for as long as the context lasts."""
        with self.spawn() as runner:
            try:
                yield runner
            finally:
                runner.kill()

    async def open(self, conversation: str) -> None:
        """Start a runner, and register it once it has bound its socket."""
        runner = await self.scope.enter(self.runner())
        await self.bound.wait()  # takes from 1 to 30 seconds
        self.runners[conversation] = runner

    async def close(self) -> None:
        """End every runner."""
        await self.scope.aclose()


async def main() -> None:
    """Open a conversation, delete it while its runner starts, and shut down."""
    harness = Harness(await quiesce.Scope.open("runners"))
    opening = asyncio.create_task(harness.open("conversation-1"))
    await harness.started.wait()
    opening.cancel()
    await asyncio.wait([opening])
    await harness.close()
    print("harness: closed, every runner that it knows of has ended")


if __name__ == "__main__":
    asyncio.run(main())
