"""Wraps the HTTP clients of other libraries while a node is open or instrumented."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from quiesce.mesh.clients import aiohttp_client, httpx_client, stdlib_client
from quiesce.mesh.clients.client_hooks import Hooks
from quiesce.mesh.clients.raw_sockets import SocketHooks
from quiesce.mesh.clients.sending import instrumented

if TYPE_CHECKING:
    from types import TracebackType

    from quiesce.mesh.runtime.node import Node

__all__ = ["Instrumentation"]

_lock = threading.RLock()  # nodes of several threads, each with an event loop
_nodes: WeakSet[Node] = WeakSet()
"""The open nodes."""
_sockets = SocketHooks(_nodes)
_hooks = Hooks(
    {
        "aiohttp": aiohttp_client.wrap_aiohttp,
        "http.client": stdlib_client.wrap_http_client,
        "httpcore": httpx_client.wrap_httpcore,
        "httpcore2": httpx_client.wrap_httpcore,
        "socket": _sockets.wrap,
        "uvloop": _sockets.wrap_uvloop,
    }
)


def node_opened(node: Node) -> None:
    """Start recording the requests that plain clients send in hops of this node."""
    with _lock:
        _nodes.add(node)
        _fit()


def node_closed(node: Node) -> None:
    """Stop recording requests for this node. The last node that closes restores every library."""
    with _lock:
        _nodes.discard(node)
        _fit()


def _fit() -> None:
    _hooks.fit(is_wanted=bool(_nodes) or bool(instrumented))


class Instrumentation:
    """A handle that `Node.instrument()` returns. `undo()`, or the end of a `with` block, ends the instrumentation.

    ```python
    node = Node("planner", url="https://planner.example", peers=["https://billing.example"])
    node.instrument()
    ```

    From then on, requests of httpx, httpx2, aiohttp, requests, urllib3 and urllib can be messages. A request inside a
    hop of the node is a message of that hop if it goes to one of the node's `peers`, to the node itself, or to a server
    that has answered with a receipt before. Requests to other servers stay unchanged. Libraries that are imported later
    are instrumented as well. A request in a thread is a message if the thread runs in the hop's context, which
    `asyncio.to_thread` copies.
    """

    def __init__(self, node: Node) -> None:
        self._node: Node | None = node
        with _lock:
            instrumented[node] = instrumented.get(node, 0) + 1
            _fit()

    def undo(self) -> None:
        """Stop. Requests under way keep their edges. Idempotent, and safe to call from any thread."""
        with _lock:
            node, self._node = self._node, None
            if node is None:
                return
            instrumented[node] -= 1
            if not instrumented[node]:
                del instrumented[node]
            _fit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()
