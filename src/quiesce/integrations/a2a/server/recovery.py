"""What is done at a start about what the process before has left."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiesce.integrations.a2a import versions
from quiesce.integrations.a2a.server.shutdown import end_task

if TYPE_CHECKING:
    from quiesce.integrations.a2a.push.push_outbox import Outbox, Push
    from quiesce.integrations.a2a.push.push_sender import Pushes
    from quiesce.integrations.a2a.server.task_store import TellingStore

__all__ = ["Recovery"]

_log = logging.getLogger("quiesce.a2a")
LOST = "The server stopped, without a chance to end the task, before it had ended."


@dataclass(frozen=True)
class Recovery:
    """What a process has left, and its successor has seen to."""

    failed: tuple[str, ...] = ()
    """Tasks that had no terminal state, and have one now."""
    parked: tuple[str, ...] = ()
    """Tasks that wait for their client: it may go on with them here."""
    pushes: int = 0
    """Pushes that were not delivered, and are on their way."""


async def recover(store: TellingStore, pushes: Pushes) -> Recovery:
    """End the tasks that no process owns, and send what was not delivered; in that order for each task."""
    sender = pushes.sender
    if sender is None or not sender.outbox.durable:
        return Recovery()
    notes = await sender.outbox.unfinished()
    pushes.recall(notes)
    waiting = await _true_ones(await sender.outbox.pending(), store, pushes, sender.outbox)
    pushes.send(waiting)
    failed: list[str] = []
    parked: list[str] = []
    over: list[str] = []
    for note in notes:
        context = versions.context_of(note.user, note.tenant)
        if await end_task(store, note.task_id, context, LOST):
            failed.append(note.task_id)
            continue
        task = await store.get(note.task_id, context)
        task = getattr(task, "task", task)
        if task is not None and task.status.state in versions.PARKED:
            parked.append(note.task_id)
        else:
            over.append(note.task_id)
    pushes.disown(over)
    await sender.outbox.forget(over)
    if failed or waiting:
        _log.warning("%d tasks were left behind, and %d pushes", len(failed), len(waiting))
    return Recovery(tuple(failed), tuple(parked), len(waiting))


async def _true_ones(
    found: list[Push], store: TellingStore, pushes: Pushes, outbox: Outbox
) -> list[Push]:
    """Leave out the pushes of states that were never stored.

    A push is written before its state: of each task, the last status may be one that the process
    did not live to store.
    """
    last = {push.task_id: push.status for push in found if push.status}
    wrong: dict[str, str] = {}
    for task_id, status in last.items():
        context = pushes.context(task_id)
        task = await store.get(task_id, context)
        task = getattr(task, "task", task)
        if task is None or versions.status_mark(task.status) != status:
            wrong[task_id] = status
    kept = []
    for push in found:
        if push.status and wrong.get(push.task_id) == push.status:
            await outbox.sent(push)
        else:
            kept.append(push)
    return kept
