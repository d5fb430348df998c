"""A block that fails if something is left behind."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.errors import ArgumentError, LeakError, UsageError
from quiesce.testing.leaks import trio_tasks
from quiesce.testing.leaks.census import Census, census_verdict, may_go
from quiesce.testing.leaks.findings import KINDS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import TracebackType
    from typing import Self

    from quiesce.testing.leaks.findings import Finding, Kind

_SETTLE_SECONDS = 0.1
_POLL_SECONDS = 0.002
_POLLS_MIN = 5  # in each of which the event loop turns twice or more
_FULL = 2


class guard:  # noqa: N801 - it reads as what it does, like `contextlib.suppress`
    """Fail at the end of the block if something is left that was not there at its beginning.

    Finds tasks, async generators, threads, child processes, file descriptors, unix socket files,
    open scopes and handlers that are left; also tasks that were collected while they ran, failures
    that nobody asked for, and coroutines that were never awaited.

    ```python
    with guard():
        asyncio.run(main())


    async def test_server():
        async with guard(allow=["thread:*"]):
            ...
    ```

    Both forms work everywhere. Inside a running event loop use `async with`: it lets the loop turn,
    to tell what is gone moments later from what is still there. `with` cannot, and calls all of it
    still there. If the block raises, that goes on, with what was left as a note.

    Args:
        allow: patterns of what may be left, as in `"thread:worker"`, `"task:acp.*"`, `"file:*"`.
        kinds: the sorts of things to look for; all, unless told.
        settle: the seconds given to what is left to be gone, once something is found.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        kinds: Collection[Kind] = KINDS,
        settle: float = _SETTLE_SECONDS,
    ) -> None:
        """See the class."""
        check_guard(allow, kinds, settle)
        self._allow = allow
        self._kinds = kinds
        self._settle = settle
        self._census: Census | None = None

    def __enter__(self) -> Self:
        """Look at what is there."""
        if self._census is not None:
            message = "this guard is already in use: make one for each block"
            raise UsageError(message)
        gc.collect()  # what was left before is not to blame on the block
        self._census = Census(kinds=self._kinds, allow=self._allow, settle=self._settle)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """Look at what is left; waits for some of it, if no event loop runs here.

        Raises:
            LeakError: something was left, and the block did not raise.
        """
        census = self._taken()
        with census:
            seconds = self._settle if error is None and _may_block() else 0.0
            found = census.settled(seconds, collect=_FULL)
        raise_findings(found, error)

    async def __aenter__(self) -> Self:
        """Look at what is there."""
        return self.__enter__()

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """Look at what is left, and let the event loop turn if there is something.

        Cancel safety: if it is cancelled while it waits, what was left is a note of that.

        Raises:
            LeakError: something was left, and the block did not raise.
        """
        census = self._taken()
        with census:
            first = census.look(collect=_FULL)
            if error is None:
                try:
                    second = await self._second(census, first)
                except BaseException as interruption:
                    # Perhaps it was what is left that has cancelled us.
                    raise_findings(list(first.values()), interruption)
                    raise
                found = census.without_others(census_verdict(first, second))
            else:
                found = list(first.values())
        raise_findings(found, error)

    async def _second(self, census: Census, first: dict[Any, Finding]) -> dict[Any, Finding]:
        found, polls = first, 0
        deadline = anyio.current_time() + self._settle
        while any(may_go(key) for key in found):
            # A machine that is held up lets the time pass, but not the loop turn: that is counted as well.
            if anyio.current_time() >= deadline and (polls >= _POLLS_MIN or not self._settle):
                break
            await anyio.sleep(_POLL_SECONDS)
            found, polls = census.look(collect=None), polls + 1
        return found

    def _taken(self) -> Census:
        census, self._census = self._census, None
        if census is None:
            message = "this guard was not entered"
            raise UsageError(message)
        return census


def check_guard(allow: Sequence[str], kinds: Collection[Kind], settle: float) -> None:
    """Refuse what cannot work."""
    if isinstance(allow, str):
        message = f"allow takes a list of patterns, as in [{allow!r}]"
        raise ArgumentError(message)
    for pattern in allow:
        kind, colon, _ = pattern.partition(":")
        if not colon or (kind not in KINDS and not set(kind) & set("*?[")):
            message = f"allow: {pattern!r} is no pattern of kind:name; kinds: {_words(KINDS)}"
            raise ArgumentError(message)
    if isinstance(kinds, str) or not KINDS.issuperset(kinds):
        message = f"kinds takes some of {_words(KINDS)}, not {kinds!r}"
        raise ArgumentError(message)
    if not 0 <= settle < float("inf"):
        message = f"settle takes seconds, 0 or more, not {settle!r}"
        raise ArgumentError(message)


def raise_findings(found: Sequence[Finding], error: BaseException | None) -> None:
    """Raise what was found, or add it to what was raised."""
    if not found:
        return
    leak = LeakError(found)
    if error is None:
        raise leak
    error.add_note(f"quiesce guard: {leak}")


def _may_block() -> bool:
    """Return whether no event loop runs in this thread."""
    return asyncio._get_running_loop() is None and trio_tasks.running_trio() is None


def _words(kinds: Collection[str]) -> str:
    return ", ".join(sorted(kinds))
