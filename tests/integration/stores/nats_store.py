"""Stores on NATS servers, and rows for them."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from nats.aio.client import Client

from quiesce.mesh.store.nats_database import NatsDatabase
from quiesce.mesh.store.rows import EdgeRow, Replica
from tests.integration.stores import nats_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.stores.nats_server import NatsServer


CASCADE = b"c" * 16


def new_bucket() -> str:
    """Return the name of a bucket that nobody has used."""
    return f"b{uuid.uuid4().hex}"


def row(number: int, owner: str = "a1", **fields: object) -> EdgeRow:
    """Return a row."""
    made = EdgeRow(
        key=number.to_bytes(16, "big"), side="hop", agent="hotel", owner=owner, cascade=CASCADE, began_at=float(number)
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]  # fields of a row


def replica(name: str) -> Replica:
    """Return an incarnation."""
    return Replica(incarnation=name, agent="hotel", name=f"{name}-0", lease=10.0)


async def ask_server(server: NatsServer, subject: str, payload: bytes) -> None:
    """Send a message to the server, and wait for its answer if it is not a wake-up."""
    client = Client()
    await client.connect(
        f"nats://127.0.0.1:{server.port}", user=nats_server.USER, password=nats_server.PASSWORD
    )
    try:
        if subject.endswith(".wake"):
            await client.publish(subject, payload)
            await client.flush()
        else:
            await client.request(subject, payload, timeout=60)
    finally:
        await client.close()
        for _ in range(10):
            await asyncio.sleep(0)


async def read_server(server: NatsServer, bucket: str) -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return what a bucket has: the last message and its headers, by subject."""
    client = Client()
    await client.connect(
        f"nats://127.0.0.1:{server.port}", user=nats_server.USER, password=nats_server.PASSWORD
    )
    try:
        stream = client.jetstream(timeout=60)
        info = await stream.stream_info(bucket, subjects_filter=">")
        found = [await stream.get_last_msg(bucket, one) for one in info.state.subjects or {}]
        return {str(one.subject): (one.data or b"", one.headers or {}) for one in found}
    finally:
        await client.close()
        for _ in range(10):
            await asyncio.sleep(0)


@asynccontextmanager
async def opened(where: str, *owners: str, seconds: float = 60.0) -> AsyncIterator[NatsDatabase]:
    """Open a store, and enroll incarnations."""
    database = NatsDatabase(where, seconds=seconds)
    await database.open()
    try:
        for owner in owners:
            await database.enroll(replica(owner))
        yield database
    finally:
        await database.close()
