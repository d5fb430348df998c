"""The differences between mcp 1.x and 2.x. No private name of either is used."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from quiesce.errors import ArgumentError
from quiesce.integrations import sdk

VERSION = sdk.require("mcp", extra="mcp", oldest="1.30.0")

import anyio  # noqa: E402 - the version first: its error says what to install
import mcp  # noqa: E402 - the same
from mcp import types  # noqa: E402 - the same
from mcp.client.stdio import get_default_environment  # noqa: E402 - the same
from mcp.client.streamable_http import streamable_http_client  # noqa: E402 - the same
from mcp.shared.message import SessionMessage  # noqa: E402 - the same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["VERSION", "get_default_environment", "streamable_http_client"]

SECOND = VERSION >= (2,)
CANCELLED = "notifications/cancelled"
_TIMED_OUT = {408, -32001}  # 1.x uses the HTTP status; 2.x has a code of its own
_ENDED = {"Connection closed", "Session terminated"}  # the SDK's own words, in both versions
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)

ClientSession: Any = mcp.ClientSession
StdioServerParameters: Any = mcp.StdioServerParameters
Error: Any = mcp.MCPError if SECOND else mcp.McpError


def _reader() -> Callable[[bytes | str], Any]:
    if SECOND:
        validate: Any = types.jsonrpc_message_adapter.validate_json
        return lambda line: validate(line, by_name=False)
    parse: Callable[[bytes | str], Any] = types.JSONRPCMessage.model_validate_json
    return parse


_read = _reader()


def parsed_message(line: bytes | str) -> Any:
    """Return the message of a line, as the session reads it, or the error of an invalid line."""
    try:
        return SessionMessage(_read(line))
    except ValueError as error:
        return error


def written(item: Any) -> str:
    """Return the line of a message, without the line end."""
    text: str = item.message.model_dump_json(
        by_alias=True, **({"exclude_unset": True} if SECOND else {"exclude_none": True})
    )
    return text


def body(item: Any) -> Any:
    """Return the content of a message; 1.x wraps it."""
    return getattr(item.message, "root", item.message)


def cancellation(request: Any, reason: str) -> Any:
    """Return the message that tells a server that no caller waits for an answer."""
    notice = types.JSONRPCNotification(
        jsonrpc="2.0", method=CANCELLED, params={"requestId": request, "reason": reason}
    )
    return SessionMessage(notice if SECOND else types.JSONRPCMessage(notice))


def error_code_of(error: BaseException) -> int | None:
    """Return the code of the SDK's error for an error answer or a missing answer; None for other errors."""
    return error.error.code if isinstance(error, Error) else None


def says_timeout(error: BaseException) -> bool:
    """Return whether an error means that the SDK has stopped waiting for an answer."""
    return error_code_of(error) in _TIMED_OUT


def says_gone(error: BaseException) -> bool:
    """Return whether an error means that the connection, or the server's session, has ended.

    The codes alone do not show this, because servers use them, too.
    """
    if isinstance(error, _GONE):
        return True
    return error_code_of(error) is not None and str(error) in _ENDED


def check_session_options(options: Mapping[str, Any]) -> None:
    """Refuse options that the SDK's session does not have, before anything is started.

    *Raises*: `ArgumentError`.
    """
    known = set(inspect.signature(ClientSession.__init__).parameters)
    known -= {"self", "read_stream", "write_stream", "dispatcher"}
    for name in options:
        if name not in known:
            message = (
                f"{name!r} is not an option of this function, nor of mcp's ClientSession, which has:"
                f" {', '.join(sorted(known))}"
            )
            raise ArgumentError(message)
