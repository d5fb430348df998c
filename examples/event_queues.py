"""The event queues of an agent server, torn down in mid-flight: no deadlock, nothing forgotten.

Each request has a producer, which makes events, a queue, and a subscriber, which forwards them. The
usual teardown waits for the queue to be read, by a subscriber that is being torn down itself; or
it cancels and waits under the registry's lock, which every request needs to leave. Here a request
is a pipe, and the registry is a scope: no lock, and one way to close.
"""

import asyncio

import quiesce


class Registry:
    """The requests in flight."""

    def __init__(self, scope: quiesce.Scope) -> None:
        """Keep the requests in `scope`."""
        self._scope = scope
        self.forwarded: list[str] = []

    @classmethod
    async def open(cls) -> "Registry":
        """Make an empty registry."""
        return cls(await quiesce.Scope.open("requests"))

    def start(self, request: str, events: int) -> quiesce.Pipe[str, None]:
        """Handle a request; raise `ScopeClosed` if the teardown has begun."""

        async def produce(queue: quiesce.Channel[str]) -> None:
            for number in range(events):
                await queue.send(f"{request}: event {number}")
                await asyncio.sleep(0.01)

        return quiesce.pipe(produce, self._forward, maxsize=2, name=request, scope=self._scope)

    async def _forward(self, queue: quiesce.Channel[str]) -> None:
        async for event in queue:
            if event == "hung up: event 2":
                raise ConnectionError(queue.name)  # the client has hung up
            self.forwarded.append(event)

    async def close(self) -> quiesce.Report:
        """Drain the requests for a moment, and stop the rest."""
        return await self._scope.drain(grace=0.1)


async def main() -> None:
    """Start three requests; tear down while they run, one of them with its client gone."""
    registry = await Registry.open()
    registry.start("short", 2)
    registry.start("hung up", 50)
    registry.start("endless", 1_000_000)
    closing = asyncio.create_task(registry.close())
    await asyncio.sleep(0.001)
    try:
        registry.start("late", 1)
    except quiesce.ScopeClosed as error:
        print("refused:", error)
    report = await closing
    print("completed:", report.completed)
    print("failed:", [item.name for item in report.failed])
    print("cancelled:", sorted(item.name for item in report.cancelled))
    print("forwarded:", [event for event in registry.forwarded if not event.startswith("endless")])


if __name__ == "__main__":
    asyncio.run(main())
