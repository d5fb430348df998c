"""An app inside of `node.asgi()` alone, without a `Quiesce`; served by a case of every server."""

from __future__ import annotations

import json
import os
from typing import Any

from quiesce.mesh import Memory, Node, current_hop
from tests.adapters.asgi_app import bare, stage

node = Node("hotel", url="http://hotel", transport=Memory())
cascades: list[Any] = []


async def works(scope: Any, receive: Any, send: Any) -> None:
    """Leave work behind in a hop of the node's own cascade; else be the usual app."""
    if scope.get("path") == "/hop":
        async with node.cascade("one") as cascade:
            hop = current_hop()
            assert hop is not None
            hop.spawn(stage, "hop")
        cascades.append(cascade)
        scope = {**scope, "path": "/pid"}
    await bare(scope, receive, send)


app = node.asgi(works, **json.loads(os.environ["ASGI_QUIESCE"]))
