"""The A2A extension that puts the ids of an edge of a cascade into a message.

Over HTTP the ids travel in a header, as for any other request. They are in the message's metadata as well,
for gRPC and for proxies that remove unknown headers. Client (message_edges.py) and server (message_hops.py)
use this module. Rules:

1. Header and metadata have the same edge. A receiver that has read the header ignores the metadata.
2. The ids are secrets between the sender and one agent. The agent removes them before the message is
   stored, pushed or passed on. Ids that name another agent are ignored.
3. The metadata is sent only to agents whose card declares the extension.
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

_DESCRIPTION = "Says when all work that a message has led to is over, in every agent."
_IDS, _TO, _RECEIPTS = "cascade", "to", "receipts"


# The card.


def declare_cascades(card: Any, node: Node) -> Any:
    """Return a copy of a card that declares the extension, with the URL of this agent's receipts.

    `quiesce_app(..., node=node)` does this for you.
    """
    check_node(node)
    copy = versions.copied(card)
    params = {} if node.url is None else {_RECEIPTS: node.url + RECEIPTS}
    own = types.AgentExtension(
        uri=CASCADE_EXTENSION, description=_DESCRIPTION, required=False, params=params
    )
    others = [one for one in copy.capabilities.extensions or () if one.uri != CASCADE_EXTENSION]
    if versions.FIRST:
        del copy.capabilities.extensions[:]
        copy.capabilities.extensions.extend([*others, own])
    else:
        copy.capabilities.extensions = [*others, own]
    return copy


def urls_of(card: Any) -> list[str]:
    """Return the addresses at which an agent receives messages, the preferred address first."""
    if versions.FIRST:
        return [one.url for one in card.supported_interfaces]
    return [card.url, *(one.url for one in card.additional_interfaces or ())]


def node_of(card: Any, node: Node) -> str | None:
    """Return the address of an agent's node, if the agent's card declares one that this node may query.

    The card is not trusted, and the declared address is queried for receipts. So the address has to be at
    an interface of the agent, or a configured peer. When a message is sent, the address has to be at the
    message's destination as well (see `_Message.leaves`).
    """
    for one in card.capabilities.extensions or ():
        if one.uri == CASCADE_EXTENSION:
            found = _params(one).get(_RECEIPTS)
            if isinstance(found, str) and found.endswith(RECEIPTS):
                base = found.removesuffix(RECEIPTS)
                if is_near(base, urls_of(card)) or node.policy.allows(base):
                    return base
    return None


def _params(extension: Any) -> dict[str, Any]:
    found = _plain(extension.params)
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    """Return a metadata value as plain Python objects, as `json.loads` would return it."""
    if not versions.FIRST or not hasattr(value, "DESCRIPTOR"):
        return value
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - not in 0.3

    return MessageToDict(value)


def is_near(base: str, urls: list[str]) -> bool:
    """Return whether a node has the origin of one of these URLs, or the host of an address without a scheme (gRPC)."""
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
    """Return a copy of a message with the ids of its edge in the metadata (2)."""
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
    """Remove the ids from a message and return them (2); None without ids, or with ids for another agent.

    Args:
        message: the message, which is changed.
        own: the address of this agent's node; None if it has no address, and so no ids are for it.
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
