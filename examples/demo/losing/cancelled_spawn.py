"""A harness starts a runner process for a conversation that is then deleted."""

import asyncio
import subprocess


class Harness:
    """One runner process for every conversation."""

    def __init__(self) -> None:
        """Make a harness without runners."""
        self.runners: dict[str, subprocess.Popen[bytes]] = {}
        self.started = asyncio.Event()
        self.bound = asyncio.Event()

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a runner process."""
        runner = subprocess.Popen(["sleep", "60"])
        print(f"harness: started a runner, pid {runner.pid}")
        self.started.set()
        return runner

    async def open(self, conversation: str) -> None:
        """Start a runner, and register it once it has bound its socket."""
        runner = self.spawn()
        await self.bound.wait()  # takes from 1 to 30 seconds
        self.runners[conversation] = runner

    async def close(self) -> None:
        """End every runner."""
        for runner in self.runners.values():
            runner.kill()
            runner.wait()


async def main() -> None:
    """Open a conversation, delete it while its runner starts, and shut down."""
    harness = Harness()
    opening = asyncio.create_task(harness.open("conversation-1"))
    await harness.started.wait()
    opening.cancel()
    await asyncio.wait([opening])
    await harness.close()
    print("harness: closed, every runner that it knows of has ended")


if __name__ == "__main__":
    asyncio.run(main())
