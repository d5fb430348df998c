"""The life of a replica beside others: its heartbeats, the notices it gets, and what it inherits from the dead.

1. A heartbeat counts from its sending: the replica believes in its lease for less time than the others do.
2. A replica is declared dead only with a proof (see `replica_identity`). Then one living replica of the agent inherits
   its rows, and the notices for it. If that one dies as well, the next one inherits from both.
3. Notices are read after each wake-up, and every second without one.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from quiesce.core.tree import logger
from quiesce.errors import ReplicaBuried, StoreLost
from quiesce.mesh.store.replica_identity import proof_of_death
from quiesce.mesh.store.shared_store import describe_replica

if TYPE_CHECKING:
    from collections.abc import Callable

    from quiesce.mesh.store.fence import Fence
    from quiesce.mesh.store.rows import EdgeRow, Notice, Replica
    from quiesce.mesh.store.shared_store import SharedStore

__all__: list[str] = []

BEATS = 3  # in a lease
_READ_SECONDS = 1.0
_PRUNE_SECONDS = 300.0
_PRUNE_MOST = 1000
_FORGET_SECONDS = 3600.0


def _now_of_leases() -> float:
    """Return the time by a clock that goes on while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class ReplicaWatch:
    """What one incarnation does for the others, and hears of them.

    Args:
        store: The store of this incarnation.
        hear: A function that gets the notices for this incarnation, and handles them in one step.
        adopt: A function that gets the rows of a dead incarnation, and owns them from then on.
        fence: What ends this process before its lease does; None if nothing does.
    """

    def __init__(
        self,
        store: SharedStore,
        hear: Callable[[list[Notice]], None],
        adopt: Callable[[list[EdgeRow]], None],
        fence: Fence | None = None,
    ) -> None:
        """Prepare; the tasks are `beat`, `listen` and `read`."""
        self._store = store
        self._database = store.database
        self._own = store.replica
        self._hear = hear
        self._adopt = adopt
        self._fence = fence
        self._estates: list[str] = []  # dead incarnations that this one inherits from
        self._unread: list[str] = []  # those whose rows are still to be read
        self._seen: set[int] = set()  # notices that were handled, and may still be in the store
        self._news = anyio.Event()
        self._prune_at = 0.0
        self._states: dict[str, str] = {}
        self.on_change: Callable[[Replica], None] = lambda _: None
        """Called with another replica that is seen for the first time, or is gone."""

    # Heartbeats.

    async def beat(self) -> None:
        """Send heartbeats, and look after the other replicas, until cancelled."""
        every = self._own.lease / BEATS
        while self._store.buried is None:
            began = anyio.current_time()
            sent = _now_of_leases()
            try:
                await self._database.beat(self._own.incarnation)
                self._extend(sent)
                await self.look()
                await self._tidy()
            except StoreLost as error:
                logger.debug("replica %s: %s", self._own.name, error)
            except ReplicaBuried as error:
                self._store.bury(error)
                return
            await anyio.sleep(max(0.0, began + every - anyio.current_time()))

    def _extend(self, sent: float) -> None:
        """Extend the lease, which counts from the sending of the heartbeat (1)."""
        if self._fence is not None:
            self._fence.kill_in(sent + self._own.lease - _now_of_leases())

    async def _tidy(self) -> None:
        """Remove rows and replicas that are not needed any more, now and then."""
        now = time.monotonic()
        if now < self._prune_at:
            return
        self._prune_at = now + _PRUNE_SECONDS
        while await self._database.prune(time.time(), _PRUNE_MOST) == _PRUNE_MOST:
            pass
        for one in await self._database.replicas(self._own.agent):
            if (
                one.state != "alive"
                and one.age > _FORGET_SECONDS
                and one.incarnation not in self._estates
                and not await self._has_left_something(one.incarnation)
            ):
                await self._database.forget(one.incarnation)

    async def _has_left_something(self, incarnation: str) -> bool:
        """Return whether there are rows or notices that its heir has not dealt with."""
        database = self._database
        return bool(await database.owned(incarnation) or await database.notices([incarnation]))

    # The dead.

    async def look(self, *, is_starting: bool = False) -> None:
        """Declare the replicas dead that are proven to be, and inherit from the dead."""
        replicas = await self._database.replicas(self._own.agent)
        for place, one in enumerate(replicas):
            is_alive = one.state == "alive"
            why = self._proof(one, is_starting=is_starting) if is_alive else ""
            if why and await self._database.end(one.incarnation, is_dead=True, why=why):
                logger.warning("%s is dead: %s", describe_replica(one), why)
                replicas[place] = replace(one, state="dead", why=why)
        self._note_changes(replicas)
        alive = {one.incarnation for one in replicas if one.state == "alive"}
        for one in replicas:
            if one.state == "dead" and one.heir not in alive:
                await self._inherit(one)
        await self._read_estates()

    def _proof(self, one: Replica, *, is_starting: bool) -> str:
        is_local = self._database.is_one_machine
        return proof_of_death(one, self._own, is_starting=is_starting, is_one_machine=is_local)

    def _note_changes(self, replicas: list[Replica]) -> None:
        before, self._states = self._states, {one.incarnation: one.state for one in replicas}
        for one in replicas:
            known = before.get(one.incarnation)
            is_news = one.state == "alive" if known is None else known != one.state
            if is_news and one.incarnation != self._own.incarnation:
                self.on_change(one)

    async def _inherit(self, one: Replica) -> None:
        own = self._own.incarnation
        if await self._database.inherit(one.incarnation, own, one.heir):
            self._unread.append(one.incarnation)

    async def _read_estates(self) -> None:
        while self._unread:
            rows = await self._database.owned(self._unread[-1])
            self._adopt(rows)
            self._estates.append(self._unread.pop())
            self._news.set()  # its notices, which are about these rows

    # Notices.

    async def listen(self) -> None:
        """Hear of changes by other processes, until cancelled."""
        pause = 0.1
        while True:
            with suppress(StoreLost):
                await self._database.run(self._wake)
            await anyio.sleep(pause)

    def _wake(self) -> None:
        self._news.set()

    async def read(self) -> None:
        """Read the notices for this incarnation as they come, until cancelled."""
        while self._store.buried is None:
            with anyio.move_on_after(_READ_SECONDS):
                await self._news.wait()
            self._news = anyio.Event()
            try:
                found = await self._database.notices([self._own.incarnation, *self._estates])
            except StoreLost:
                await anyio.sleep(_READ_SECONDS)
                continue
            numbers = {one.number for one in found}
            fresh = [one for one in found if one.number not in self._seen]
            self._seen = numbers  # those that are still there will be removed with the next change
            if fresh:
                self._hear(fresh)
                self._store.handled(one.number for one in fresh)
