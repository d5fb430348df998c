"""What a hop holds of work that runs elsewhere: in a thread, in a process, on a timer, in a queue.

Other threads may ask for it: the hop's tables are changed in its event loop, in the order of the calls. A thread
that works for a hop is held by it until its last call, so what it starts is held before it lets go.
"""

from __future__ import annotations

import sys
import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core import callsites, libraries
from quiesce.core.current import is_detached
from quiesce.core.hold import Fate, Hold
from quiesce.core.tree import ScopeState, current

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import CodeType, FrameType

    from quiesce.core.tree import TreeNode
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_CLOSED = ScopeState.CLOSED


class HandedCall(threading.local):
    """For each thread, the hold of the call that a hop has handed to it; None if the thread runs no such call."""

    hold: Hold | None = None


handed: HandedCall = HandedCall()

called: dict[int, tuple[Thread, Callable[[Thread], None]]] = {}
"""Threads that hops have given something to do while they were at work, by their ids, with what joins each to these hops.

That has to be called in the thread itself: no other can set its scope.
"""


def hop_now() -> Hop | None:
    """Return the hop that the running code works for, if that has not ended."""
    hop = hop_behind(current.get())
    if hop is None and called:
        join_callers()
        hop = hop_behind(current.get())
    return hop


def join_callers() -> None:
    """Start the work of the running thread for the hops that have called it."""
    found = None if is_detached.get() else called.get(get_ident())
    if found is not None and found[0].is_alive():  # else another thread has its id by now
        found[1](found[0])


def hop_behind(node: TreeNode | None) -> Hop | None:
    """Return the hop that work in a scope is for, if that has not ended."""
    if node is None:
        return None
    hop: Any = node._errand
    return None if hop is None or hop._state is _CLOSED or hop._ended else hop


class Followed(Hold):
    """Work for a hop that runs elsewhere. A drain that cannot end it reports it as stuck."""

    __slots__ = ("_declared_as", "_key", "hop", "thing")

    _fate: ClassVar[Fate] = "stuck"

    def __init__(
        self,
        hop: Hop,
        kind: str,
        name: str,
        frame: FrameType | None,
        thing: object = None,
        on_stop: Callable[[], object] | None = None,
        *,
        target: str | None = None,
    ) -> None:
        """Hold it, from any thread; `target` is the name by which `Node(services=…)` declares what runs."""
        code, offset = _started(hop) if frame is None else (frame.f_code, frame.f_lasti)
        super().__init__(hop, kind, name, {}, code, offset, on_stop)
        self.hop: Hop = hop
        """The hop that it is work for; it may be held by another scope after the hop was closed."""
        self._key: object = self
        self._declared_as: str | None = _advised(target)
        self.thing: object = thing
        if hop._backend.here():
            hop._insert(self, self)
        else:
            hop._backend.post(hop._insert, self, self)

    @property
    def released(self) -> bool:
        """Whether it has ended."""
        return self._key not in self._node._holds

    def worked_on_by(self, task: object) -> None:
        """Record the task that works on it, which may then start more for the hop while that is drained."""
        holds = self._node._holds
        if task is not None and task not in holds and self._key in holds:
            holds[task] = holds.pop(self._key)
            self._key = task

    def _stop(self, *, force: bool = False) -> None:
        if self._on_stop is not None and not self.released:
            self._node._job_cancelled(self, service=False)  # it will not be done
        super()._stop(force=force)

    def place_as(self, other: Followed) -> None:
        """Record that it was started where another was."""
        self._code, self._offset = other._code, other._offset
        self._declared_as = self._declared_as or other._declared_as

    def fail(self, error: BaseException) -> None:
        """Record that it failed, before it is released. It may be called from any thread."""
        if not self._node._backend.here():
            self._node._backend.post(self.fail, error)
        elif not self.released:
            self.hop._fail_unheard(error, self)

    def cut(self) -> None:
        """Record that the running code cancels it, unless that works for the hop. It may be called from any thread."""
        if hop_now() is not self.hop:
            self._cut(f"{self.name} was cancelled at {frame_place(calling_frame())}")

    def _cut(self, why: str) -> None:
        if not self._node._backend.here():
            self._node._backend.post(self._cut, why)
        elif not self.released:
            self.hop._cut_unheard(why)

    def release(self) -> None:
        """End it. Idempotent, and safe to call from any thread."""
        node = self._node
        if not node._backend.here():
            node._backend.post(self.release)
            return
        if node._holds.get(self._key) is self:
            del node._holds[self._key]
            if not node._holds:
                node._turned_idle()


def _started(hop: Hop) -> tuple[CodeType | None, int]:
    """Return where the running task was started, which runs no code but that of event loops and of us."""
    task = hop._backend.current() if hop._backend.here() else None
    return getattr(task, "_code_started", None), getattr(task, "_offset_started", 0)


def frame_place(frame: FrameType | None) -> str:
    """Return `file:line in function` of a frame."""
    if frame is None:
        return "an unknown place"
    return code_place(frame.f_code, frame.f_lineno)


def code_place(code: CodeType, line: int) -> str:
    """Return `file:line in function` of a line of code."""
    return str(callsites.Frame(code.co_filename, line, code.co_qualname))


def calling_frame() -> FrameType | None:
    """Return the frame that asked for what is being started: outside of event loops, threads and of us."""
    return libraries.starting_frame(sys._getframe(1))


def is_declared(hop: Hop, frame: FrameType | None, *names: str | None) -> bool:
    """Return whether something is housekeeping: by the library that starts it, or by `Node(services=…)`."""
    is_own = frame is not None and libraries.is_housekeeper(frame)
    return is_own or is_declared_service(hop, frame, *names)


def is_declared_service(hop: Hop, frame: FrameType | None, *names: str | None) -> bool:
    """Return whether `Node(services=…)` declares something: by its own names, or by the module that starts it.

    A pattern that matches any name in a module, like `package.module.*`, declares what the code of the module starts.
    One that names a function declares what runs that function: the function may start work as well.
    """
    pattern = hop._model.values["_service_pattern"]
    if pattern is None:
        return False
    module = None if frame is None else f"{frame.f_globals.get('__name__', '')}."
    return any(name and pattern.fullmatch(name) is not None for name in (module, *names))


def declaration_of(target: str | None) -> str:
    """Return the line of code that declares something by the name of what it runs, or without one."""
    name = _advised(target)
    if name is None:
        return "`with quiesce.detached():` around the code that starts it"
    return libraries.declaration([name])


def _advised(target: str | None) -> str | None:
    """Return the name of what runs, if a user can declare it by that name, and no work along with it.

    Any work may run a function of Python or of a well-known library; and all lambdas of a function have one name.
    """
    if target is None or target.endswith("<lambda>"):
        return None
    package, dot = libraries.package_of(target), "." in target
    is_shared = package in sys.stdlib_module_names or package in libraries.HOUSEKEEPERS
    return None if dot and is_shared else target


def function_name(fn: Any) -> str:
    """Return the name of a function, or of what is below partials."""
    fn = _below(fn)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def target_of(fn: Any) -> str | None:
    """Return the name by which `Node(services=…)` declares calls of a function: its module and qualified name.

    None for functions of Python itself and of event loops, like `Event.wait`: every program uses them for its work.
    """
    module = getattr(_below(fn), "__module__", None)
    if (
        not isinstance(module, str)
        or module == "builtins"
        or libraries.package_of(module) in libraries.PLUMBING
    ):
        return None
    return f"{module}.{function_name(fn)}"


def _below(fn: Any) -> Any:
    while hasattr(fn, "func"):
        fn = fn.func
    return fn


class Later:
    """A function that is called later, perhaps in another thread: the hop waits until it was called, or dropped."""

    __slots__ = ("__weakref__", "_fn", "_hold", "_node", "_release")

    def __init__(
        self, fn: Any, hop: Hop, kind: str, frame: FrameType | None, soon: Any = None
    ) -> None:
        """Hold the hop; `soon` is what to release it by after the call, if not at once."""
        self._fn = fn
        self._node = current.get()
        self._hold = Followed(hop, kind, function_name(fn), frame, target=target_of(fn))
        release = self._hold.release
        self._release: Any = release if soon is None else lambda: soon(release)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call it, as part of the hop."""
        token = current.set(self._node)
        try:
            return self._fn(*args, **options)
        except BaseException as error:
            self._hold.fail(error)
            raise
        finally:
            current.reset(token)
            self._fn = None
            self._release()

    def drop(self) -> None:
        """Release the hop: it is not called any more. It may be called from any thread."""
        self._hold.release()

    def __del__(self) -> None:
        """Release the hop if it was never called: now nothing can call it."""
        if (
            getattr(self, "_fn", None) is not None
        ):  # not at once: the collector may run amidst anything
            self._hold._node._backend.post(self._hold.release)
