"""The error for calls to a server that is gone."""

from __future__ import annotations

from quiesce.errors import PeerLost, WithOutput

__all__ = ["ServerLost"]


class ServerLost(WithOutput, PeerLost):
    """The server is gone, so a call has no answer. The server may or may not have done the work.

    It carries the server's name, its exit code (None: it still runs, or is not a child process) and the
    last lines of its standard error.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str,
        returncode: int | None = None,
        lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, lines)
        self.server: str = server
        self.returncode: int | None = returncode


def why(error: BaseException) -> str:
    """Return the type and text of an error; for a group from a task group, those of the errors in it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(why(inner) for inner in error.exceptions))
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def unwrapped(error: Exception) -> Exception:
    """Return the only error in a group; the SDK's task groups wrap each error in one. Otherwise return `error`."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error
