"""The scope of one request: a scope like any other, most of which is made when it is first used.

Nearly every request starts nothing, and asks its scope for nothing. Such a scope is its name, its parent
and the table of its holds; the other attributes are filled in as soon as anybody reads one of them.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from quiesce.core.backends.tasks import TaskJob
from quiesce.core.gate import Gate
from quiesce.core.node import State, current
from quiesce.core.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import CodeType

    from quiesce.core.job import Job
    from quiesce.core.node import Node

__all__: list[str] = []

_OPEN, _CLOSED = State.OPEN, State.CLOSED
_SET_AT_ONCE = frozenset({"_adopter", "_code", "_holds", "_name", "_offset", "_since", "_state"})


class Model:
    """What the scopes of all requests have in common."""

    def __init__(self, requests: Scope, on_error: Callable[[Any, BaseException], object]) -> None:
        self.requests: Scope = requests
        self.loop: Any = requests._loop
        self.clock: Callable[[], float] = requests._backend.clock
        scope = Scope("request", adopt=True, on_error=on_error, leftovers="parent")
        slots = [slot for kind in Scope.__mro__ for slot in getattr(kind, "__slots__", ())]
        values: dict[str, Any] = {
            slot: getattr(scope, slot)
            for slot in slots
            if not slot.startswith("__") and hasattr(scope, slot) and slot not in _SET_AT_ONCE
        } | {
            "_backend": requests._backend,
            "_closing_gate": None,
            "_loop": requests._loop,
            "_parent": requests,
            "_service_pattern": requests._service_pattern,
            "_start": requests._start,
        }
        # Each scope has its own tables.
        self.tables: dict[str, type] = {
            slot: type(value) for slot, value in values.items() if type(value) in {dict, list}
        }
        self.values: dict[str, Any] = {
            slot: value for slot, value in values.items() if slot not in self.tables
        }


class PlainScope(Scope):
    """The scope of a request whose parent is being drained, of a service, or on trio."""

    __slots__ = ()

    async def closing(self) -> None:
        """Wait for the drain of the app: when the request ends, what it leaves goes on.

        *Cancel safety*: may be cancelled at any time; it has no effect.
        """
        requests = self._parent
        assert isinstance(requests, Scope)  # noqa: S101 - opened with one
        await requests.closing()


class RequestScope(PlainScope):
    """The scope of a request on asyncio; its parent, that of all requests, is open, and of this loop."""

    __slots__ = ("_filled", "_model")

    def __init__(self, model: Model, name: str, code: CodeType) -> None:
        """Open it."""
        self._model = model
        self._filled = False
        self._name = name
        self._state = _OPEN
        self._adopter = self
        self._since = model.clock()
        self._code = code
        self._offset = 0
        self._holds = {}
        model.requests._children[self] = None

    if not TYPE_CHECKING:  # or every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            """Fill in the rest: somebody reads what has not been set so far.

            All in one go, so that nothing is overwritten: nobody sets what he has not read.
            """
            if not self._filled:
                self._fill()
            return object.__getattribute__(self, name)

    def _fill(self) -> None:
        self._filled = True
        model = self._model
        for slot, value in model.values.items():
            setattr(self, slot, value)
        for slot, kind in model.tables.items():
            setattr(self, slot, kind())
        self._closing_gate = Gate(model.requests._backend)
        if self._state is not _OPEN:
            self._closing_gate.open()

    def begin(self, coro: Coroutine[Any, Any, None], seen: Callable[[Any], None]) -> Job[None]:
        """Start the request's own job, as `spawn()` does; its end is `seen`, or settled by itself."""
        model = self._model
        context = copy_context()
        context.run(current.set, self)
        job: TaskJob[None] = TaskJob(coro, loop=model.loop, name=self._name, context=context)
        job._node = self
        job._since = self._since
        job._code_started = self._code
        job._offset_started = 0
        job._key = None
        job.add_done_callback(seen)
        self._holds[job] = job
        requests = model.requests
        if not requests._holds:
            requests._turned_busy()
        requests._holds[self] = self
        return job

    def settle(self, job: Job[None]) -> bool:
        """Stop holding a job in its last step; False if it is not held here, as work, any more."""
        holds = self._holds
        if holds.pop(job, None) is None:
            return False
        requests = self._model.requests
        requests._completed += 1
        if not holds:
            if self._filled:
                self._turned_idle()
            else:
                requests._discard(self)
        return True

    def vanish(self) -> bool:
        """Close it in one step, if nobody has ever looked at it."""
        if self._filled or self._holds:
            return False
        self._state = _CLOSED
        requests = self._model.requests
        self._adopter = requests  # not itself any more: nothing is left for the collector
        requests._children.pop(self, None)
        requests._ring()
        return True

    def __del__(self) -> None:
        """Do nothing: it has a parent, which closes it at the latest."""


def dissolve(scope: Scope) -> bool:
    """Close a scope in one step if nothing is left, as with nearly every request; False if there is.

    A closing would come to the same, with a plan and two reports that nobody reads.
    """
    if isinstance(scope, RequestScope) and scope.vanish():
        return True
    left = (
        scope._holds or scope._services or scope._children or scope._quiet or scope._contexts
        or scope._closers or scope._resources or scope._failed or scope._unasked
        or scope._unheard or scope._undelivered
    )  # fmt: skip
    if left or scope._closing is not None:
        return False
    count_in(scope._parent, scope._completed, scope._withdrawn, scope._handled)
    scope._state = _CLOSED
    scope._adopter = scope._parent and scope._parent._adopter
    scope._closing_gate.open()
    scope._closed()
    scope._detach()
    return True


def count_in(node: Node | None, completed: int, withdrawn: int, handled: int) -> None:
    """Count what a scope has seen that is closed before its parent, so that the app's report has it."""
    if node is not None:
        node._completed += completed
        node._withdrawn += withdrawn
        node._handled += handled
