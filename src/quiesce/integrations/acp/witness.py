"""Observers: functions that see every message, as in the SDK."""

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
    """The observers of messages that do not pass through the SDK."""

    def __init__(self, observers: Sequence[Callable[[Any], Any]]) -> None:
        self._observers = list(observers)

    def tell(self, direction: StreamDirection, message: dict[str, Any]) -> None:
        event = StreamEvent(direction, copy.deepcopy(message))
        for observer in self._observers:
            try:
                told = observer(event)
            except Exception:  # noqa: BLE001 - an observer may raise anything
                logger.exception("an observer failed")
                continue
            if inspect.isawaitable(told):
                asyncio.ensure_future(_observed(told))  # noqa: RUF006 - the scope holds the task


async def _observed(told: Any) -> None:
    try:
        await told
    except Exception:  # noqa: BLE001 - likewise
        logger.exception("an observer failed")
