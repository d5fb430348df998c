"""Work in threads, and calls from threads."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import anyio.to_thread

from quiesce.core import arguments, callsites
from quiesce.core.hold import NOTHING, Fate, Hold
from quiesce.core.tree import acting
from quiesce.errors import ScopeClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import CodeType, FrameType

    from quiesce.core.scope import Scope
    from quiesce.core.tree import TreeNode

T = TypeVar("T")


class ThreadHold(Hold):
    """A function that runs in a thread. It cannot be stopped, only waited for."""

    __slots__ = ("ident",)

    _fate: ClassVar[Fate] = "stuck"

    def __init__(self, node: TreeNode, name: str, code: CodeType | None, offset: int) -> None:
        super().__init__(node, "thread", name, NOTHING, code, offset)
        self.ident: int | None = None

    def _chain(self) -> list[callsites.Frame]:
        return callsites.thread_chain(self.ident)


async def run_in_thread(
    scope: Scope, fn: Callable[..., T], args: tuple[Any, ...], frame: FrameType
) -> T:
    """Run `fn` in a thread, held until it has really returned, whoever waits for it."""
    place = callsites.starting_code(frame, scope._backend.current())
    hold = ThreadHold(scope, arguments.name_of(fn), place.f_code, place.f_lasti)
    begin = [hold]  # whoever takes it out decides: the thread that begins, or we, leaving
    failed: list[BaseException] = []  # until somebody takes it: we, or the report
    left = threading.Event()

    def call() -> Any:
        if _take(begin) is None:
            return None  # the one who wanted it left before it began
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

    scope._insert(hold, hold)
    try:
        result: T = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    except scope._backend.cancelled:
        left.set()
        _report(hold, failed)  # it may have failed in this very moment
        raise
    finally:
        if _take(begin) is not None:  # else it began: the thread releases the hold at its end
            hold.release()
    return result


by_thread: dict[int, ThreadHold] = {}


def _report(hold: ThreadHold, failed: list[BaseException]) -> None:
    """Put a failure that nobody is there to receive into the report, once."""
    error = _take(failed)
    if error is None:
        return
    if hold._node._backend.here():
        hold._node._job_failed(hold, error)  # at once: the thread's release may be on its way
    else:
        hold._node._backend.post(lambda: hold._node._job_failed(hold, error))


def _take(box: list[Any]) -> Any:
    """Take the only thing out, in one step that no other thread can share; None if it is gone."""
    try:
        return box.pop()
    except IndexError:
        return None


def call_from_thread(
    scope: Scope, fn: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Future[Any]:
    """Call `fn` in the scope's event loop, and await what it gives, for another thread."""
    if scope._backend.here():
        message = "from_thread() is for other threads; here, call or await the function itself"
        raise UsageError(message)
    caller = by_thread.get(threading.get_ident())  # a thread of a scope's own, perhaps
    call = ThreadCall(scope, lambda: fn(*args, **options), repr(fn), caller)
    if not scope._backend.post(call.begin):
        raise _gone(scope)
    return call.future


class ThreadCall:
    """One call from another thread."""

    def __init__(
        self, scope: Scope, fn: Callable[[], Any], name: str, caller: ThreadHold | None
    ) -> None:
        self._caller = caller
        self._scope = scope
        self._fn = fn
        self._name = name
        self.future: Future[Any] = Future()

    def begin(self) -> None:
        """Call, in the event loop; what is async goes on in an owner task."""
        if not self.future.set_running_or_notify_cancel():
            return
        token = acting.set(self._caller)
        try:
            result = self._fn()
        except BaseException as error:  # noqa: BLE001 - it belongs to the other thread
            self.future.set_exception(error)
            return
        finally:
            acting.reset(token)
        if not iscoroutine(result):
            self.future.set_result(result)
        elif not self._scope._backend.own(lambda: self._finish(result), f"call {self._name}"):
            result.close()
            self.future.set_exception(_gone(self._scope))

    async def _finish(self, coro: Coroutine[Any, Any, Any]) -> None:
        acting.set(self._caller)
        try:
            self.future.set_result(await coro)
        except BaseException as error:
            self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise


def _gone(scope: Scope) -> ScopeClosed:
    return ScopeClosed(f"the event loop of scope {scope.name!r} has ended")
