"""Recovery at a start: ends the tasks, and sends the pushes, that an earlier process has left.

The request handler runs it when it opens.
"""

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
LOST = "The server process died before the task had ended."


@dataclass(frozen=True)
class Recovery:
    """The tasks and pushes of an earlier process, and what this start has done with them."""

    failed: tuple[str, ...] = ()
    """Ids of the tasks that had not ended, and are FAILED now."""
    parked: tuple[str, ...] = ()
    """Ids of the tasks that wait for their client, which may continue them on this server."""
    pushes: int = 0
    """The number of pushes that were not delivered, and are being sent now."""


async def recover(store: TellingStore, pushes: Pushes) -> Recovery:
    """End the tasks of an earlier process, and send its undelivered pushes.

    Each task's undelivered pushes are sent before the push of its end.
    """
    sender = pushes.sender
    if sender is None or not sender.outbox.durable:
        return Recovery()
    notes = await sender.outbox.unfinished()
    pushes.recall(notes)
    waiting = await _pushes_of_stored_states(
        await sender.outbox.pending(), store, pushes, sender.outbox
    )
    pushes.send(waiting)
    failed: list[str] = []
    parked: list[str] = []
    done: list[str] = []
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
            done.append(note.task_id)
    pushes.disown(done)
    await sender.outbox.forget(done)
    if failed or waiting:
        _log.warning(
            "an earlier process died: %d tasks that it left are FAILED now, and %d pushes are sent",
            len(failed), len(waiting),
        )  # fmt: skip
    return Recovery(tuple(failed), tuple(parked), len(waiting))


async def _pushes_of_stored_states(
    found: list[Push], store: TellingStore, pushes: Pushes, outbox: Outbox
) -> list[Push]:
    """Return the pushes without those of states that were never stored.

    A push is written before its state. So the process may have died before it stored the last state of a
    task whose push is in the outbox.
    """
    last = {push.task_id: push.status for push in found if push.status}
    unstored: dict[str, str] = {}
    for task_id, status in last.items():
        context = pushes.context(task_id)
        task = await store.get(task_id, context)
        task = getattr(task, "task", task)
        if task is None or versions.status_mark(task.status) != status:
            unstored[task_id] = status
    kept = []
    for push in found:
        if push.status and unstored.get(push.task_id) == push.status:
            await outbox.sent(push)
        else:
            kept.append(push)
    return kept
