"""Those who want to see every message, as the SDK offers it: observers, and a store of requests."""

from __future__ import annotations

import asyncio
import copy
import inspect
from typing import TYPE_CHECKING, Any

from acp.connection import StreamDirection, StreamEvent

from quiesce.core.tree import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__: list[str] = []

INCOMING, OUTGOING = StreamDirection.INCOMING, StreamDirection.OUTGOING


class Witness:
    """What is told of the messages that do not pass through the SDK."""

    def __init__(self, observers: Sequence[Callable[[Any], Any]], store: Any) -> None:
        """Notify these functions, and this store (before 0.12 of the SDK)."""
        self._observers = list(observers)
        self._store = store
        self._records: dict[object, Any] = {}

    def incoming(self, message: dict[str, Any]) -> None:
        """Notify of a request or a notification."""
        self.tell(INCOMING, message)
        if self._store is not None and "id" in message and message["id"].__hash__:
            params = message.get("params")
            self._records[message["id"]] = self._store.begin_incoming(message["method"], params)

    def outgoing(self, message: dict[str, Any]) -> None:
        """Notify of an answer."""
        self.tell(OUTGOING, message)
        record = self._records.pop(message["id"], None)
        if record is None:
            return
        if "error" in message:
            self._store.fail_incoming(record, message["error"])
        else:
            self._store.complete_incoming(record, message["result"])

    def tell(self, direction: StreamDirection, message: dict[str, Any]) -> None:
        """Notify the functions of any message."""
        event = StreamEvent(direction, copy.deepcopy(message))
        for observer in self._observers:
            try:
                told = observer(event)
            except Exception:  # noqa: BLE001 - anything may come out of an observer
                logger.exception("an observer failed")
                continue
            if inspect.isawaitable(told):
                asyncio.ensure_future(_observed(told))  # noqa: RUF006 - the scope holds it


async def _observed(told: Any) -> None:
    try:
        await told
    except Exception:  # noqa: BLE001 - likewise
        logger.exception("an observer failed")
