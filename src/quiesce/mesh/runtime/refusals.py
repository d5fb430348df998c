"""The errors for messages that a node does not work on, with the answers to their senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.tree import ScopeState
from quiesce.errors import EdgeRefused
from quiesce.mesh.protocol import codec
from quiesce.mesh.protocol.facts import NOT_NOW, WORKING
from quiesce.mesh.protocol.receipt import edge_mark

if TYPE_CHECKING:
    from quiesce.mesh.protocol.facts import Answer
    from quiesce.mesh.runtime.open_node import OpenNode

__all__: list[str] = []

_COPY = "it is a copy of a message that this agent took before. The first one counts, and nothing is lost"
_REFUSED = "it is a copy of a message that this agent refused for good, and never worked on: send a new message"


def not_worked_on(
    opened: OpenNode,
    handed: codec.Handed,
    answer: Answer,
    why: str | None,
    *,
    is_told: bool = False,
) -> EdgeRefused:
    """Return the error for a message that is not worked on.

    Args:
        opened: The node.
        handed: The message.
        answer: What the node tells its sender.
        why: Why it is refused; None for a copy.
        is_told: Whether other code refuses it, such as a server that is being drained.
    """
    is_draining = is_told or opened.scope_of_hops.phase is not ScopeState.OPEN
    known = opened.engine.known.find(handed.edge)
    # Another replica that works on the message may not post its receipt.
    must_ask = known.reply is None if known is not None else answer is WORKING
    header = codec.response_header(handed.edge, answer, must_ask=must_ask)
    is_refused = answer.kind in {"never", "not now"}  # or a copy of an accepted message
    if not is_refused or why is None:
        why = _REFUSED if is_refused else _COPY
    text = f"message {edge_mark(handed.edge)} is not worked on: {why}"
    return EdgeRefused(text, header, is_busy=is_draining and is_refused)


def busy(opened: OpenNode, handed: codec.Handed) -> EdgeRefused:
    """Return a temporary refusal. The node keeps nothing of the message, so it may accept a copy later."""
    must_ask = opened.node.keeps_records  # else it could not answer later
    header = codec.response_header(handed.edge, NOT_NOW, must_ask=must_ask)
    text = (
        f"message {edge_mark(handed.edge)} is not worked on: {opened.node.hops_max} messages are already being processed,"
        " and hops_max allows no more: send it again later"
    )
    return EdgeRefused(text, header, is_busy=True)
