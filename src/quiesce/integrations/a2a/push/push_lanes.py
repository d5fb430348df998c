"""The lanes by which pushes reach their receivers, one lane for each task and receiver.

`Pushes` (push_sender.py) puts pushes into the lanes.

1. A lane sends the pushes of one task to one receiver in order, each after the one before it. If a push
   is given up, it becomes a dead letter, and the lane goes on with the next push.
2. A slow receiver delays only its own lanes. All lanes of a receiver share a quarter of the connections.
3. A drain waits until every push was tried once. If a push fails during a drain, the lane leaves it and all
   pushes behind it in a durable outbox for the next start. With an outbox in memory, the lane retries until
   the deadline of the drain.
4. The number and the age of waiting pushes are limited. Beyond a limit, the oldest become dead letters.
5. An error of the outbox is logged, and delays no push.
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
_AFTER_SECONDS_MAX = 3600.0  # the longest `Retry-After` of a receiver that is respected
_SHARE = 4  # one receiver gets at most 1 / _SHARE of the connections


@dataclass(frozen=True)
class DeliveryRules:
    """How often a push is tried, and how many pushes may wait."""

    attempts_max: int
    keep_seconds: float
    pending_max: int
    backoff: Backoff
    connections: int


class Slots:
    """The limits of connections: for all receivers together, and for each receiver (2)."""

    def __init__(self, total: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._part = max(1, total // _SHARE)
        self._each: weakref.WeakValueDictionary[str, asyncio.Semaphore] = (
            weakref.WeakValueDictionary()
        )

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[None]:
        """Wait until a receiver may have one more connection, and hold its place inside the block."""
        own = self._each.get(name)
        if own is None:
            own = self._each[name] = asyncio.Semaphore(self._part)
        async with own, self._all:
            yield


class Lanes:
    """The pushes of one server that wait or are being sent."""

    def __init__(
        self,
        scope: Scope,
        outbox: Outbox,
        deliver: Callable[[Push], Awaitable[None]],
        rules: DeliveryRules,
    ) -> None:
        """Make the lanes; `deliver` sends one push, and raises `Refused` or `NotTaken` if that fails."""
        self._scope = scope
        self._outbox = outbox
        self._deliver_once = deliver
        self._rules = rules
        self._slots = Slots(rules.connections)
        self._lanes: dict[tuple[str, str], deque[Push]] = {}
        self._left: set[tuple[str, str]] = set()
        self._waiting: dict[str, Push] = {}
        self._draining = asyncio.Event()

    def send(self, pushes: Sequence[Push]) -> None:
        """Send pushes whose state is stored (1)."""
        for push in pushes:
            lane = (push.task_id, push.url)
            if lane in self._left:
                push.let_go()
                continue  # the lane has left an earlier push for the next start (3)
            self._waiting[push.id] = push
            waiting = self._lanes.get(lane)
            if waiting is not None:
                waiting.append(push)
                continue
            self._lanes[lane] = deque([push])
            self.spawn(self._run, lane, name=f"push {push.task_id}")
        self._give_up_excess()

    def spawn(self, call: Any, *args: Any, name: str) -> None:
        """Start a job in the server's scope, unless the scope is closed."""
        # If the scope is closed, the push stays in the outbox. A push is an edge and not work of its hop, so
        # the job is detached.
        with suppress(ScopeClosed), detached():
            self._scope.spawn(call, *args, name=name)

    def drain(self) -> None:
        """Leave failing pushes for the next start, if the outbox is durable (3)."""
        self._draining.set()

    def _give_up_excess(self) -> None:
        """Move the oldest waiting pushes to the dead letters if too many wait (4)."""
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
        """Deliver a push, or give it up; return False if it is left for the next start (3)."""
        while push.stage != OVER:
            error = await self._attempt(push)
            if push.stage == OVER:
                break
            if error is None:
                await self._change_outbox(self._outbox.sent(push))
                return True
            push.attempts += 1
            if self._is_hopeless(push, error):
                await self._give_up(push, str(error))
                return True
            _log.info("push of task %s to %s failed: %s", push.task_id, receiver(push.url), error)
            await self._change_outbox(self._outbox.failed(push, str(error)))
            if not await self._back_off(push, error):
                return False
        return True

    async def _attempt(self, push: Push) -> Refused | NotTaken | None:
        async with self._slots.take(receiver(push.url)):
            if push.stage == OVER:
                return None
            push.stage = TRYING
            try:
                await self._deliver_once(push)
            except (Refused, NotTaken) as error:
                return error
            except Exception as error:  # noqa: BLE001 - one push must not delay the pushes behind it
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
        _log.error(
            "push of task %s to %s given up after %d attempts: %s", push.task_id,
            receiver(push.url), push.attempts, why,
        )  # fmt: skip
        push.over()
        await self._change_outbox(self._outbox.dead(push, why))

    async def _change_outbox(self, change: Awaitable[None]) -> None:
        """Change the outbox; an error is logged (5)."""
        try:
            await change
        except Exception:  # noqa: BLE001 - logged; at worst, the next start sends a push again
            _log.exception(
                "the outbox was not changed; the next start may send a push again that has arrived"
            )

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
