"""Detectors that are too slow for a server: they find places where work may leave a hop unnoticed.

`escapes` turns them on. They find:

- Wake-ups: code in a hop wakes a task or a thread that does not work for a hop, by a semaphore, a future, an event of trio,
  or a queue of another library. If the woken task or thread waits in a loop, it is a worker, and probably got work.
- Calls that go around the functions that hops follow: `fork`, `_thread`, `SimpleQueue`.
- Possible exits: requests to servers that the node does not know, connections, databases, files that are opened for
  appending. They are listed as `possible`.

The detectors run only for code in a hop. They ignore callers that the hop's node declares as housekeeping.
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
from quiesce.core.python_private import get_frame, thread_frames
from quiesce.core.tree import current
from quiesce.mesh.clients import aiohttp_client, httpx_client, stdlib_client
from quiesce.mesh.clients.client_hooks import Hooks
from quiesce.mesh.clients.sending import _PLUMBING, is_http_below
from quiesce.mesh.routes.bytecode_flow import is_in_loop
from quiesce.mesh.routes.following import hop_now, is_declared
from quiesce.mesh.runtime.peers import peers_of
from quiesce.testing.escaping.escape_report import Escape
from quiesce.testing.escaping.trails import Trails, watch
from quiesce.testing.trio_private import reschedulers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType, ModuleType

    from quiesce.mesh.clients.sending import SendTarget
    from quiesce.mesh.runtime.hop import Hop
    from quiesce.testing.escaping.escape_report import Fate

__all__: list[str] = []

_LOOPS = frozenset(
    {"asyncio.events", "asyncio.runners", "trio._core._run", "uvloop", "uvloop._noop"}
)
_OURS = ("quiesce.core.patches", "quiesce.mesh.clients", "quiesce.mesh.routes", "quiesce.testing")
# Taking an item or releasing a lock wakes other tasks as well, but hands them no work.
_TAKING = frozenset({"batch", "get", "get_nowait", "receive", "receive_nowait", "task_done"})
_THREADS = "quiesce.mesh.routes.executors"  # a thread with a frame of this module works for a hop
_FORKS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"})


def asking_frame(frame: FrameType | None, skip: Collection[str] = ()) -> FrameType | None:
    """Return the program's own frame that has called a detected function; None if a library has called it for itself.

    Args:
        frame: the innermost frame.
        skip: more packages whose frames are skipped.
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
    """Record the running code's place as a place where work leaves its hop."""
    frame = asking_frame(get_frame(1), skip)
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
                _note_wake_up(hop, context, callback.__self__)
        return call(callback, *args, **options)

    return call_soon


def _by_reschedule(reschedule: Callable[..., None]) -> Callable[..., None]:
    def rescheduled(task: Any, *args: Any) -> None:
        hop = hop_now()
        if hop is not None:
            _note_wake_up(hop, task.context, task)
        reschedule(task, *args)

    return rescheduled


def _note_wake_up(hop: Hop, context: Any, task: Any) -> None:
    """Record the wake-up of a task, unless the task works for a hop."""
    node = context.get(current)
    if node is not None and node.hop_served is not None:
        return
    coroutine = task.get_coro() if hasattr(task, "get_coro") else task.coro
    frames = [frame for frame, _ in callsites.walk_awaits(coroutine)]
    fate: Fate = "unseen" if any(map(_is_worker, frames)) else "possible"
    note_place(hop, fate, "wakes the task", getattr(coroutine, "__qualname__", ""))


def _is_worker(frame: FrameType) -> bool:
    """Return whether a frame belongs to the program and waits in a loop."""
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
    """Yield each thread that waits for a condition outside of all hops: its function, and whether it is a worker."""
    for frame in thread_frames().values():
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


# Requests of plain clients. Their connections are not listed as well: a connection is often made by a task of the client.


def _by_request(begin: Callable[..., Any]) -> Callable[..., Any]:
    def begin_request(hop: Hop, target: SendTarget, **options: Any) -> Any:
        scheme, host, port = target.scheme, target.host, target.port
        if peers_of(hop.mesh_node).find(scheme, host, port, target.path) is None:
            server = f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"
            note_place(hop, "possible", "request", f"{target.method} {server}", skip=_PLUMBING)
        return begin(hop, target, **options)

    return begin_request


_REQUESTING = (aiohttp_client, httpx_client, stdlib_client)


# Calls that go around the functions that hops follow.


def _profile(frame: FrameType, event: str, arg: Any) -> None:
    """Record calls of C functions, which cannot be patched: SimpleQueue.put and the start of threads."""
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
    """Record audit events; Python cannot remove an audit hook, so this returns at once while the detectors are off."""
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
    elif event != "socket.connect" or not is_http_below():
        route = "connection" if event == "socket.connect" else event
        note_place(hop, "possible", route, str(args[-1]), skip=_PLUMBING)


_EVENTS = _FORKS | {"open", "socket.connect", "sqlite3.connect"}


def _trio(module: ModuleType) -> Iterator[Patch]:
    for owner in reschedulers(module):
        yield Patch(owner, "reschedule", _by_reschedule)


_hooks = Hooks({"trio": _trio})

# Turning the detectors on and off.


class Detectors:
    """All detectors, which are on while hops are watched."""

    def __init__(self) -> None:
        self.is_on: bool = False
        self._is_audited = False
        self._patches: list[Patch] = []
        self._lock = threading.Lock()
        self._loops: dict[object, tuple[set[int], Patch]] = {}  # the open hops of each event loop
        self._threads: dict[int, set[int]] = {}  # the open hops of each thread

    def install(self) -> None:
        """Turn the detectors on."""
        if not self._is_audited:
            sys.addaudithook(_audit)
            self._is_audited = True
        self._patches = [
            Patch(threading.Condition, "notify", _by_notify),
            *(Patch(module, "begin_request", _by_request) for module in _REQUESTING),
        ]
        _hooks.fit(is_wanted=True)
        self.is_on = True

    def remove(self) -> None:
        """Turn the detectors off, and remove all patches."""
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
        """Watch the hop's event loop, and the calls of this thread, until the last hop of each has ended."""
        loop: Any = hop.loop
        with self._lock:
            if hop.backend.name == "asyncio":
                if loop not in self._loops:
                    self._loops[loop] = (set(), Patch(loop, "call_soon", _by_call_soon))
                self._loops[loop][0].add(id(hop))
            self._threads.setdefault(threading.get_ident(), set()).add(id(hop))
        if sys.getprofile() is None:  # a profiler of the program is kept
            sys.setprofile(_profile)

    def ended(self, hop: Hop) -> None:
        """Stop watching the hop's event loop and this thread if this was the last hop there."""
        with self._lock:
            hops, patch = self._loops.get(hop.loop, (set(), None))
            hops.discard(id(hop))
            if patch is not None and not hops:
                del self._loops[hop.loop]
                patch.remove()
            left = self._threads.get(threading.get_ident(), set())
            left.discard(id(hop))
        if not left and sys.getprofile() is _profile:
            sys.setprofile(None)


detectors: Detectors = Detectors()
watch.detectors = detectors


def begin_detecting() -> Trails:
    """Start to watch all new hops, with every detector, until `Trails.close()`."""
    return Trails()
