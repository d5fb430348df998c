"""Work in threads (`Scope.to_thread`), and calls from threads (`Scope.from_thread`)."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from quiesce.core import arguments, callsites
from quiesce.core.hold import NOTHING, Fate, Hold
from quiesce.core.tree import TreeNode, acting
from quiesce.errors import ScopeClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import CodeType, FrameType

    from quiesce.core.scope import Scope

T = TypeVar("T")


class ThreadHold(Hold):
    """The hold of a function that runs in a thread. It cannot be stopped, only waited for."""

    __slots__ = ("ident",)

    fate: ClassVar[Fate] = "stuck"

    def __init__(self, node: TreeNode, name: str, code: CodeType | None, offset: int) -> None:
        super().__init__(node, "thread", name, NOTHING, code, offset)
        self.ident: int | None = None

    def list_frames(self) -> list[callsites.Frame]:
        return callsites.thread_chain(self.ident)


async def run_in_thread(
    scope: Scope, fn: Callable[..., T], args: tuple[Any, ...], frame: FrameType
) -> T:
    """Run `fn` in a thread. The scope holds the call until `fn` has returned, even if the caller is cancelled."""
    place = callsites.starting_code(frame, scope.backend.current())
    hold = ThreadHold(scope, arguments.name_of(fn), place.f_code, place.f_lasti)
    begin = [hold]  # taken by the thread when it begins, or by a caller that leaves before
    failed: list[BaseException] = []  # the failure of `fn`, until `_report` takes it
    left = threading.Event()  # set when the caller was cancelled

    def call() -> Any:
        if _take(begin) is None:
            return None  # the caller was cancelled before the thread began
        hold.ident = threading.get_ident()
        by_thread[hold.ident] = hold
        try:
            return fn(*args)
        except BaseException as error:
            failed.append(error)
            if left.is_set():
                _report(hold, failed)
            raise
        finally:
            del by_thread[hold.ident]
            hold.ident = None
            hold.release()

    import anyio.to_thread  # noqa: PLC0415 - slow to import, and most programs start no thread

    scope.insert_hold(hold, hold)
    try:
        result: T = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    except scope.backend.cancelled:
        left.set()
        _report(hold, failed)  # the function may have failed before `left` was set
        raise
    finally:
        if _take(begin) is not None:  # else the thread has begun, and releases the hold
            hold.release()
    return result


by_thread: dict[int, ThreadHold] = {}


def _report(hold: ThreadHold, failed: list[BaseException]) -> None:
    """Record the failure of a function whose caller was cancelled, once, for the scope's report."""
    error = _take(failed)
    if error is None:
        return
    if hold.owner_node.backend.here():
        hold.owner_node.note_failed(hold, error)  # before the release that the thread has posted
    else:
        hold.owner_node.backend.post(lambda: hold.owner_node.note_failed(hold, error))


def _take(box: list[Any]) -> Any:
    """Remove and return the only item of a list, atomically; return None if the list is empty."""
    try:
        return box.pop()
    except IndexError:
        return None


def call_from_thread(
    scope: Scope, fn: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Future[Any]:
    """Schedule `fn` in the scope's event loop, for another thread. If `fn` is async, it becomes a job of the scope.

    An async method of a scope itself, such as `drain`, is not work: the scope would wait for its own close.
    """
    if scope.backend.here():
        message = "from_thread() was called in the event loop's own thread: call or await the function itself"
        raise UsageError(message)
    caller = by_thread.get(threading.get_ident())  # None unless `to_thread` runs this thread
    is_work = not isinstance(getattr(fn, "__self__", None), TreeNode)
    call = ThreadCall(
        scope, lambda: fn(*args, **options), arguments.name_of(fn), caller, is_work=is_work
    )
    if not scope.backend.post(call.begin):
        raise _gone(scope)
    return call.future


class ThreadCall:
    """One call from another thread."""

    def __init__(
        self,
        scope: Scope,
        fn: Callable[[], Any],
        name: str,
        caller: ThreadHold | None,
        *,
        is_work: bool,
    ) -> None:
        self._caller = caller
        self._is_work = is_work
        self._scope = scope
        self._fn = fn
        self._name = name
        self.future: Future[Any] = Future()

    def begin(self) -> None:
        """Call the function in the event loop. If it returns a coroutine, start a task that awaits it."""
        if not self.future.set_running_or_notify_cancel():
            return
        token = acting.set(self._caller)
        try:
            result = self._fn()
            if self._is_work and iscoroutine(result):
                self._start_job(result)
                return
        except BaseException as error:  # noqa: BLE001 - the other thread gets it from the future
            self.future.set_exception(error)
            return
        finally:
            acting.reset(token)
        if not iscoroutine(result):
            self.future.set_result(result)
        elif not self._scope.backend.own(lambda: self.run_to_end(result), f"call {self._name}"):
            result.close()
            self.future.set_exception(_gone(self._scope))

    def _start_job(self, coro: Coroutine[Any, Any, Any]) -> None:
        scope = self._scope
        try:
            scope.check_may_start()
        except BaseException:
            coro.close()
            raise
        job: Any = scope.start_job(
            scope, self.run_to_end(coro), self._name, self.run_to_end.__code__, 0
        )
        scope.insert_hold(job, job)

    async def run_to_end(self, coro: Coroutine[Any, Any, Any]) -> None:
        acting.set(self._caller)
        try:
            self.future.set_result(await coro)
        except BaseException as error:
            self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise


def _gone(scope: Scope) -> ScopeClosed:
    return ScopeClosed(f"the event loop of scope {scope.name!r} has ended: it runs no more calls")
