"""A harness starts a runner process for a conversation that is then deleted."""

import asyncio
import sys

import quiesce


class Harness:
    """One runner process for every conversation."""

    def __init__(self, scope: quiesce.Scope) -> None:
        """Make a harness without runners."""
        self.scope = scope
        self.runners: dict[str, quiesce.Process] = {}
        self.started = asyncio.Event()
        self.bound = asyncio.Event()

    async def has_bound(self, runner: quiesce.Process) -> None:
        """Wait until a runner has bound its socket."""
        print(f"harness: started a runner, pid {runner.pid}")
        self.started.set()
        await self.bound.wait()  # takes from 1 to 30 seconds

    async def open(self, conversation: str) -> None:
        """Start a runner, and register it once it has bound its socket."""
        self.runners[conversation] = await quiesce.start_process(
            ["sleep", "60"],
            scope=self.scope,
            ready=self.has_bound,
            ready_within=30,
            stdin=sys.stdin.fileno(),  # like any child's: the demo sees by it who is left
        )

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
