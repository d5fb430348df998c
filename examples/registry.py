"""A registry of agents that can be shut down: no lock, no deadlock, nothing started too late.

The usual registry is a dict with a lock. Its shutdown cancels the agents and waits for them under
the lock, which each of them needs to leave the dict; and a request that comes meanwhile starts an
agent behind its back. Here the scope is the registry.
"""

import asyncio

import quiesce


class Registry:
    """The agents at work, by name."""

    def __init__(self, scope: quiesce.Scope) -> None:
        """Keep the agents in `scope`."""
        self._scope = scope

    @classmethod
    async def open(cls) -> "Registry":
        """Make an empty registry."""
        return cls(await quiesce.Scope.open("agents"))

    def start(self, name: str) -> None:
        """Start an agent."""
        self._scope.spawn(self._work, name, name=name, key=name)

    def stop(self, name: str) -> bool:
        """Stop one agent; return False if it is not at work."""
        return self._scope.cancel(name)

    def names(self) -> list[str]:
        """Return the names of the agents at work."""
        return [entry.name for entry in self._scope.frontier()]

    async def close(self) -> quiesce.Report:
        """Stop all agents."""
        return await self._scope.aclose(cleanup=5)

    async def _work(self, name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            print(f"{name}: leaving, and asks who is left: {self.names()}")


async def main() -> None:
    """Start three agents, stop one, and shut down; try to start one more meanwhile."""
    registry = await Registry.open()
    for name in ("ada", "bob", "cyd"):
        registry.start(name)
    await asyncio.sleep(0)
    try:
        registry.start("ada")
    except quiesce.DuplicateKey as error:
        print("refused:", error)
    print("stopped:", registry.stop("bob"), registry.stop("nobody"))
    await asyncio.sleep(0.01)

    closing = asyncio.create_task(registry.close())
    await asyncio.sleep(0)
    try:
        registry.start("eve")
    except quiesce.ScopeClosed as error:
        print("refused:", error)
    report = await closing
    print(f"withdrawn: {report.withdrawn}, cancelled: {[item.name for item in report.cancelled]}")


if __name__ == "__main__":
    asyncio.run(main())
