"""`guard`: a context manager that fails if its block leaves something behind."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import anyio

from quiesce.core.platform_check import check_posix
from quiesce.core.python_private import running_loop
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
_POLLS_MIN = 5  # the event loop turns at least twice in each
_FULL = 2


class guard:  # noqa: N801 - named like a function, as is `contextlib.suppress`
    """Fail at the end of the block if something is left that did not exist at its beginning.

    Finds tasks, async generators, threads, child processes, file descriptors, unix socket files,
    open scopes and handlers that are left. Also finds tasks that were collected while they ran,
    exceptions that were never retrieved, and coroutines that were never awaited.

    ```python
    with guard():
        asyncio.run(main())


    async def test_server():
        async with guard(allow=["thread:*"]):
            ...
    ```

    Both forms work everywhere. Inside a running event loop use `async with`: it lets the loop turn
    and marks leftovers that are gone moments later as late. `with` cannot let a running loop turn,
    and marks none there. If the block raises, its exception is passed on with the leftovers in a note.

    Args:
        allow: patterns of tolerated leftovers, as in `"thread:worker"`, `"task:acp.*"`, `"file:*"`.
        kinds: the kinds of things to look for; all by default.
        settle: how many seconds leftovers have to disappear, once some are found.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] = (),
        kinds: Collection[Kind] = KINDS,
        settle: float = _SETTLE_SECONDS,
    ) -> None:
        """Check the arguments; see the class."""
        check_posix("guard()")
        check_guard(allow, kinds, settle)
        self._allow = allow
        self._kinds = kinds
        self._settle = settle
        self._census: Census | None = None

    def __enter__(self) -> Self:
        """Record what exists now."""
        if self._census is not None:
            message = "this guard is already in use: make one for each block"
            raise UsageError(message)
        gc.collect()  # older leftovers must not be blamed on the block
        self._census = Census(kinds=self._kinds, allow=self._allow, settle=self._settle)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """Look at what is left; wait for some of it to go if no event loop runs here.

        Raises:
            LeakError: something was left, and the block did not raise.
        """
        census = self._taken()
        with census:
            seconds = self._settle if error is None and _may_block() else 0.0
            found = census.settled(seconds, collect=_FULL)
        raise_findings(found, error)

    async def __aenter__(self) -> Self:
        """Record what exists now."""
        return self.__enter__()

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """Look at what is left; if something is left, let the event loop turn and look again.

        *Cancel safety*: if cancelled while waiting, the cancellation carries the leftovers in a note.

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
                    # Perhaps a leftover has cancelled this task.
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
            # A busy machine lets time pass without letting the loop turn, so the turns are counted too.
            if anyio.current_time() >= deadline and (polls >= _POLLS_MIN or not self._settle):
                break
            await anyio.sleep(_POLL_SECONDS)
            found, polls = census.look(collect=None), polls + 1
        return found

    def _taken(self) -> Census:
        census, self._census = self._census, None
        if census is None:
            message = "this guard was left without being entered: use `with guard():`"
            raise UsageError(message)
        return census


def check_guard(allow: Sequence[str], kinds: Collection[Kind], settle: float) -> None:
    """Raise `ArgumentError` for options that cannot work."""
    if isinstance(allow, str):
        message = f"allow takes a list of patterns, as in [{allow!r}]"
        raise ArgumentError(message)
    for pattern in allow:
        kind, colon, _ = pattern.partition(":")
        if not colon or (kind not in KINDS and not set(kind) & set("*?[")):
            message = (
                f"allow: {pattern!r} is not a pattern of the form kind:name; kinds: {_words(KINDS)}"
            )
            raise ArgumentError(message)
    if isinstance(kinds, str) or not KINDS.issuperset(kinds):
        message = f"kinds takes some of {_words(KINDS)}, not {kinds!r}"
        raise ArgumentError(message)
    if not 0 <= settle < float("inf"):
        message = f"settle takes seconds, 0 or more, not {settle!r}"
        raise ArgumentError(message)


def raise_findings(found: Sequence[Finding], error: BaseException | None) -> None:
    """Raise a `LeakError` with the findings, or add them as a note to the block's error."""
    if not found:
        return
    leak = LeakError(found)
    if error is None:
        raise leak
    error.add_note(f"quiesce guard: {leak}")


def _may_block() -> bool:
    """Return whether no event loop runs in this thread."""
    return running_loop() is None and trio_tasks.running_trio() is None


def _words(kinds: Collection[str]) -> str:
    return ", ".join(sorted(kinds))
