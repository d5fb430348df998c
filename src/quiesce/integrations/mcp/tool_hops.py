"""The server's side of the mesh: a tool call that carries an edge is handled as a hop.

mcp 2.x has middleware for every request, and allows additional methods. 1.x has neither: its server
refuses unknown methods before other code sees them. So with 1.x, the handler of `tools/call` is wrapped,
and mesh calls are taken out of the stream that the server reads. Rules:

1. Everything that a tool starts belongs to the hop. The node waits for it, also after the tool has
   returned and the connection has ended.
2. Every answer to such a call has the state of its edge, as far as the SDK lets an answer carry it.
3. Mesh calls are not requests of the user: no tool, listing or handler of the server sees them.
4. A tool does not see the edge. If it did and passed `_meta` on, it would hand the edge to another server.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp import types
from mcp.shared.message import SessionMessage

from quiesce.core import arguments
from quiesce.core.callsites import Callsite
from quiesce.core.current import current_scope
from quiesce.core.handler_naming import app_code
from quiesce.core.tree import logger
from quiesce.errors import (
    ArgumentError,
    CascadeCancelled,
    EdgeRefused,
    PeerLost,
    QuiesceError,
    RemoteProtocolError,
    ScopeClosed,
)
from quiesce.integrations.mcp import versions
from quiesce.integrations.mcp.stdio_wire import ReadStream
from quiesce.integrations.sdk import unknown
from quiesce.mesh.runtime.hop_parts import claimed
from quiesce.mesh.runtime.node import Node
from quiesce.mesh.transport import links

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quiesce.core.job import Job
    from quiesce.mesh.runtime.hop_parts import Part

__all__ = ["take_part"]

_TOOLS_CALL = "tools/call"
_GREETINGS = frozenset(("initialize", "server/discover"))
_OFFER: dict[str, Any] = {"version": 0}
_INVALID, _INTERNAL, _REFUSED, _CANCELLED = -32602, -32603, -32001, -32800
_PARTS = "_quiesce_node"
_NAME_MAX = 200
_CUT = "the server was shut down in the middle of this call, which may have had effects"
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)


def take_part(server: Any, node: Node) -> None:
    """Make a server part of a mesh: tool calls that carry an edge become hops of the node.

    Open the node before the server runs, and close it after the server.

    Args:
        server: `FastMCP` (1.x), `MCPServer` (2.x), or the low-level `Server` of either, before it runs.
        node: The server's node.

    *Raises*: `ArgumentError` if `server` is not one of these, or already takes part in a mesh.
    """
    arguments.instance("node", node, Node)
    if getattr(server, _PARTS, None) is not None:
        message = f"{server!r} already takes part in a mesh: call take_part() once"
        raise ArgumentError(message)
    if versions.SECOND:
        middleware = getattr(server, "middleware", None)
        if not isinstance(middleware, list):
            raise ArgumentError(_not_a_server(server))
        middleware.append(partial(_handle_second, node, server))
    else:
        _wrap_first(server, node)
    setattr(server, _PARTS, node)


def _not_a_server(server: object) -> str:
    return f"server must be FastMCP, MCPServer or the low-level Server of mcp, not {server!r}"


async def _run_hop(
    node: Node, server: Any, header: str, tool: Any, handle: Callable[[], Awaitable[Any]]
) -> tuple[Any, str | None]:
    """Handle a tool call as a hop; return its result, and the state of the edge for the answer.

    *Raises*: the error of the handler; the SDK's own error for a refused call. An error of the SDK
    carries the state of the edge.
    """
    part = await _take_edge(node, header)
    part.name = f"{_TOOLS_CALL} {tool}"[:_NAME_MAX]
    part.place = _place_of(server, tool) or part.place
    hop, outer = part.hop, current_scope()
    if outer is not None and node.get_open_scope().parent is None:
        with suppress(ScopeClosed):
            hop.held_by(outer)  # otherwise a drain of the outer scope would not see the hop
    with node.opened.exchange.links.handlers.handling(hop):
        return await _run_part(node, part, handle)


def _place_of(server: Any, tool: Any) -> Callsite | None:
    """Return the place of a tool's function; None for a low-level server, which has one handler for all tools."""
    code = None
    with suppress(AttributeError):
        code = app_code(server._tool_manager.get_tool(tool).fn)  # noqa: SLF001 - no public way gives the function
    return None if code is None else Callsite(code, 0)


async def _run_part(
    node: Node, part: Part, handle: Callable[[], Awaitable[Any]]
) -> tuple[Any, str | None]:
    hop = part.hop
    part.enter()
    result, failure = None, None
    try:
        result = await handle()
        if _is_failure(result):  # the SDK has turned the tool's exception into a result
            hop.work_failed(ToolFailed())
    except BaseException as error:  # noqa: BLE001 - raised again below
        failure = error
    left = part.leave(failure)
    try:
        if left is None or isinstance(left, Exception):
            await hop.turned()
    finally:
        told = _answer(node, hop)
    if told is not None and (left is None or isinstance(left, Exception)):
        told = await node.opened.written_answer(hop, told)
    if isinstance(left, CascadeCancelled):
        text = str(left) if hop.is_cancelled else _CUT
        raise _error(_CANCELLED, text, told) from None
    if isinstance(left, versions.Error) and told is not None:
        left.error.data = links.with_answer(left.error.data, told)
    if left is not None:
        raise left
    return result, told


async def _take_edge(node: Node, header: str) -> Part:
    """Accept the edge.

    *Raises*: the SDK's own error if the edge must not run.
    """
    try:
        return await claimed(node.handle(header))
    except EdgeRefused as refused:
        raise _error(_REFUSED, str(refused), refused.header) from refused
    except RemoteProtocolError as error:
        # The call would otherwise run outside the cascade that it names.
        raise _error(_INVALID, str(error), None) from error
    except QuiesceError as error:
        raise _error(_REFUSED, str(error), None) from error


def _answer(node: Node, hop: Any) -> str | None:
    """Return the state of the edge for the answer. Called even if the client is gone; None if the journal fails."""
    try:
        return node.opened.answer(hop)
    except Exception:  # noqa: BLE001 - the journal may fail; the sender will ask
        logger.exception("the answer for %s could not be made; its sender will ask again", hop.name)
        return None


class ToolFailed(Exception):  # noqa: N818 - receipts show its name
    """A tool has failed: it raised an exception, or returned an error as its result."""


def _is_failure(result: Any) -> bool:
    found = result.get("isError") if isinstance(result, dict) else None
    return bool(found or getattr(getattr(result, "root", None), "isError", False))


def _error(code: int, text: str, told: str | None) -> Exception:
    data = None if told is None else links.with_answer(None, told)
    if versions.SECOND:
        made: Exception = versions.Error(code, text, data)
    else:
        made = versions.Error(types.ErrorData(code=code, message=text, data=data))
    return made


async def _serve(node: Node, method: str, params: Any) -> Any:
    """Answer a mesh call.

    *Raises*: the SDK's own error.
    """
    try:
        return await links.serve_link(node, method, params)
    except RemoteProtocolError as error:
        raise _error(_INVALID, str(error), None) from error
    except PeerLost as error:
        raise _error(_INTERNAL, str(error), None) from error


# mcp 2.x.


async def _handle_second(node: Node, server: Any, ctx: Any, call_next: Any) -> Any:
    """Handle a request before the SDK does; see the SDK's `ServerMiddleware`."""
    if ctx.request_id is None:
        return await call_next(ctx)
    if ctx.method in links.PATHS:
        params = without_envelope(ctx.params)
        return {**await _serve(node, ctx.method, params), "resultType": "complete"}
    header = links.handed(ctx.params) if ctx.method == _TOOLS_CALL else None
    if header is None:
        result = await call_next(ctx)
        if ctx.method in _GREETINGS and isinstance(result, dict):
            result = {**result, "capabilities": _offering(result.get("capabilities"))}
        return result
    found = ctx.meta or {}
    meta = {key: value for key, value in found.items() if key != links.REQUEST_KEY}
    passed = replace(ctx, params=links.without_meta(ctx.params, links.REQUEST_KEY), meta=meta)
    tool = ctx.params.get("name")
    result, told = await _run_hop(node, server, header, tool, lambda: call_next(passed))
    if told is not None and isinstance(result, dict):
        result = links.with_meta(result, links.RESPONSE_KEY, told)
    return result


def without_envelope(params: Any) -> Any:
    """Return the parameters of a call without the `_meta` that the SDK has added."""
    return {name: value for name, value in (params or {}).items() if name != "_meta"}


def _offering(capabilities: Any) -> dict[str, Any]:
    """Return capabilities with the note that the server takes part in the mesh."""
    found = dict(capabilities or {})
    found["experimental"] = {**(found.get("experimental") or {}), links.REQUEST_KEY: _OFFER}
    return found


# mcp 1.x.


def _wrap_first(server: Any, node: Node) -> None:
    if hasattr(server, "request_handlers"):
        low = server
    elif type(server).__name__ == "FastMCP":
        low = getattr(server, "_mcp_server", None)
        if low is None:
            unknown("mcp", "`_mcp_server` by which a FastMCP serves")
    else:
        raise ArgumentError(_not_a_server(server))
    run = low.run

    async def run_in_mesh(read: Any, write: Any, options: Any, *args: Any, **more: Any) -> Any:
        _wrap_handler(low, node, server)
        capabilities = options.capabilities
        offered = {**(capabilities.experimental or {}), links.REQUEST_KEY: _OFFER}
        capabilities = capabilities.model_copy(update={"experimental": offered})
        options = options.model_copy(update={"capabilities": capabilities})
        sifted = _Sifted(read, write, node)
        try:
            return await run(sifted, write, options, *args, **more)
        finally:
            sifted.stop()

    low.run = run_in_mesh


def _wrap_handler(low: Any, node: Node, server: Any) -> None:
    """Wrap the handler of tool calls, once."""
    handler = low.request_handlers.get(types.CallToolRequest)
    if handler is None or getattr(handler, _PARTS, None) is node:
        return

    async def handle(request: Any) -> Any:
        meta = request.params.meta
        extra = {} if meta is None else meta.model_extra or {}
        header = links.handed({"_meta": extra})
        if header is None:
            return await handler(request)
        del extra[links.REQUEST_KEY]
        tool = request.params.name
        result, told = await _run_hop(node, server, header, tool, lambda: handler(request))
        if told is not None:
            result.root.meta = {**(result.root.meta or {}), links.RESPONSE_KEY: told}
        return result

    setattr(handle, _PARTS, node)
    low.request_handlers[types.CallToolRequest] = handle


class _Sifted(ReadStream):
    """The stream that a server reads, without mesh calls, which are answered here."""

    def __init__(self, inner: Any, write: Any, node: Node) -> None:
        self._inner = inner
        self._write = write
        self._node = node
        self._calls: set[Job[None]] = set()

    def stop(self) -> None:
        """Cancel the answers: the client is gone."""
        for call in list(self._calls):
            call.cancel()

    async def receive(self) -> Any:
        while self._take(item := await self._inner.receive()):
            pass
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _take(self, item: Any) -> bool:
        """Return whether a message is a mesh call; if so, start to answer it."""
        message = None if isinstance(item, Exception) else versions.body(item)
        if getattr(message, "method", None) not in links.PATHS:
            return False
        if isinstance(message, types.JSONRPCRequest):
            try:
                call = links.start_answer(self._node, message.method, self._answer, message)
            except QuiesceError:
                return False  # the SDK refuses the call
            self._calls.add(call)
            call.call_when_done(lambda: self._calls.discard(call))
        return True

    async def _answer(self, message: Any) -> None:
        common = {"jsonrpc": "2.0", "id": message.id}
        try:
            result = await _serve(self._node, message.method, without_envelope(message.params))
            answer: Any = types.JSONRPCResponse(**common, result=result)
        except versions.Error as error:
            answer = types.JSONRPCError(**common, error=error.error)
        except Exception as error:  # noqa: BLE001 - the journal may fail
            logger.exception("a mesh call failed")
            failure = types.ErrorData(code=_INTERNAL, message=type(error).__name__)
            answer = types.JSONRPCError(**common, error=failure)
        with suppress(*_GONE):
            await self._write.send(SessionMessage(types.JSONRPCMessage(answer)))
