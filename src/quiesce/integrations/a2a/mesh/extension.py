"""The extension of A2A by which a message says which edge of a cascade it is.

Over HTTP an edge travels in a header, as with any other request. It is in the message's metadata as well:
for gRPC, and for proxies that let no header through that they do not know. What holds:

1. Both say the same edge. A receiver that has read the one ignores the other.
2. The ids are for the one agent that the message is sent to, and are secrets: they are taken out of a
   message before it is stored, pushed or passed on, and count only with the agent that they name.
3. They are sent to agents whose card declares the extension, and to no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from a2a import types

from quiesce.integrations.a2a import versions
from quiesce.mesh.transport.address_policy import origin
from quiesce.mesh.transport.links import check_node
from quiesce.mesh.transport.node_transport import RECEIPTS

if TYPE_CHECKING:
    from quiesce.mesh.runtime.node import Node

__all__ = ["CASCADE_EXTENSION", "declare_cascades"]

CASCADE_EXTENSION = "urn:quiesce:cascade:00"
"""The URI of the extension; its last part is the version of the receipts protocol."""

_WHAT = "Says when all work that a message has led to is over, in every agent."
_IDS, _TO, _RECEIPTS = "cascade", "to", "receipts"


# The card.


def declare_cascades(card: Any, node: Node) -> Any:
    """Return a copy of a card that declares the extension, and where this agent's receipts are.

    `quiesce_app(..., node=node)` does it by itself.
    """
    check_node(node)
    copy = versions.copied(card)
    params = {} if node.url is None else {_RECEIPTS: node.url + RECEIPTS}
    own = types.AgentExtension(
        uri=CASCADE_EXTENSION, description=_WHAT, required=False, params=params
    )
    others = [one for one in copy.capabilities.extensions or () if one.uri != CASCADE_EXTENSION]
    if versions.FIRST:
        del copy.capabilities.extensions[:]
        copy.capabilities.extensions.extend([*others, own])
    else:
        copy.capabilities.extensions = [*others, own]
    return copy


def urls_of(card: Any) -> list[str]:
    """Return the addresses at which an agent takes messages, the preferred one first."""
    if versions.FIRST:
        return [one.url for one in card.supported_interfaces]
    return [card.url, *(one.url for one in card.additional_interfaces or ())]


def node_of(card: Any, node: Node) -> str | None:
    """Return the address of the node of an agent, if its card declares one that may be asked.

    The card is the agent's word, and what it names is asked for receipts. So it has to be at an interface of the
    agent, or a configured peer; and, when a message is sent, where that is sent (see `_Message.leaves`).
    """
    for one in card.capabilities.extensions or ():
        if one.uri == CASCADE_EXTENSION:
            found = _params(one).get(_RECEIPTS)
            if isinstance(found, str) and found.endswith(RECEIPTS):
                base = found.removesuffix(RECEIPTS)
                if is_near(base, urls_of(card)) or node._policy.allows(base):
                    return base
    return None


def _params(extension: Any) -> dict[str, Any]:
    found = _plain(extension.params)
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    """Return what JSON would have."""
    if not versions.FIRST or not hasattr(value, "DESCRIPTOR"):
        return value
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - not in 0.3

    return MessageToDict(value)


def is_near(base: str, urls: list[str]) -> bool:
    """Return whether a node is at the origin of one of these; of gRPC's, which have none, at the host."""
    own = origin(base)
    if own is None:
        return False
    for url in urls:
        if origin(url) == own:
            return True
        host = None if "://" in url else origin(f"http://{url}")
        if host is not None and host[1] == own[1]:
            return True
    return False


# The message.


def with_ids(message: Any, header: str, to: str) -> Any:
    """Return a copy of a message that has the ids of its edge (2)."""
    ids = {_IDS: header, _TO: to}
    copy = versions.copied(message)
    if versions.FIRST:
        copy.metadata[CASCADE_EXTENSION] = ids
        if CASCADE_EXTENSION not in copy.extensions:
            copy.extensions.append(CASCADE_EXTENSION)
    else:
        copy.metadata = (copy.metadata or {}) | {CASCADE_EXTENSION: ids}
        copy.extensions = list(dict.fromkeys([*(copy.extensions or ()), CASCADE_EXTENSION]))
    return copy


def take_ids(message: Any, own: str | None) -> str | None:
    """Take the ids out of a message (2); None if it has none, or those of another agent.

    Args:
        message: it has them no more afterwards.
        own: the address of this agent's node; one that has none is sent none.
    """
    metadata = message.metadata
    if not metadata or CASCADE_EXTENSION not in metadata:
        return None
    ids = _plain(metadata[CASCADE_EXTENSION])
    del metadata[CASCADE_EXTENSION]
    if not isinstance(ids, dict) or own is None or ids.get(_TO) != own:
        return None
    header = ids.get(_IDS)
    return header if isinstance(header, str) else None
