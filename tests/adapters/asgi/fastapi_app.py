"""A FastAPI app with all that runs after a handler has returned; served by a test of uvicorn's."""

from __future__ import annotations

import json
import os
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio.from_thread

from quiesce.integrations.asgi import Quiesce
from tests.adapters.asgi.app import note, stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    BackgroundTasks = Any  # not where mypy looks, as all test subjects
    Depends: Any
    FastAPI: Any
    StreamingResponse: Any
else:
    from fastapi import BackgroundTasks, Depends, FastAPI
    from fastapi.responses import StreamingResponse


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    """Note the beginning and the end."""
    note("startup")
    yield
    note("shutdown")


async def resource() -> AsyncIterator[str]:
    """Return what a request needs, and take it back."""
    yield "resource"
    note("resource given back")


needed = Depends(resource)
api = FastAPI(lifespan=lifespan)


async def dependency(given: str = needed) -> str:
    """Use a dependency for some time."""
    await stage("dependency")
    return given


async def tasks(later: BackgroundTasks, given: str = needed) -> str:
    """Schedule work for after the response, in the loop and in a thread."""
    later.add_task(stage, "task")
    later.add_task(note, "task in a thread done")
    return given


def thread() -> str:
    """Answer from a thread."""
    anyio.from_thread.run(stage, "thread")
    return "thread"


async def stream(_: str = needed) -> Any:
    """Stream with a generator, the dependency open all the while."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        await stage("stream")
        yield b"last"

    return StreamingResponse(parts())


def blocking() -> None:
    """Block a thread, which nothing can stop."""
    note("blocking began")
    threading.Event().wait(5)


for handler in (dependency, tasks, thread, stream, blocking):
    api.add_api_route(f"/{handler.__name__}", handler)
app = Quiesce(api, **json.loads(os.environ["ASGI_QUIESCE"]))
