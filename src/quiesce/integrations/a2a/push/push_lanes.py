"""How pushes get to their receivers: in lanes, one for each task and receiver.

1. To one receiver, the pushes of one task are sent one after the other, in order. A push that is
   given up is a dead letter, and the next one is tried.
2. Only the lane waits for a receiver; and a receiver that does not answer has a part of the
   connections, not all of them.
3. A drain waits for every push that was not tried yet. One that has failed stays in a durable outbox
   for the next start, and so does what is behind it; an outbox in memory tries until the deadline.
4. What waits has a bound, by number and by age; beyond, the oldest become dead letters.
5. An outbox that fails is logged, and holds up nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import weakref
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quiesce.core.current import detached
from quiesce.errors import ScopeClosed
from quiesce.integrations.a2a.push.push_outbox import OVER, TRYING, WAITING
from quiesce.integrations.a2a.push.push_post import NotTaken, Refused, receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from quiesce.core.scope import Scope
    from quiesce.integrations.a2a.push.push_outbox import Outbox, Push
    from quiesce.pool.backoff import Backoff

__all__: list[str] = []

_log = logging.getLogger("quiesce.a2a")
_AFTER_SECONDS_MAX = 3600.0  # for which a receiver may ask to be left alone
_SHARE = 4  # one receiver has at most this part of the connections


@dataclass(frozen=True)
class DeliveryRules:
    """How often a push is tried, and how much may wait."""

    attempts_max: int
    keep_seconds: float
    pending_max: int
    backoff: Backoff
    connections: int


class Slots:
    """The connections: so many in all, and a part of them for each receiver (2)."""

    def __init__(self, total: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._part = max(1, total // _SHARE)
        self._each: weakref.WeakValueDictionary[str, asyncio.Semaphore] = (
            weakref.WeakValueDictionary()
        )

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[None]:
        """Wait for a free place of a receiver, and for one of all, and hold both inside of the block."""
        own = self._each.get(name)
        if own is None:
            own = self._each[name] = asyncio.Semaphore(self._part)
        async with own, self._all:
            yield


class Lanes:
    """The pushes of one server that are on their way."""

    def __init__(
        self,
        scope: Scope,
        outbox: Outbox,
        deliver: Callable[[Push], Awaitable[None]],
        rules: DeliveryRules,
    ) -> None:
        """Send with `deliver`, which raises `Refused` or `NotTaken`."""
        self._scope = scope
        self._outbox = outbox
        self._call = deliver
        self._rules = rules
        self._slots = Slots(rules.connections)
        self._lanes: dict[tuple[str, str], deque[Push]] = {}
        self._left: set[tuple[str, str]] = set()
        self._waiting: dict[str, Push] = {}
        self._draining = asyncio.Event()

    def send(self, pushes: Sequence[Push]) -> None:
        """Send what tells of a state that is stored by now (1)."""
        for push in pushes:
            lane = (push.task_id, push.url)
            if lane in self._left:
                push.let_go()
                continue  # behind one that is left for the next start, so is this (3)
            self._waiting[push.id] = push
            waiting = self._lanes.get(lane)
            if waiting is not None:
                waiting.append(push)
                continue
            self._lanes[lane] = deque([push])
            self.spawn(self._run, lane, name=f"push {push.task_id}")
        self._bound()

    def spawn(self, call: Any, *args: Any, name: str) -> None:
        """Start a job of the server's."""
        # If it is too late, what it was about stays in the outbox. A push is an edge, not work of its hop.
        with suppress(ScopeClosed), detached():
            self._scope.spawn(call, *args, name=name)

    def drain(self) -> None:
        """Leave what keeps failing for the next start, if there the outbox still is (3)."""
        self._draining.set()

    def _bound(self) -> None:
        """Drop the oldest push that waits, if too many do (4)."""
        excess = len(self._waiting) - self._rules.pending_max
        if excess <= 0:
            return
        idle = (push for push in self._waiting.values() if push.stage == WAITING)
        for push in list(itertools.islice(idle, excess)):
            push.stage = OVER
            del self._waiting[push.id]
            why = f"more than {self._rules.pending_max} pushes were waiting"
            self.spawn(self._give_up, push, why, name=f"give up a push of {push.task_id}")

    async def _run(self, lane: tuple[str, str]) -> None:
        waiting = self._lanes[lane]
        try:
            while waiting:
                if not await self._deliver(waiting[0]):
                    self._left.add(lane)
                    return
                push = waiting.popleft()
                self._waiting.pop(push.id, None)
                push.let_go()
        finally:
            del self._lanes[lane]
            for push in waiting:
                self._waiting.pop(push.id, None)
                push.let_go()

    async def _deliver(self, push: Push) -> bool:
        """Deliver a push, or give it up; False if it is left for the next start (3)."""
        while push.stage != OVER:
            error = await self._attempt(push)
            if push.stage == OVER:
                break
            if error is None:
                await self._kept(self._outbox.sent(push))
                return True
            push.attempts += 1
            if self._is_hopeless(push, error):
                await self._give_up(push, str(error))
                return True
            _log.info("push of task %s to %s failed: %s", push.task_id, receiver(push.url), error)
            await self._kept(self._outbox.failed(push, str(error)))
            if not await self._back_off(push, error):
                return False
        return True

    async def _attempt(self, push: Push) -> Refused | NotTaken | None:
        async with self._slots.take(receiver(push.url)):
            if push.stage == OVER:
                return None
            push.stage = TRYING
            try:
                await self._call(push)
            except (Refused, NotTaken) as error:
                return error
            except Exception as error:  # noqa: BLE001 - one push must not hold up those behind it
                return NotTaken(type(error).__name__)
            finally:
                push.stage = WAITING
        return None

    def _is_hopeless(self, push: Push, error: Refused | NotTaken) -> bool:
        return (
            isinstance(error, Refused)
            or push.attempts >= self._rules.attempts_max
            or time.time() - push.at >= self._rules.keep_seconds
        )

    async def _give_up(self, push: Push, why: str) -> None:
        _log.error("push of task %s to %s given up: %s", push.task_id, receiver(push.url), why)
        push.over()
        await self._kept(self._outbox.dead(push, why))

    async def _kept(self, change: Awaitable[None]) -> None:
        """Change the outbox, if it can be changed (5)."""
        try:
            await change
        except Exception:  # noqa: BLE001 - logged; at worst, a push comes again at the next start
            _log.exception("the outbox could not be changed")

    async def _back_off(self, push: Push, error: Refused | NotTaken) -> bool:
        wanted = min(getattr(error, "after", 0.0), _AFTER_SECONDS_MAX)
        delay = max(self._rules.backoff.delay(push.attempts), wanted)
        if not self._outbox.durable:
            await asyncio.sleep(delay)
            return True
        try:
            async with asyncio.timeout(delay):
                await self._draining.wait()
        except TimeoutError:
            return True
        return False
