"""A Starlette app whose event streams are sse-starlette's, as those of A2A servers; served by tests."""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quiesce.integrations.asgi import Quiesce
from quiesce.mesh import Node
from tests.adapters.asgi.app import note, stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Not where mypy looks, as all test subjects.
EventSourceResponse: Any = import_module("sse_starlette").EventSourceResponse
Starlette: Any = import_module("starlette.applications").Starlette
Route: Any = import_module("starlette.routing").Route


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    """Note the beginning and the end."""
    note("startup")
    yield
    note("shutdown")


async def short(_: object) -> Any:
    """Send one event."""

    async def events() -> AsyncIterator[str]:
        yield "only"

    return EventSourceResponse(events())


async def feed(_: object) -> Any:
    """Send an event, and another one when the test says so."""

    async def events() -> AsyncIterator[str]:
        yield "first"
        await stage("feed")
        yield "last"

    return EventSourceResponse(events())


streams = Starlette(routes=[Route("/short", short), Route("/feed", feed)], lifespan=lifespan)
app = Quiesce(streams, **json.loads(os.environ["ASGI_QUIESCE"]))
in_mesh = Node("sse", url="http://sse").asgi(streams, grace=1000)
