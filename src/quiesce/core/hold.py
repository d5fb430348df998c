"""The hold: one thing in flight, in exactly one scope.

A job is a hold with a task behind it. This module has the plain hold, for things that are not
tasks (a request being handled, a webhook being retried, a thread), and `Held`: what a scope needs
from every kind of hold.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

from quiesce.core import callsites
from quiesce.core.python_private import running_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from types import CodeType, TracebackType

    from quiesce.core.tree import TreeNode

__all__ = ["Hold"]

NOTHING: Mapping[str, object] = MappingProxyType({})

Fate = Literal["nothing", "stuck", "undelivered"]


class Resource(Protocol):
    """An object, such as a channel, that a scope notifies when it drains or closes."""

    def note_drain(self) -> None:
        """Record that the scope begins to drain, in this step; drop items that can never be read."""

    def is_forsaken(self) -> bool:
        """Return whether the resource waits for a reader or writer, and no task is one now."""

    def expects_services(self) -> bool:
        """Return whether the missing reader or writer might be a service."""

    def list_users(self) -> Iterable[object]:
        """Return the tasks that wait for the resource."""

    def handled_by(self, tasks: Collection[object]) -> bool:
        """Return whether one of these tasks handles an item that the scope waits for."""

    def shut_down(self) -> None:
        """Close the resource in this step, and hand undelivered items to the scope's report.

        The scope's own tasks that wait for it are being cancelled, so they need not be woken.
        """

    def note_scope_closed(self) -> None:
        """Record that the scope is closed, and wake tasks of other scopes that still wait."""

    def move_to(self, node: TreeNode) -> None:
        """Move to another node of the tree."""


class EmptyHanded:
    """A base of resources whose items no longer count as work when a task has received them."""

    __slots__ = ()

    def handled_by(self, tasks: Collection[object]) -> bool:  # noqa: ARG002 - see Resource
        return False


class Held(Protocol):
    """The interface of everything that a scope holds: tasks, threads, plain holds and child scopes."""

    fate: ClassVar[Fate]  # how the report lists the hold if it outlives the deadline
    can_be_stopped: ClassVar[bool]  # whether the scope can ask it to end

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

    def request_stop(self, *, force: bool = False) -> float | None:
        """Ask the work behind the hold to end; may do nothing. With `force`, interrupt its cleanup, too.

        Return how many seconds the end takes, or None if it takes only some turns of the loop.
        """

    def goes_on_regardless(self) -> bool:
        """Return whether the work was asked to end but visibly goes on."""

    def list_frames(self) -> list[callsites.Frame]:
        """Return the frames that the work is in, outermost first."""

    def move_to(self, node: TreeNode) -> None:
        """Move to another node of the tree."""

    def reclassify(self) -> None:
        """Make this hold a service if the node's patterns declare it as one."""


class Described:
    """The description of a hold, computed from the attributes below."""

    __slots__ = ()

    _kind: str
    name_given: str
    began_at: float
    place_code: CodeType | None
    place_offset: int

    @property
    def kind(self) -> str:
        """The kind of hold, in one word."""
        return self._kind

    @property
    def name(self) -> str:
        """The name of this hold."""
        return self.name_given

    @property
    def since(self) -> float:
        """When the hold began, on the event loop's clock."""
        return self.began_at

    @property
    def where(self) -> str | None:
        """The file and line that made the hold."""
        return callsites.describe(self.place_code, self.place_offset)


class Hold(Described):
    """One thing in flight that is not a task, until `release()`.

    `Scope.hold()` makes a hold. As a context manager, it is released at the end of the block.

    ```python
    with scope.hold("request", "GET /", peer="10.0.0.7"):
        ...
    ```
    """

    __slots__ = (
        "_details",
        "_kind",
        "began_at",
        "name_given",
        "owner_node",
        "place_code",
        "place_offset",
        "stop_call",
    )

    fate: ClassVar[Fate] = "undelivered"
    can_be_stopped: ClassVar[bool] = False

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
        self.owner_node: TreeNode = node
        self._kind = kind
        self.name_given: str = name
        self.began_at: float = node.backend.clock()
        self._details = details
        self.place_code: CodeType | None = code
        self.place_offset: int = offset
        self.stop_call: Callable[[], object] | None = on_stop

    @property
    def details(self) -> Mapping[str, object]:
        """The details given to `Scope.hold()`; the caller may change them while the hold is in flight."""
        return self._details

    @property
    def released(self) -> bool:
        """Whether the hold was released."""
        return self not in self.owner_node.holds

    def release(self) -> None:
        """End the hold. Idempotent, and safe to call from any thread.

        From another thread the release takes effect at the event loop's next turn.
        """
        node = self.owner_node
        if running_loop() is not node.loop and not node.backend.here():
            node.backend.post(self.release)  # looks up the owner again: it may change before that
            return
        holds = node.holds
        if self not in holds:
            node.discard_hold(self)
            return
        del holds[self]
        if not holds:
            node.note_idle()

    def __enter__(self) -> Self:
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
        state = "released" if self.released else "in flight"
        return f"<Hold {self._kind} {self.name_given!r} {state}>"

    def request_stop(self, *, force: bool = False) -> None:  # noqa: ARG002 - only tasks use it
        if self.stop_call is not None:
            self.stop_call()

    def goes_on_regardless(self) -> bool:
        return False

    def list_frames(self) -> list[callsites.Frame]:
        return []

    def move_to(self, node: TreeNode) -> None:
        self.owner_node = node

    def reclassify(self) -> None:
        """Do nothing: patterns declare only adopted tasks as services."""
