"""An agent whose handlers use the libraries of uses.py: `python -m tests.integration.unmodified.library_agent CONFIG`.

`POST /use/NAME` uses a library for the first time, and leaves a task behind that uses it again when it is let. CONFIG
is JSON: where the servers are, and `folder`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any

import socketio
from fastapi import BackgroundTasks, Depends, FastAPI
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, Response

from quiesce.mesh import Node
from tests.integration.unmodified.letting import listen, serve, work
from tests.integration.unmodified.uses import USES, kept

_at: dict[str, str] = json.loads(sys.argv[1])
_tasks: set[asyncio.Task[None]] = set()
app = FastAPI()


async def again(name: str) -> None:
    """Use a library again, when it is let."""
    await work(f"{name}, before")
    await USES[name](_at)
    await work(name)


@app.post("/use/{name}")  # type: ignore[untyped-decorator]  # FastAPI is not where mypy looks
async def use(name: str) -> str:
    """Use a library, and leave work behind that uses it again."""
    await USES[name](_at)
    task = asyncio.create_task(again(name))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return "ok"


@app.post("/background")  # type: ignore[untyped-decorator]  # as above
async def background(tasks: BackgroundTasks) -> str:
    """Leave the work to FastAPI."""
    tasks.add_task(work, "background")
    return "ok"


@app.post("/starlette_background")  # type: ignore[untyped-decorator]  # as above
async def starlette_background() -> Response:
    """Leave the work to Starlette."""
    return JSONResponse("ok", background=BackgroundTask(work, "starlette_background"))


async def connection() -> Any:
    """Clean up after the answer."""
    yield "connection"
    await work("dependency")


@app.post("/dependency")  # type: ignore[untyped-decorator]  # as above
async def dependency(_: Annotated[str, Depends(connection)]) -> str:
    """Answer, with something to clean up afterwards."""
    return "ok"


def main() -> None:
    """Serve until it is told to end."""
    listener, url = listen()
    node = Node("agent", url=url, store=f"{_at['folder']}/agent.journal")
    kept["sio"] = socketio.AsyncServer(async_mode="asgi")
    serve(node, socketio.ASGIApp(kept["sio"], app), listener)


if __name__ == "__main__":
    main()
