"""Signatures of pushes, so that a receiver can check which server has sent a push.

The A2A specification names signatures as one way to authenticate, and leaves their format open. This
module uses the format of Standard Webhooks (standardwebhooks.com): an HMAC over an id, the time, and the
body. Most languages have a library for it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from quiesce.core import arguments
from quiesce.errors import ArgumentError

__all__ = ["HmacSigner", "PushRequest"]

_PREFIX = "whsec_"
_SECRET_BYTES_MIN = 24  # the minimum of Standard Webhooks
_TIME_DIGITS_MAX = 15


@dataclass(frozen=True)
class PushRequest:
    """One attempt to deliver a push: the argument of a `sign` function."""

    task_id: str
    url: str
    id: str
    """The push's id, the same at every attempt; receivers see it in `X-Quiesce-Push`."""
    body: bytes
    """The body, byte for byte as it is sent."""


Sign: TypeAlias = Callable[[PushRequest], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""A function that returns the headers that sign a push; the sender calls it at each attempt."""


class HmacSigner:
    """Signs pushes with a secret that the receiver has too, and verifies these signatures.

    ```python
    sender = DurablePushSender("pushes.db", sign=HmacSigner(secret))  # the server
    HmacSigner(secret).verifies(request.headers, await request.body())  # the receiver
    ```

    A receiver that knows a secret can sign with it too. So use a separate secret for each receiver, with a
    `sign` function that chooses the signer.

    Args:
        secrets: At least 24 bytes each, or strings of `whsec_` and base64. A push is signed with
            each secret, and the receiver needs only one of them. To change a secret, pass the old and
            the new secret for a while.
        clock: Returns the seconds since 1970.

    *Raises*: `ArgumentError` if a secret is not valid.
    """

    def __init__(self, *secrets: str | bytes, clock: Callable[[], float] = time.time) -> None:
        if not secrets:
            message = "HmacSigner() has no secret: pass one, such as secrets.token_bytes(32)"
            raise ArgumentError(message)
        self._keys = tuple(_key(secret) for secret in secrets)
        self._clock = clock

    def __call__(self, request: PushRequest) -> dict[str, str]:
        """Return the headers that sign a push now."""
        now = str(int(self._clock()))
        made = self._signatures(request.id, now, request.body)
        return {
            "webhook-id": request.id,
            "webhook-timestamp": now,
            "webhook-signature": " ".join(f"v1,{signature}" for signature in made),
        }

    def _signatures(self, push_id: str, when: str, body: bytes) -> list[str]:
        signed = f"{push_id}.{when}.".encode() + body
        return [
            base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
            for key in self._keys
        ]

    def verifies(self, headers: Mapping[str, str], body: bytes, *, within: float = 300.0) -> bool:
        """Return whether a push was signed with one of the secrets, at most `within` seconds ago.

        An attacker who has read a push can send it again within that time. So keep the `webhook-id` of
        each push for that time, and ignore a push whose id you have seen. The sender's own retries have
        the same id.

        Args:
            headers: The headers of the request; their names in upper or lower case.
            body: The body of the request, byte for byte.
            within: How many seconds the time of the signature may differ from the clock.
        """
        found = {name.lower(): value for name, value in headers.items()}
        when = found.get("webhook-timestamp", "")
        if not (when.isascii() and when.isdigit() and len(when) <= _TIME_DIGITS_MAX):
            return False
        if abs(self._clock() - int(when)) > arguments.seconds("within", within):
            return False
        wanted = self._signatures(found.get("webhook-id", ""), when, body)
        given = [
            signature.encode()
            for version, _, signature in (
                part.partition(",") for part in found.get("webhook-signature", "").split()
            )
            if version == "v1"
        ]
        return any(hmac.compare_digest(one.encode(), other) for one in wanted for other in given)


def _key(secret: str | bytes) -> bytes:
    if isinstance(secret, str):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not secret.startswith(_PREFIX) or not key:
            message = f"the secret is not valid: pass bytes, or a string of {_PREFIX!r} and base64"
            raise ArgumentError(message)
    else:
        key = bytes(secret)
    if len(key) < _SECRET_BYTES_MIN:
        message = (
            f"the secret has {len(key)} bytes, and needs at least {_SECRET_BYTES_MIN}: make one with"
            " secrets.token_bytes(32)"
        )
        raise ArgumentError(message)
    return key
