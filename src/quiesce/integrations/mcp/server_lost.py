"""A server that is gone, and what it has said last."""

from __future__ import annotations

from quiesce.errors import PeerLost, WithOutput

__all__ = ["ServerLost"]


class ServerLost(WithOutput, PeerLost):
    """The server is gone, and what was asked of it has no answer; whether it was done is unknown.

    It carries the server's name, its exit code (None: it runs still, or is not ours) and the last
    lines of its standard error.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str,
        returncode: int | None = None,
        lines: tuple[str, ...] = (),
    ) -> None:
        """Carry which server it was, and how it ended."""
        super().__init__(message, lines)
        self.server: str = server
        self.returncode: int | None = returncode


def why(error: BaseException) -> str:
    """Say what an error says; of a group, which task groups make, the errors in it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(why(inner) for inner in error.exceptions))
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def unwrapped(error: Exception) -> Exception:
    """Return the one error of a group: the SDK's task groups wrap what is raised in them."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    return error
