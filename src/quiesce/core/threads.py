"""Work in threads, and calls from threads."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import anyio.to_thread

from quiesce.core import sites
from quiesce.core.hold import NOTHING, Fate, Hold
from quiesce.errors import ScopeClosed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import CodeType

    from quiesce.core.node import Node
    from quiesce.core.scope import Scope

T = TypeVar("T")


class ThreadHold(Hold):
    """A function that runs in a thread. It cannot be stopped, only waited for."""

    __slots__ = ("ident",)

    _fate: ClassVar[Fate] = "stuck"

    def __init__(self, node: Node, name: str, code: CodeType | None, offset: int) -> None:
        super().__init__(node, "thread", name, NOTHING, code, offset)
        self.ident: int | None = None

    def _chain(self) -> list[sites.Frame]:
        return sites.thread_chain(self.ident)


async def run_in_thread(
    scope: Scope, fn: Callable[[], T], name: str, code: CodeType, offset: int
) -> T:
    """Run `fn` in a thread, held until it has really returned, whoever waits for it."""
    hold = ThreadHold(scope, name, code, offset)
    ticket = [hold]  # whoever takes it out decides: the thread that begins, or we, leaving
    abandoned = threading.Event()

    def call() -> Any:
        if not _take(ticket):
            return None  # the one who wanted it left before it began
        hold.ident = threading.get_ident()
        try:
            return fn()
        except BaseException as error:
            if abandoned.is_set():  # nobody is there to raise it to
                scope._backend.post(hold._node._job_failed, hold, error)
            raise
        finally:
            hold.ident = None
            hold.release()

    scope._insert(hold, hold)
    try:
        result: T = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
    finally:
        abandoned.set()
        if _take(ticket):  # else it began: the thread releases the hold when it ends
            hold.release()
    return result


def _take(ticket: list[ThreadHold]) -> bool:
    """Take the only ticket, in one step that no other thread can share; tell whether we got it."""
    try:
        ticket.pop()
    except IndexError:
        return False
    return True


def call_from_thread(
    scope: Scope, fn: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Future[Any]:
    """Call `fn` in the scope's event loop, and await what it gives, for another thread."""
    if scope._backend.here():
        message = "from_thread() is for other threads; here, call or await the function itself"
        raise UsageError(message)
    call = Call(scope, lambda: fn(*args, **options), repr(fn))
    if not scope._backend.post(call.begin):
        raise _gone(scope)
    return call.future


class Call:
    """One call from another thread."""

    def __init__(self, scope: Scope, fn: Callable[[], Any], name: str) -> None:
        self._scope = scope
        self._fn = fn
        self._name = name
        self.future: Future[Any] = Future()

    def begin(self) -> None:
        """Call, in the event loop; what is async goes on in an owner task."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._fn()
        except BaseException as error:  # noqa: BLE001 - it belongs to the other thread
            self.future.set_exception(error)
            return
        if not iscoroutine(result):
            self.future.set_result(result)
        elif not self._scope._backend.own(lambda: self._finish(result), f"call {self._name}"):
            result.close()
            self.future.set_exception(_gone(self._scope))

    async def _finish(self, coro: Coroutine[Any, Any, Any]) -> None:
        try:
            self.future.set_result(await coro)
        except BaseException as error:
            self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise


def _gone(scope: Scope) -> ScopeClosed:
    return ScopeClosed(f"the event loop of scope {scope.name!r} has ended")
