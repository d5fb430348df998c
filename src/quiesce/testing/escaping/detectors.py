"""Detectors that a server would not pay for: places where work may leave a hop, which the hop does not follow.

- Wake-ups: code in a hop wakes a task or a thread that works for no hop, by whatever means: a semaphore, a future, an
  event of trio, a queue of another library. If that one waits in a loop, it is a worker, and was given something to do.
- Ways past the functions that hops follow, as by a name that was imported before: `fork`, `_thread`, `SimpleQueue`,
  pipes of multiprocessing.
- Doors: connections to anywhere, databases, files that are appended to. They are listed, and mean nothing by
  themselves.

They look only while code runs in a hop, and stop at once if the hop's node declares its caller to be housekeeping.
"""

from __future__ import annotations

import _thread
import asyncio
import inspect
import sys
import threading
from _queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from quiesce.core import callsites, libraries
from quiesce.core.patches import Patch
from quiesce.core.tree import current
from quiesce.mesh.clients.client_hooks import Hooks
from quiesce.mesh.clients.sending import _PLUMBING
from quiesce.mesh.routes.bytecode_flow import is_in_loop
from quiesce.mesh.routes.following import hop_now, is_declared
from quiesce.testing.escaping.escape_report import Escape
from quiesce.testing.escaping.trails import Trails, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType, ModuleType

    from quiesce.mesh.runtime.hop import Hop
    from quiesce.testing.escaping.escape_report import Fate

__all__: list[str] = []

_LOOPS = frozenset(
    {"asyncio.events", "asyncio.runners", "trio._core._run", "uvloop", "uvloop._noop"}
)
_OURS = ("quiesce.core.patches", "quiesce.mesh.clients", "quiesce.mesh.routes", "quiesce.testing")
# Who takes something, or lets go of a lock, wakes others as well, and gives them nothing to do.
_TAKING = frozenset({"batch", "get", "get_nowait", "receive", "receive_nowait", "task_done"})
_THREADS = "quiesce.mesh.routes.executors"  # below it, a thread works for a hop
_FORKS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"})


def asking_frame(frame: FrameType | None, skip: Collection[str] = ()) -> FrameType | None:
    """Return the frame of the program that asks for something; None if it is not the program that does.

    Args:
        frame: where to begin.
        skip: packages whose frames are passed over, too.
    """
    while frame is not None:
        module, code = frame.f_globals.get("__name__") or "", frame.f_code
        package = libraries.package_of(module)
        if module in _LOOPS or (package == "quiesce" and not module.startswith(_OURS)):
            return None
        if package not in libraries.PLUMBING and package not in skip:
            return frame
        if code.co_name in _TAKING or code.co_qualname.endswith("Lock.release"):
            return None
        frame = frame.f_back
    return None


def note_place(
    hop: Hop, fate: Fate, route: str, name: str = "", *, skip: Collection[str] = ()
) -> None:
    """Add the place where the running code is to what leaves its hop."""
    frame = asking_frame(sys._getframe(1), skip)
    if frame is None or is_declared(hop, frame):
        return
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    watch.note(hop, Escape(fate, route, name, frame.f_code.co_qualname, where))


# Wake-ups.


def _by_call_soon(call: Callable[..., Any]) -> Callable[..., Any]:
    def call_soon(callback: Any, *args: Any, **options: Any) -> Any:
        context = options.get("context")
        if context is not None and "wakeup" in getattr(callback, "__name__", ""):
            hop = hop_now()
            future = args[0] if args else None
            if hop is not None and not (isinstance(future, asyncio.Future) and future.cancelled()):
                _wakes(hop, context, callback.__self__)
        return call(callback, *args, **options)

    return call_soon


def _by_reschedule(reschedule: Callable[..., None]) -> Callable[..., None]:
    def rescheduled(task: Any, *args: Any) -> None:
        hop = hop_now()
        if hop is not None:
            _wakes(hop, task.context, task)
        reschedule(task, *args)

    return rescheduled


def _wakes(hop: Hop, context: Any, task: Any) -> None:
    """Note that a task is woken that works for no hop."""
    node = context.get(current)
    if node is not None and node._errand is not None:
        return
    coroutine = task.get_coro() if hasattr(task, "get_coro") else task.coro
    frames = [frame for frame, _ in callsites._walk(coroutine)]
    fate: Fate = "unseen" if any(map(_is_worker, frames)) else "possible"
    note_place(hop, fate, "wakes the task", getattr(coroutine, "__qualname__", ""))


def _is_worker(frame: FrameType) -> bool:
    """Return whether a frame is of the program, and comes back to where it waits."""
    return not libraries.is_housekeeper(frame) and is_in_loop(frame.f_code, frame.f_lasti)


def _by_notify(notify: Callable[..., None]) -> Callable[..., None]:
    def notified(self: Any, n: int = 1) -> None:
        hop = hop_now() if self._waiters else None
        if hop is not None:
            for name, is_worker in _threads_at(self):
                note_place(hop, "unseen" if is_worker else "possible", "wakes the thread", name)
        notify(self, n)

    return notified


def _threads_at(condition: object) -> Iterator[tuple[str, bool]]:
    """Return the threads that wait for a condition and work for no hop: the function, and whether it is a worker."""
    for frame in sys._current_frames().values():
        below: list[FrameType] = []
        at: FrameType | None = frame
        while at is not None:
            below.append(at)
            at = at.f_back
        waits = any(
            one.f_code is _WAIT and one.f_locals.get("self") is condition for one in below[:4]
        )
        if waits and all(one.f_globals.get("__name__") != _THREADS for one in below):
            users = [one for one in below if not libraries.is_housekeeper(one)]
            name = users[0].f_code.co_qualname if users else ""
            yield name, any(map(_is_worker, users))


_WAIT = inspect.unwrap(
    threading.Condition.wait
).__code__  # of the interpreter, whatever is around it


# Ways past what hops follow.


def _by_send(send: Callable[..., Any]) -> Callable[..., Any]:
    def sending(self: Any, *args: Any, **options: Any) -> Any:
        hop = hop_now()
        if hop is not None:
            note_place(hop, "unseen", "multiprocessing.Pipe")
        return send(self, *args, **options)

    return sending


def _profile(frame: FrameType, event: str, arg: Any) -> None:
    """See calls of functions of the interpreter, which take no attributes."""
    if event != "c_call":
        return
    if type(getattr(arg, "__self__", None)) is SimpleQueue:
        hop = hop_now() if arg.__name__ in {"put", "put_nowait"} else None
        if hop is not None:
            note_place(hop, "unseen", "queue.SimpleQueue")
    elif arg in _STARTS and frame.f_globals.get("__name__") != "threading":
        hop = hop_now()
        if hop is not None:
            note_place(hop, "unseen", f"_thread.{arg.__name__}")


_STARTS = frozenset(
    getattr(_thread, name)
    for name in ("start_new", "start_new_thread", "start_joinable_thread")
    if hasattr(_thread, name)
)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """See what the interpreter tells of; it cannot be told to stop, so nothing is done while nobody watches."""
    if not detectors.is_on or event not in _EVENTS:
        return
    hop = hop_now()
    if hop is None:
        return
    if event in _FORKS:
        note_place(hop, "unseen", "fork", event)
    elif event == "open":
        if isinstance(args[1], str) and "a" in args[1]:
            note_place(hop, "possible", "file that is appended to", str(args[0]))
    else:
        route = "connection" if event == "socket.connect" else event
        note_place(hop, "possible", route, str(args[-1]), skip=_PLUMBING)


_EVENTS = _FORKS | {"open", "socket.connect", "sqlite3.connect"}


def _pipes(module: ModuleType) -> Iterator[Patch]:
    for name in ("send", "send_bytes"):
        yield Patch(module._ConnectionBase, name, _by_send)


def _trio(module: ModuleType) -> Iterator[Patch]:
    for owner in (module.lowlevel, module._core):
        yield Patch(owner, "reschedule", _by_reschedule)


_hooks = Hooks({"multiprocessing.connection": _pipes, "trio": _trio})

# When they are on.


class Detectors:
    """All detectors. They look while hops are watched."""

    def __init__(self) -> None:
        self.is_on: bool = False
        self._is_audited = False
        self._patches: list[Patch] = []
        self._lock = threading.Lock()
        self._loops: dict[object, tuple[set[int], Patch]] = {}  # by loop: its open hops
        self._threads: dict[int, set[int]] = {}  # by thread: its open hops

    def install(self) -> None:
        """Start the detectors."""
        if not self._is_audited:
            sys.addaudithook(_audit)
            self._is_audited = True
        self._patches = [Patch(threading.Condition, "notify", _by_notify)]
        _hooks.fit(is_wanted=True)
        self.is_on = True

    def remove(self) -> None:
        """Restore everything."""
        self.is_on = False
        _hooks.fit(is_wanted=False)
        with self._lock:
            wrapped = [patch for _, patch in self._loops.values()]
            self._loops.clear()
            self._threads.clear()
        for patch in (*wrapped, *self._patches):
            patch.remove()
        self._patches = []
        if sys.getprofile() is _profile:
            sys.setprofile(None)

    def begun(self, hop: Hop) -> None:
        """Look at the hop's event loop, and at the calls of this thread, until its last hop has ended."""
        loop: Any = hop._loop
        with self._lock:
            if hop._backend.name == "asyncio":
                if loop not in self._loops:
                    self._loops[loop] = (set(), Patch(loop, "call_soon", _by_call_soon))
                self._loops[loop][0].add(id(hop))
            self._threads.setdefault(threading.get_ident(), set()).add(id(hop))
        if sys.getprofile() is None:  # or the profiler of the program goes on
            sys.setprofile(_profile)

    def ended(self, hop: Hop) -> None:
        """Look no more, if it was the last one."""
        with self._lock:
            hops, patch = self._loops.get(hop._loop, (set(), None))
            hops.discard(id(hop))
            if patch is not None and not hops:
                del self._loops[hop._loop]
                patch.remove()
            left = self._threads.get(threading.get_ident(), set())
            left.discard(id(hop))
        if not left and sys.getprofile() is _profile:
            sys.setprofile(None)


detectors: Detectors = Detectors()
watch.detectors = detectors


def begin_detecting() -> Trails:
    """Watch all hops that begin from now on, with every detector, until `Trails.close()`."""
    return Trails()
