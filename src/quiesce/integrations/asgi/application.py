"""One run of an app in one event loop: its scopes, its open requests, and how it stops.

The app's scope has two child scopes. *requests* holds a scope for each request, the work that requests have left
running, and the nodes of the mesh with their hops. *lifespan* holds the app's own startup and shutdown, and the tasks
that these have started. A drain does not wait for these tasks, because the app's shutdown ends them.

A stop is carried out once, even if it is requested several times:

1. The readiness probe fails. New requests are still served for the time of `notice`.
2. New requests are refused. Open requests are drained, and so are the parts that have joined (drain_parts.py).
3. Unfinished responses are ended, and the report is written.
4. The server gets the signal.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import signal
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core import close_callers, exit_threads, failures, process_exit
from quiesce.core import report as reports
from quiesce.core.announce import say
from quiesce.core.current import current_scope, detached
from quiesce.core.harmless_text import harmless
from quiesce.core.latch import Latch
from quiesce.core.light_scope import LightScope, Model, count_in
from quiesce.core.scope import Scope
from quiesce.core.signals import heard
from quiesce.core.stuck_exit import exit_when_only_stuck_is_left
from quiesce.core.tree import ScopeState
from quiesce.errors import JobCancelled
from quiesce.integrations.asgi.drain_parts import Parts, counted_in_flight
from quiesce.integrations.asgi.held_signal import HeldSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quiesce.core.backends import Waiter
    from quiesce.core.job import Job
    from quiesce.core.report import Report, ReportEntry
    from quiesce.core.tree import TreeNode
    from quiesce.integrations.asgi.middleware_settings import MiddlewareSettings
    from quiesce.integrations.asgi.request_exchange import RequestExchange

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("quiesce.asgi")

_CUT_MAX = 1000
_CUT_SECONDS = 1.0  # a server that cuts requests begins its shutdown within this time
_SECOND, _THIRD = 2, 3
_CLOSING, _CLOSED = ScopeState.CLOSING, ScopeState.CLOSED


class Application:
    """One run of an app: its scopes and its open requests."""

    def __init__(
        self,
        settings: MiddlewareSettings,
        root: Scope,
        *,
        lives: bool,
        around: Scope | None = None,
        on_node: Callable[[Any], object] | None = None,
    ) -> None:
        backend = root.backend
        self._around = around  # the scope in which the server runs, if any
        self.lives: bool = lives
        """Whether a lifespan opens and closes the run. If not, the run is open while the app has work."""
        self.settings: MiddlewareSettings = settings
        self.root: Scope = root
        self.adopts: bool = backend.name == "asyncio"
        self.requests: Scope = root.child(
            "requests", adopt=self.adopts, services=settings.services, on_error=self.failed
        )
        self.model: Model = self._model(settings.services)
        self.service_model: Model = self._model(["*"])  # a task that a service starts is a service
        self.waiter: Callable[[], Waiter] = backend.waiter
        self.cancelled: type[BaseException] = backend.cancelled
        self.lifespan: Scope = root.child("lifespan", adopt=self.adopts, services=["*"])
        seconds, services = settings.grace + settings.cleanup, settings.services
        self.parts: Parts = Parts(self.requests, seconds, on_node, services)
        """The parts that have joined the drain."""
        self.exchanges: dict[RequestExchange, None] = {}
        self.draining: bool = False
        self.served: bool = not lives
        """Whether the app has got a request from the server."""
        self.server_stops: bool = False
        """Whether the server itself has begun to shut down, so that it does not need the signal."""
        self.report: Report | None = None
        self._refusing = False
        self._is_silent = False
        self._began = math.inf  # when the drain began
        self._signals = 0
        self._closing_when_idle = False
        self._hurry = Latch(backend)
        self._vacant = Latch(backend)
        self._told = Latch(backend)
        self._refuses = Latch(backend)
        self._stopping: Job[None] | None = None
        self._failures: list[ReportEntry] = []
        self._cut_by_server: deque[tuple[float, ReportEntry]] = deque(maxlen=_CUT_MAX)
        self._signal = HeldSignal(root, self._on_signal)
        self._unheld = ExitStack()  # the listener for signals that reach the server at once
        self._server_was_told = False  # whether one of them has come

    @classmethod
    async def open(
        cls,
        settings: MiddlewareSettings,
        *,
        lives: bool,
        on_node: Callable[[Any], object] | None = None,
    ) -> Application:
        """Open the scopes, and hold SIGTERM back from the server from now on.

        Args:
            settings: The options of the middleware.
            lives: Whether the server runs a lifespan.
            on_node: A function to call with each node of the mesh that opens in the lifespan.
        """
        around = current_scope() if lives else None
        with detached():  # the server ends this scope; a scope around the server must not
            root = await Scope.open(settings.name)
        app = cls(settings, root, lives=lives, around=around, on_node=on_node)
        if settings.hold_signal and not app._signal.take():
            logger.info("not in the main thread: the drain begins when the server shuts down")
        if app._signal.held:
            app.parts.unheld = (signal.SIGINT,)
        if lives:
            listener = heard(
                root.backend.post,
                app._note_told,
                app.parts.unheld,
                sets_exit_code=settings.exit_code,
            )
            app._unheld.enter_context(listener)
        return app

    def _note_told(self) -> None:
        """Record that a signal has told the server to stop. Only then does this class set the exit code."""
        self._server_was_told = True

    @property
    def serves(self) -> bool:
        """Whether the app accepts new requests in the running event loop."""
        return (
            self.requests.phase is ScopeState.OPEN
            and not self._refusing
            and self.root.backend.here()
        )

    @property
    def is_open(self) -> bool:
        """Whether this run belongs to the running event loop and has not ended."""
        return self.root.backend.here() and self.root.phase is not ScopeState.CLOSED

    @property
    def refuses(self) -> bool:
        """Whether a new request is refused, because the app drains or has drained.

        A request from code of a request that is being drained is accepted: that one may need it to finish.
        """
        if not (self.is_open or (self._refusing and not self.lives and self.root.backend.here())):
            return False
        return self.requests.phase is not ScopeState.DRAINING or not (
            self.requests.is_asked_by_running_work()
        )

    @property
    def cut(self) -> bool:
        """Whether the deadline has passed, so that the remaining requests are cancelled."""
        state = self.requests.phase
        return state is _CLOSING or state is _CLOSED

    # The ends of requests and of their tasks.

    def _model(self, services: Iterable[str]) -> Model:
        return Model(
            self.requests, adopt=self.adopts, services=services if self.adopts else (),
            on_error=self.failed, leftovers="parent",
        )  # fmt: skip

    def outer(self) -> TreeNode | None:
        """Return the scope that other code has opened around an arriving request, if any.

        The scope of the server itself and the scopes of this app do not count. But if a request of this app, held by an
        outer scope, sends the request, return that request's scope.
        """
        scope = current_scope()
        if scope is None or not scope.backend.here():  # the second: the scope of another event loop
            return None
        if self._around is not None and self._around.is_within(scope):
            return None
        if not scope.is_within(self.root):
            return scope
        node: TreeNode | None = scope
        while node is not None and not (isinstance(node, LightScope) and node.bond is not None):
            node = node.parent
        return node

    def see_off(self, scope: LightScope) -> None:
        """Close the scope of a request, held by an outer scope, when everything that the request started has ended."""
        self.root.spawn(self._see_off, scope, name=f"after {scope.name}", service=True)

    async def _see_off(self, scope: LightScope) -> None:
        await scope.idle()
        await scope.aclose()
        self.left_over(scope)

    def failed(self, job: Any, error: BaseException) -> object:
        """Log the failure of a job that no caller receives. During a drain, also add it to the report."""
        logger.error("%s %s failed", job.kind, harmless(job.name), exc_info=error)
        if not self._refusing:
            return None
        now = self.root.backend.clock()
        self._failures.append(reports.report_entry(job, self.requests.name, now, error))
        return failures.REPORTED

    def left(self, exchange: RequestExchange) -> None:
        """Record the end of a request, and wake `_see_out` after the last one."""
        self.exchanges.pop(exchange, None)
        if self._refusing and not self.exchanges:
            self._vacant.open()

    def left_over(self, scope: Scope) -> None:
        """Add the report of a request's scope, unless the drain has closed that scope itself."""
        report = scope.report
        if report is None or scope in self.requests.child_reports:
            return
        count_in(self.requests, report.completed, report.withdrawn, report.handled)
        for item in report.failed:
            logger.error("left by a request: %s", item)
        if self._refusing:
            self._failures += report.failed

    def cut_by_server(self, lost: ReportEntry) -> None:
        """Remember a request whose task the server has cancelled: the server may be about to shut down."""
        self._cut_by_server.append((self.root.backend.clock(), lost))

    # Stopping.

    def _on_signal(self) -> None:
        if self.root.phase is not ScopeState.OPEN:  # uvloop keeps our handler after the close
            self._signal.let_go(self.settings.cleanup)
            return
        self._signals += 1
        if self._signals == 1 and self.report is not None:  # drained before, by `Quiesce.drain()`
            self._stop_server(self.report)
        elif self._signals == 1:
            self.stop("SIGTERM", notice=self.settings.notice)
        elif self._signals == _SECOND:
            self.hurry("a second SIGTERM")
        elif self._signals == _THIRD:
            logger.warning("a third SIGTERM: the server is told to stop at once")
            self._signal.let_go(self.settings.cleanup)

    def stop(self, why: str, *, notice: float) -> Job[None]:
        """Begin to stop, in this step. Return the job that stops the app; all callers get the same job."""
        if self._stopping is None or (self._stopping.done() and self.report is None):
            self.draining = True
            served = f", new requests are served for {notice:g} s" if notice else ""
            text = f"{why}: draining, grace {self.settings.grace:g} s{served}: {self._in_flight()}"
            self._is_silent = not self._is_worth_telling()
            if not self._is_silent:
                say(logger, logging.INFO, text, str(self.requests.frontier()))
            self._stopping = self.root.spawn(self._stop, notice, name="drain", service=True)
        return self._stopping

    def _is_worth_telling(self) -> bool:
        """Return whether to log the drain. A server that failed to start, because its port is taken, has nothing to drain."""
        return bool(
            self.served
            or self._signals
            or self.requests.frontier()
            or self.parts.in_flight().counts
        )

    def _in_flight(self) -> str:
        """Return in words how much the drain waits for. Each piece of work is counted once, by its most specific name."""
        counts, told = self.parts.in_flight()
        requests = sum(not one.is_service and one.scope not in told for one in self.exchanges)
        # Requests and nodes have scopes of their own. The other holds are work that requests have left running.
        left = sum(not isinstance(held, Scope) for held in self.requests.holds.values())
        found = {"request": requests, "background task": left}
        for word, count in counts.items():
            found[word] = found.get(word, 0) + count
        return counted_in_flight(found, self.parts.unposted)

    async def stopped(self, why: str, *, notice: float) -> Report:
        """Stop, and return the report of the stop, or of the close if that comes first.

        If the caller is work of the app, it cannot wait for its own end: it gets the report of all other work.

        *Cancel safety*: if cancelled, the stop goes on. If the caller is work of the app, the drain turns into a close.
        """
        owner, _ = self.requests.find_owner_of_running_task()
        if owner is not None and owner.is_within(self.requests):
            self.stop(why, notice=notice)
            await self._refuses.wait()
            return await self.requests.drain(self.settings.grace, cleanup=self.settings.cleanup)
        while self.report is None and self.root.phase is ScopeState.OPEN:
            with suppress(JobCancelled):  # by the close, or by other code: then stop once more
                await self.stop(why, notice=notice)
        await self._told.wait()
        assert self.report is not None  # noqa: S101 - set before the latch opens
        return self.report

    def hurry(self, why: str) -> None:
        """Cancel the remaining work now."""
        if not self._hurry.is_open:
            logger.warning("%s: cancelling the remaining work\n%s", why, self.requests.frontier())
            self._hurry.open()
        if self._refusing:
            self.root.spawn(self._drain_all, 0.0, name="drain at once", service=True)

    async def _stop(self, notice: float) -> None:
        settings = self.settings
        with anyio.move_on_after(notice):
            await self._hurry.wait() if notice else None
        self._refusing = True
        self._began = self.root.backend.clock()
        self._refuses.open()
        self._failures += self._cut_lately()
        watch = self.root.spawn(self._hang_up, name="hang up", service=True)
        try:
            await self._drain_all(0.0 if self._hurry.is_open else settings.grace)
            watch.cancel()
            await self._see_out()
        finally:
            if self.requests.report is not None:
                self._conclude(self.requests.report)
        if self._signals and not self.server_stops and self.report is not None:
            self._stop_server(self.report)
        if not self.lives:
            await self.close()

    async def _drain_all(self, grace: float) -> None:
        """Drain the requests, and the parts that have joined, by one deadline."""
        cleanup = self.settings.cleanup
        if self.parts:
            # Requests may wait for answers of these parts, so requests are cancelled only after the parts.
            deadline = self.root.backend.clock() + grace
            close_callers.begin_close(self.requests, grace + cleanup, cleanup)
            await self.parts.drain(self.root, grace, cleanup)
            grace = max(0.0, deadline - self.root.backend.clock())
        await self.requests.drain(grace, cleanup=cleanup)

    def _conclude(self, report: Report) -> None:
        report = self.parts.merged_with(report)
        failed = (*report.failed, *(item for item in self._failures if item.error is not None))
        rest = [item for item in self._failures if item.error is None]
        cut = [
            item for item in rest if item.kind == "job"
        ]  # cancelled by the server, so counted as withdrawn
        responses = (*report.undelivered, *(item for item in rest if item.kind != "job"))
        seconds = max(report.seconds, self.root.backend.clock() - self._began)
        self.report = replace(
            report, failed=failed, cancelled=(*report.cancelled, *cut), undelivered=responses,
            withdrawn=report.withdrawn - len(cut), seconds=seconds,
        )  # fmt: skip
        self.tell(self.report)
        self._told.open()

    def _stop_server(self, report: Report) -> None:
        """Pass the signal on to the server, now that the drain is over."""
        self._judge(report)
        settings = self.settings
        rest = self._began + settings.grace - self.root.backend.clock()
        rest = 0.0 if self._hurry.is_open else min(max(rest, 0.0), settings.grace)
        if not self._signal.let_go(rest + settings.cleanup):
            self.root.spawn(self._end_by_signal, name="end by the signal", service=True)

    def tell_unread(self) -> None:
        """Say which answers the server has given up, now that it shuts the lifespan down."""
        count = self._signal.count_unread()
        if count:
            connections = "1 connection" if count == 1 else f"{count} connections"
            text = f"WORK LOST: the server cuts {connections}: the client did not read its answer in time"
            say(logger, logging.ERROR, text)
            if self._has_exit_code:
                process_exit.lost()

    async def _end_by_signal(self) -> None:
        """End the process by the signal, unless the parent of the server process ends the server before."""
        await anyio.sleep(self.settings.cleanup)
        self._signal.end()

    def _cut_lately(self) -> list[ReportEntry]:
        """Return the requests that the server has cut at the beginning of its shutdown, before the app was told."""
        since = self.root.backend.clock() - _CUT_SECONDS
        return [lost for at, lost in self._cut_by_server if at >= since]

    async def _hang_up(self) -> None:
        """Send the apps of WebSockets a disconnect, shortly before the deadline."""
        await anyio.sleep(self.settings.hang_up)
        for exchange in tuple(self.exchanges):
            exchange.hang_up()

    async def _see_out(self) -> None:
        """Wait until every response has ended, also those of stuck requests."""
        for exchange in tuple(self.exchanges):
            exchange.release()
        if self.exchanges:
            with anyio.move_on_after(self.settings.cleanup):
                await self._vacant.wait()

    def tell(self, report: Report) -> None:
        """Log a report, and set the exit code if it lists lost work."""
        if not (self._is_silent and report.ok):
            say(logger, logging.INFO if report.ok else logging.ERROR, str(report))
        exit_threads.watch_exit_threads()
        self._judge(report)

    def _judge(self, report: Report) -> None:
        if not report.ok and self._has_exit_code:
            process_exit.lost()

    @property
    def _has_exit_code(self) -> bool:
        """Whether to set the exit code of this process: it is a server's process, and not a test, for example."""
        told = self._signals or self._server_was_told
        return bool(
            self.settings.exit_code and (told or multiprocessing.parent_process() is not None)
        )

    def shutdown_was_cut(self) -> None:
        """Record that the app's own shutdown was cancelled, so that the data it should have saved is lost."""
        if self._has_exit_code:
            process_exit.lost()

    async def close(self) -> None:
        """Close everything after the stop, and log the losses that are not logged yet.

        *Cancel safety*: if cancelled, both are completed before the cancellation is passed on.
        """
        try:
            await self.root.aclose(self.settings.cleanup)
        finally:
            self._signal.give_back()
            for exchange in tuple(self.exchanges):
                exchange.release()
            self._tell_the_rest()
            self._unheld.close()
            if self._has_exit_code:
                exit_when_only_stuck_is_left(self.root.loop, self.settings.cleanup)

    def _tell_the_rest(self) -> None:
        """Log the losses that the stop has not logged, because it was cut short or there was no stop."""
        requests, rest = self.requests.report, self.root.report
        if self.report is None and requests is not None and (self.draining or not requests.ok):
            self._conclude(requests)
            rest = self.lifespan.report  # the root's report includes that of the requests
        if rest is not None and (rest.stuck or rest.failed):
            self.tell(rest)

    async def close_if_idle(self) -> None:
        """Close an app without a lifespan as soon as it has nothing in flight."""
        if self.exchanges or self.draining or self._closing_when_idle or self.requests.services:
            return  # services of a library keep the app open
        if self.requests.frontier():
            self._closing_when_idle = True
            self.root.spawn(self._close_when_idle, name="close when idle", service=True)
        else:
            await self.close()

    async def _close_when_idle(self) -> None:
        await self.requests.idle()
        self._closing_when_idle = False
        await self.close_if_idle()
