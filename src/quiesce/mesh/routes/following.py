"""The hold that keeps a hop open for work elsewhere: in a thread, in a process, on a timer, in a queue.

Any thread may make or release such a hold. The hop's tables change only in the hop's event loop, in the order of the
calls. The hop holds a thread that works for it until the thread's last call. So the hop holds whatever the thread starts
before it releases the thread.
"""

from __future__ import annotations

import sys
import threading
from contextvars import Context
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

from quiesce.core import callsites, libraries
from quiesce.core.current import is_detached
from quiesce.core.hold import Fate, Hold
from quiesce.core.python_private import get_frame
from quiesce.core.tree import ScopeState, current
from quiesce.mesh.protocol.states import WorkState

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from types import CodeType, FrameType

    from quiesce.core.tree import TreeNode
    from quiesce.mesh.runtime.hop import Hop

__all__: list[str] = []

_CLOSED = ScopeState.CLOSED
_ENDED = WorkState.ENDED


class HandedCall(threading.local):
    """For each thread, the hold of the call that a hop has handed to it; None if the thread runs no such call."""

    hold: Hold | None = None


handed: HandedCall = HandedCall()

called: dict[int, tuple[Thread, Callable[[Thread], None]]] = {}
"""By thread id, the busy threads to which hops have given a job, each with the function that joins it to these hops.

The thread itself has to call the function: only a thread can set its own scope.
"""


enters: list[Callable[[Any], None]] = []
"""Functions to call with an event loop, other than the hop's own, in which code begins to work for a hop."""


def hop_now() -> Hop | None:
    """Return the hop that the running code works for; None if there is none or it has ended."""
    hop = hop_behind(current.get())
    if hop is None and called:
        join_callers()
        hop = hop_behind(current.get())
    return hop


def join_callers() -> None:
    """Start the running thread's work for the hops that have called it."""
    found = None if is_detached.get() else called.get(get_ident())
    if found is not None and found[0].is_alive():  # otherwise a newer thread has the same id
        found[1](found[0])


def hop_behind(node: TreeNode | None) -> Hop | None:
    """Return the hop for which a scope works; None if there is none or it has ended."""
    if node is None:
        return None
    hop: Any = node.hop_served
    return None if hop is None or hop.phase is _CLOSED or hop.work_state is _ENDED else hop


class Followed(Hold):
    """A hold for work that runs outside of the hop's own tasks. A drain that cannot end the work reports it as stuck."""

    __slots__ = ("_declared_as", "_key", "hop", "thing")

    fate: ClassVar[Fate] = "stuck"
    place_offset: int
    place_code: CodeType | None
    stop_call: Callable[[], object] | None

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
        """Hold the hop, from any thread; `target` is the name by which `Node(services=…)` declares the work."""
        code, offset = _task_start(hop) if frame is None else (frame.f_code, frame.f_lasti)
        super().__init__(hop, kind, name, {}, code, offset, on_stop)
        self.hop: Hop = hop
        """The hop that the work is for. After the hop has closed, another scope may hold the work."""
        self._key: object = self  # in the table of holds; None when released
        self._declared_as: str | None = _advised(target)
        self.thing: object = thing
        if hop.backend.here():
            hop.insert_hold(self, self)
        else:
            hop.backend.post(hop.insert_hold, self, self)

    @property
    def released(self) -> bool:
        return self._key not in self.owner_node.holds

    def list_frames(self) -> list[callsites.Frame]:
        """Return the frames that the thread is in, if the work is a thread."""
        thread = self.thing
        return callsites.thread_chain(thread.ident) if isinstance(thread, threading.Thread) else []

    def worked_on_by(self, task: object) -> None:
        """Record the task that does the work. The task may then start more work while the hop is drained."""
        holds = self.owner_node.holds
        if task is not None and task not in holds and self._key in holds:
            holds[task] = holds.pop(self._key)
            self._key = task

    def request_stop(self, *, force: bool = False) -> None:
        if self.stop_call is not None and not self.released:
            self.owner_node.note_cancelled(self, service=False)  # the work will not be done
        super().request_stop(force=force)

    def place_as(self, other: Followed) -> None:
        """Record that this work was started at the place where `other` was started."""
        self.place_code, self.place_offset = other.place_code, other.place_offset
        self._declared_as = self._declared_as or other._declared_as

    def fail(self, error: BaseException) -> None:
        """Record that the work failed, before the hold is released. May be called from any thread."""
        if not self.owner_node.backend.here():
            self.owner_node.backend.post(self.fail, error)
        elif not self.released:
            self.hop.note_failed_unheard(error, self)

    def cut(self) -> None:
        """Record that the running code cancels the work, unless that code works for the hop. Callable in any thread."""
        if hop_now() is not self.hop:
            self._cut(f"{self.name} was cancelled at {frame_place(calling_frame())}")

    def _cut(self, why: str) -> None:
        if not self.owner_node.backend.here():
            self.owner_node.backend.post(self._cut, why)
        elif not self.released:
            self.hop.note_cut_unheard(why)

    def release(self) -> None:
        """Release the hop. Idempotent, and safe to call from any thread."""
        node = self.owner_node
        if not node.backend.here():
            node.backend.post(self.release)
            return
        if node.holds.get(self._key) is self:
            del node.holds[self._key]
            self._key = self.thing = self.stop_call = None  # freed without the collector
            if not node.holds:
                node.note_idle()


def _task_start(hop: Hop) -> tuple[CodeType | None, int]:
    """Return where the running task was started. Used if all its frames belong to event loops or quiesce."""
    task = hop.backend.current() if hop.backend.here() else None
    return getattr(task, "started_code", None), getattr(task, "started_offset", 0)


def frame_place(frame: FrameType | None) -> str:
    """Return `file:line in function` of a frame."""
    if frame is None:
        return "an unknown place"
    return code_place(frame.f_code, frame.f_lineno)


def code_place(code: CodeType, line: int) -> str:
    """Return `file:line in function` of a line of code."""
    return str(callsites.Frame(code.co_filename, line, code.co_qualname))


def calling_frame() -> FrameType | None:
    """Return the frame that starts work: the innermost one outside of event loops, threads and quiesce."""
    return libraries.starting_frame(get_frame(1))


def is_declared(hop: Hop, frame: FrameType | None, *names: str | None) -> bool:
    """Return whether work is housekeeping: a known library starts it, or `Node(services=…)` declares it."""
    is_own = frame is not None and libraries.is_housekeeper(frame)
    return is_own or is_declared_service(hop, frame, *names)


def is_declared_service(hop: Hop, frame: FrameType | None, *names: str | None) -> bool:
    """Return whether `Node(services=…)` declares some work, by its names or by the module that starts it.

    A pattern that matches every name of a module, like `package.module.*`, declares all work that the module starts.
    A pattern that names a function declares calls of that function, but not the work that the function starts.
    """
    pattern = hop.scope_model.values["service_pattern"]
    if pattern is None:
        return False
    module = None if frame is None else f"{frame.f_globals.get('__name__', '')}."
    return any(name and pattern.fullmatch(name) is not None for name in (module, *names))


def declaration_of(target: str | None) -> str:
    """Return the line of code that declares calls of `target` as a service, or that detaches them."""
    name = _advised(target)
    if name is None:
        return "`with quiesce.detached():` around the code that starts it"
    return libraries.declaration([name])


def is_declarable(target: str) -> bool:
    """Return whether a user can declare something by the name of what it runs."""
    return _advised(target) is not None


def _advised(target: str | None) -> str | None:
    """Return `target` if a user can declare it by that name; None if the name would also match other work.

    Any work may run a function of Python or of a well-known library, and all lambdas of a function have one name.
    """
    if target is None or target.endswith("<lambda>"):
        return None
    package, dot = libraries.package_of(target), "." in target
    is_shared = package in sys.stdlib_module_names or package in libraries.HOUSEKEEPERS
    return None if dot and is_shared else target


def function_name(fn: Any) -> str:
    """Return the name of a function; for a partial, the name of the function inside."""
    fn = _without_partials(fn)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def target_of(fn: Any) -> str | None:
    """Return the name by which `Node(services=…)` declares calls of a function: its module and qualified name.

    Return None for functions of Python itself and of event loops, like `Event.wait`: every program's work uses them.
    """
    module = getattr(_without_partials(fn), "__module__", None)
    if (
        not isinstance(module, str)
        or module == "builtins"
        or libraries.package_of(module) in libraries.PLUMBING
    ):
        return None
    return f"{module}.{function_name(fn)}"


def _without_partials(fn: Any) -> Any:
    while isinstance(fn, partial):
        # `asyncio.to_thread` has a context run the function.
        is_in_context = isinstance(getattr(fn.func, "__self__", None), Context) and bool(fn.args)
        fn = fn.args[0] if is_in_context else fn.func
    return fn


class Later:
    """A function to be called later, perhaps in another thread. The hop waits until it has been called or dropped."""

    __slots__ = ("__weakref__", "_fn", "_hold", "_node", "_release")

    def __init__(
        self, fn: Any, hop: Hop, kind: str, frame: FrameType | None, soon: Any = None
    ) -> None:
        """Hold the hop. After the call, `soon` releases the hop; without `soon`, the hop is released at once."""
        self._fn = fn
        self._node = current.get()
        self._hold = Followed(hop, kind, function_name(fn), frame, target=target_of(fn))
        release = self._hold.release
        self._release: Any = release if soon is None else lambda: soon(release)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function, as part of the hop."""
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
        """Release the hop, because the function will not be called. May be called from any thread."""
        self._hold.release()

    def __del__(self) -> None:
        """Release the hop if the function was never called and cannot be called any more."""
        if getattr(self, "_fn", None) is not None:
            # Posted, because the garbage collector may run in the middle of any code.
            self._hold.owner_node.backend.post(self._hold.release)
