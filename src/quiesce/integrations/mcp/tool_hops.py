"""The server's side of the mesh: a tool call that hands over an edge is handled as its hop.

mcp 2.x has middleware for every request, and methods of one's own. 1.x has neither: its server refuses
every method that it does not know before other code could see it. There, the handler of `tools/call` is
wrapped, and calls of the mesh are taken out of what the server reads. What holds:

1. Whatever a tool starts, and goes on after it, belongs to the hop. The node waits for it, not the
   connection: it may go on when that has ended.
2. Every answer to such a call says how its edge stands, as far as the SDK lets an answer say anything.
3. Calls of the mesh are not requests of the user's: no tool, listing or handler of the server sees them.
4. A tool is not given the edge: one that passes `_meta` on would hand it to a server that no verdict waits for.
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
    """Make a server part of a mesh: tool calls that hand over an edge are hops of the node.

    The node has to be open while the server runs. It is yours to open, and to close after the server.

    Args:
        server: `FastMCP` (1.x), `MCPServer` (2.x), or the low-level `Server` of either, before it runs.
        node: The server's part in the mesh.

    *Raises*: `ArgumentError` if it is none of these, or takes part already.
    """
    arguments.instance("node", node, Node)
    if getattr(server, _PARTS, None) is not None:
        message = f"{server!r} takes part already"
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
    """Handle a tool call as a hop; return its result, and what the answer has to say of the edge.

    *Raises*: what the handler does, and the SDK's own error for what is refused; an error of the
    SDK says how the edge stands.
    """
    part = _take_edge(node, header)
    part.name = f"{_TOOLS_CALL} {tool}"[:_NAME_MAX]
    part.place = _place_of(server, tool) or part.place
    hop, outer = part.hop, current_scope()
    if outer is not None and node.get_open_scope().parent is None:
        with suppress(ScopeClosed):
            hop.held_by(outer)  # or a drain of that would not see it
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
        if _is_failure(result):  # the SDK has made a result of what the tool has raised
            hop.work_failed(ToolFailed())
    except BaseException as error:  # noqa: BLE001 - raised again below
        failure = error
    left = part.leave(failure)
    try:
        if left is None or isinstance(left, Exception):
            await hop.turned()
    finally:
        told = _answer(node, hop)
    if isinstance(left, CascadeCancelled):
        text = str(left) if hop.is_cancelled else _CUT
        raise _error(_CANCELLED, text, told) from None
    if isinstance(left, versions.Error) and told is not None:
        left.error.data = links.with_answer(left.error.data, told)
    if left is not None:
        raise left
    return result, told


def _take_edge(node: Node, header: str) -> Part:
    """Take the edge.

    *Raises*: the SDK's own error, if it must not run.
    """
    try:
        return node.handle(header)
    except EdgeRefused as refused:
        raise _error(_REFUSED, str(refused), refused.header) from refused
    except RemoteProtocolError as error:
        # It would run outside of the cascade that it claims to be part of.
        raise _error(_INVALID, str(error), None) from error
    except QuiesceError as error:
        raise _error(_REFUSED, str(error), None) from error


def _answer(node: Node, hop: Any) -> str | None:
    """Return what the answer has to say; asked for also if no client is there to be answered."""
    try:
        return node.opened.answer(hop)
    except Exception:  # noqa: BLE001 - of the journal; the sender asks
        logger.exception("there is no answer for %s", hop.name)
        return None


class ToolFailed(Exception):  # noqa: N818 - its name is what others see
    """A tool has failed, in whatever way."""


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
    """Answer a call of the mesh.

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
    """Return a call without what the SDK has added to it."""
    return {name: value for name, value in (params or {}).items() if name != "_meta"}


def _offering(capabilities: Any) -> dict[str, Any]:
    """Return capabilities that say that the server takes part."""
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
    """Put the hop around whatever handles tool calls, once."""
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
    """What a server reads, without the calls of the mesh, which are answered here."""

    def __init__(self, inner: Any, write: Any, node: Node) -> None:
        self._inner = inner
        self._write = write
        self._node = node
        self._calls: set[Job[None]] = set()

    def stop(self) -> None:
        """End the calls: no client is there to be answered."""
        for call in list(self._calls):
            call.cancel()

    async def receive(self) -> Any:
        while self._take(item := await self._inner.receive()):
            pass
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _take(self, item: Any) -> bool:
        """Take a message if it is a call."""
        message = None if isinstance(item, Exception) else versions.body(item)
        if getattr(message, "method", None) not in links.PATHS:
            return False
        if isinstance(message, types.JSONRPCRequest):
            try:
                call = links.start_answer(self._node, message.method, self._answer, message)
            except QuiesceError:
                return False  # which the SDK refuses
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
        except Exception as error:  # noqa: BLE001 - of the journal, perhaps
            logger.exception("a call of the mesh failed")
            failure = types.ErrorData(code=_INTERNAL, message=type(error).__name__)
            answer = types.JSONRPCError(**common, error=failure)
        with suppress(*_GONE):
            await self._write.send(SessionMessage(types.JSONRPCMessage(answer)))
