"""The hold: one thing in flight, in exactly one scope.

A job is a hold with a task behind it. This module has the plain hold, for things that are not
tasks (a request being handled, a webhook being retried, a thread), and `Held`: what a scope needs
from every kind of hold.
"""

from __future__ import annotations

from asyncio.events import _get_running_loop
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

from quiesce.core import callsites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType, TracebackType

    from quiesce.core.tree import TreeNode

__all__ = ["Hold"]

NOTHING: Mapping[str, object] = MappingProxyType({})

Fate = Literal["nothing", "stuck", "undelivered"]


class Resource(Protocol):
    """An object, such as a channel, that a scope notifies when it drains or closes."""

    def _drain(self) -> None:
        """Record that the scope begins to drain, in this step; drop items that can never be read."""

    def _forsaken(self) -> bool:
        """Return whether the resource waits for a reader or writer that has not come so far."""

    def _expects_services(self) -> bool:
        """Return whether the missing reader or writer might be a service."""

    def _users(self) -> Iterable[object]:
        """Return the tasks that wait for the resource: while it is forsaken they do nothing else."""

    def _shut(self) -> None:
        """Close the resource in this step, and hand undelivered items to the scope's report.

        The scope's own tasks that wait for it are being cancelled, so they need not be woken.
        """

    def _gone(self) -> None:
        """Record that the scope is closed, and wake tasks of other scopes that still wait."""

    def _move(self, node: TreeNode) -> None:
        """Move to another node of the tree."""


class Held(Protocol):
    """What a scope needs from everything that it holds."""

    _fate: ClassVar[Fate]  # how the report lists it if it outlives the deadline
    _stops: ClassVar[bool]  # whether it can be asked to end

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def where(self) -> str | None: ...
    @property
    def details(self) -> Mapping[str, object]: ...

    def _stop(self, *, force: bool = False) -> float | None:
        """Ask it to end; may do nothing. With `force`, ask even if it is cleaning up already.

        Return how many seconds the end takes, or None if it takes only some turns of the loop.
        """

    def _swallowed(self) -> bool:
        """Return whether it was asked to end and visibly goes on with its work."""

    def _chain(self) -> list[callsites.Frame]:
        """Return the frames that it is in, outermost first."""

    def _move(self, node: TreeNode) -> None:
        """Move to another node of the tree."""

    def _reclassify(self) -> None:
        """Make this a service, if the node's patterns declare it as one."""


class Described:
    """The description of a hold, from these attributes."""

    __slots__ = ()

    _kind: str
    _name: str
    _since: float
    _code: CodeType | None
    _offset: int

    @property
    def kind(self) -> str:
        """The kind of hold, in one word."""
        return self._kind

    @property
    def name(self) -> str:
        """The name of this hold."""
        return self._name

    @property
    def since(self) -> float:
        """When it started, on the event loop's clock."""
        return self._since

    @property
    def where(self) -> str | None:
        """The file and line that made it."""
        return callsites.describe(self._code, self._offset)


class Hold(Described):
    """One thing in flight that is not a task, until `release()`.

    `Scope.hold()` makes it. It is also a context manager, which releases the hold at the end of
    the block.

    ```python
    with scope.hold("request", "GET /", peer="10.0.0.7"):
        ...
    ```
    """

    __slots__ = ("_code", "_details", "_kind", "_name", "_node", "_offset", "_on_stop", "_since")

    _fate: ClassVar[Fate] = "undelivered"
    _stops: ClassVar[bool] = False

    def __init__(
        self,
        node: TreeNode,
        kind: str,
        name: str,
        details: Mapping[str, object],
        code: CodeType | None,
        offset: int,
        on_stop: Callable[[], object] | None = None,
    ) -> None:
        """Describe the hold. The caller inserts it into the scope in the same step."""
        self._node: TreeNode = node
        self._kind = kind
        self._name = name
        self._since: float = node._backend.clock()
        self._details = details
        self._code = code
        self._offset = offset
        self._on_stop = on_stop

    @property
    def details(self) -> Mapping[str, object]:
        """The details given to `Scope.hold()`; may be changed while it is in flight."""
        return self._details

    @property
    def released(self) -> bool:
        """Whether it was released."""
        return self not in self._node._holds

    def release(self) -> None:
        """End the hold. Idempotent, and safe to call from any thread.

        From another thread the release takes effect at the event loop's next turn.
        """
        node = self._node
        if _get_running_loop() is not node._loop and not node._backend.here():
            node._backend.post(self.release)  # by then another scope may hold it
            return
        holds = node._holds
        if self not in holds:
            node._discard(self)
            return
        del holds[self]
        if not holds:
            node._turned_idle()

    def __enter__(self) -> Self:
        """Return the hold itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release, however the block ended."""
        self.release()

    def __repr__(self) -> str:
        """Return the kind, the name and the state."""
        state = "released" if self.released else "in flight"
        return f"<Hold {self._kind} {self._name!r} {state}>"

    def _stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - for tasks
        if self._on_stop is not None:
            self._on_stop()

    def _swallowed(self) -> bool:
        return False

    def _chain(self) -> list[callsites.Frame]:
        return []

    def _move(self, node: TreeNode) -> None:
        self._node = node

    def _reclassify(self) -> None:
        """Do nothing: patterns declare only adopted tasks as services."""
