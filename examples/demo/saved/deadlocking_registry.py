"""A server shuts down while two agents work and one more request is on its way in."""

import asyncio

import quiesce


async def work(name: str) -> None:
    """Work until told to stop."""
    print(f"{name}: at work")
    await asyncio.Event().wait()


class Registry:
    """The agents at work, by name."""

    def __init__(self, scope: quiesce.Scope) -> None:
        """Make an empty registry."""
        self.scope = scope

    async def start(self, name: str) -> None:
        """Put an agent to work."""
        self.scope.spawn(work, name, key=name)

    async def close(self) -> None:
        """Stop every agent."""
        await self.scope.aclose()


async def main() -> None:
    """Start two agents, shut down, and say what happened."""
    registry = Registry(await quiesce.Scope.open("agents"))
    await registry.start("agent-1")
    await registry.start("agent-2")
    await asyncio.sleep(0)
    closing = asyncio.create_task(registry.close())
    late = asyncio.create_task(registry.start("agent-3"))
    _, hung = await asyncio.wait([closing], timeout=0.5)
    print("server: the shutdown", "hung for 0.5 s, giving up" if hung else "is complete")
    closing.cancel()
    await asyncio.wait([closing, late])
    print("server: the late request was", "refused" if late.exception() else "accepted")
    await asyncio.sleep(0)
    print("server: exits, agents still at work:", len(asyncio.all_tasks()) - 1)


if __name__ == "__main__":
    asyncio.run(main())
