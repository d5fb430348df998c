"""Signatures of pushes, for receivers that want to know who sends them.

The A2A specification names signatures as one way to authenticate, and leaves their form open. Ours
is that of Standard Webhooks (standardwebhooks.com), which receivers in most languages have a
library for: an HMAC over an id, the time, and the body.
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
_SECRET_BYTES_MIN = 24  # as the standard has it
_TIME_DIGITS_MAX = 15


@dataclass(frozen=True)
class PushRequest:
    """One attempt to deliver a push, as a `sign` function gets it."""

    task_id: str
    url: str
    id: str
    """The same whenever the push comes again; receivers see it in `X-Quiesce-Push`."""
    body: bytes
    """What is sent, byte by byte."""


Sign: TypeAlias = Callable[[PushRequest], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""A function that returns the headers which sign a push; it is called at each attempt."""


class HmacSigner:
    """Signs pushes with a secret that their receiver has too, and tells whether one is signed.

    ```python
    sender = DurablePushSender("pushes.db", sign=HmacSigner(secret))  # the server
    HmacSigner(secret).verifies(request.headers, await request.body())  # the receiver
    ```

    A receiver that has a secret can sign with it: give each its own, with a `sign` that chooses.

    Args:
        secrets: At least 24 bytes each, or strings of `whsec_` and base64. A push is signed with
            each of them, and one is enough for its receiver: to change a secret, have both for a
            while.
        clock: Returns the seconds since 1970.

    *Raises*: `ArgumentError` if a secret is not valid.
    """

    def __init__(self, *secrets: str | bytes, clock: Callable[[], float] = time.time) -> None:
        """Take the secrets."""
        if not secrets:
            message = "a signer needs a secret"
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
        """Return whether a push was signed with one of the secrets, a short time ago.

        One that was overheard can be sent again within that time: keep the `webhook-id`s of that
        time, and leave out what comes twice, which an honest push may do as well.

        Args:
            headers: Those of the request, in any case.
            body: The body, as it came.
            within: How many seconds ago, or ahead, it may have been signed.
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
            message = f"a secret is bytes, or a string of {_PREFIX!r} and base64"
            raise ArgumentError(message)
    else:
        key = bytes(secret)
    if len(key) < _SECRET_BYTES_MIN:
        message = f"a secret has {_SECRET_BYTES_MIN} bytes or more: secrets.token_bytes(32)"
        raise ArgumentError(message)
    return key
