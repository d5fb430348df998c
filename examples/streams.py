"""Read an SDK's messages until you have enough: the SDK's process has stopped before the program goes on.

The generator has a task group open around its `yield`, and stops a process in its `finally`. Left
with a plain `break`, Python would close it in another task, some time later. Through a stream it is
closed by the task that runs it, and the scope waits for that.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import anyio

import quiesce

PROGRAM = "import os\nwhile line := os.read(0, 99): os.write(1, b'echo ' + line)"


async def messages() -> AsyncIterator[str]:
    """Talk to a process, and end it."""
    process = await anyio.open_process([sys.executable, "-c", PROGRAM])
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        return
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)  # it watches the process
        try:
            for number in range(100):
                await stdin.send(f"{number}\n".encode())
                yield (await stdout.receive()).decode().strip()
        finally:
            await stdin.aclose()
            print("the process has ended with", await process.wait())
            await process.aclose()
            group.cancel_scope.cancel()


async def main() -> None:
    """Leave one stream by `break`, and one by closing it."""
    async with quiesce.Scope("client") as scope:
        async for message in quiesce.stream(messages()):
            print(message)
            if message == "echo 1":
                break
        print("left; in flight:", [entry.kind for entry in scope.frontier()])
        await scope.idle()
        print("quiet")
        async with contextlib.aclosing(quiesce.stream(messages())) as stream:
            print(await anext(stream))
        print("closed")


if __name__ == "__main__":
    asyncio.run(main())
