"""How handlers use each library, for the first time in their process and again: `USES`, by the library's name.

Each is asynchronous, takes where the servers are, and returns when the answer is there. It leaves the library as a
program does: pools, connections and clients stay open, in `kept`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Use = Callable[[Mapping[str, str]], Awaitable[None]]

kept: dict[str, Any] = {}
"""What stays open, by the library's name."""


def expect(got: object, wanted: object) -> None:
    """Check an answer."""
    if got != wanted:
        message = f"{got!r} is not {wanted!r}"
        raise ValueError(message)


async def psycopg_pool(at: Mapping[str, str]) -> None:
    """A pool of asynchronous connections, with its workers and its scheduler."""
    from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415 - the first use is to be in a hop

    if "psycopg_pool" not in kept:
        kept["psycopg_pool"] = AsyncConnectionPool(at["postgres"], min_size=2, open=False)
        await kept["psycopg_pool"].open()
    async with kept["psycopg_pool"].connection() as connection:
        expect(await (await connection.execute("SELECT 1")).fetchone(), (1,))


async def psycopg_pool_sync(at: Mapping[str, str]) -> None:
    """A pool of blocking connections, whose threads keep it filled."""

    def ask() -> None:
        from psycopg_pool import ConnectionPool  # noqa: PLC0415 - as above

        if "psycopg_pool_sync" not in kept:
            kept["psycopg_pool_sync"] = ConnectionPool(at["postgres"], min_size=2, open=True)
        with kept["psycopg_pool_sync"].connection() as connection:
            expect(connection.execute("SELECT 1").fetchone(), (1,))

    await asyncio.to_thread(ask)


async def asyncpg(at: Mapping[str, str]) -> None:
    """A pool, which has a timer for each idle connection."""
    import asyncpg as library  # noqa: PLC0415 - as above

    if "asyncpg" not in kept:
        kept["asyncpg"] = await library.create_pool(at["postgres"], min_size=2)
    async with kept["asyncpg"].acquire(timeout=10) as connection:
        expect(await connection.fetchval("SELECT 1", timeout=10), 1)


async def sqlalchemy_asyncpg(at: Mapping[str, str]) -> None:
    """SQLAlchemy's pool of asyncpg's connections."""
    await _sqlalchemy("sqlalchemy_asyncpg", at["sqlalchemy"])


async def sqlalchemy_aiosqlite(at: Mapping[str, str]) -> None:
    """SQLAlchemy's pool of aiosqlite's connections, each of which has a thread."""
    await _sqlalchemy("sqlalchemy_aiosqlite", f"sqlite+aiosqlite:///{at['folder']}/alchemy.db")


async def _sqlalchemy(name: str, url: str) -> None:
    from sqlalchemy import text  # noqa: PLC0415 - as above
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - as above

    if name not in kept:
        kept[name] = create_async_engine(url)
    async with kept[name].connect() as connection:
        expect((await connection.execute(text("SELECT 1"))).scalar(), 1)


async def aiosqlite(at: Mapping[str, str]) -> None:
    """A connection that stays open, with its thread."""
    import aiosqlite as library  # noqa: PLC0415 - as above

    if "aiosqlite" not in kept:
        kept["aiosqlite"] = await library.connect(f"{at['folder']}/lite.db")
    async with kept["aiosqlite"].execute("SELECT 1") as cursor:
        expect(await cursor.fetchone(), (1,))


async def redis(at: Mapping[str, str]) -> None:
    """A client with its pool of connections."""
    import redis.asyncio as library  # noqa: PLC0415 - as above

    if "redis" not in kept:
        kept["redis"] = library.Redis(unix_socket_path=at["redis"])
    await kept["redis"].set("key", "value")
    expect(await kept["redis"].get("key"), b"value")
    async with kept["redis"].pipeline() as pipeline:
        expect(await pipeline.set("count", 1).incr("count").execute(), [True, 2])


async def redis_pubsub(at: Mapping[str, str]) -> None:
    """A subscription whose reader the handler awaits."""
    import redis.asyncio as library  # noqa: PLC0415 - as above

    if "redis_pubsub" not in kept:
        kept["redis_pubsub"] = library.Redis(unix_socket_path=at["redis"]).pubsub()
        await kept["redis_pubsub"].subscribe("news")
    await kept["redis_pubsub"].get_message(timeout=0)


async def async_lru(at: Mapping[str, str]) -> None:
    """A cache that has a timer for each entry."""
    from async_lru import alru_cache  # noqa: PLC0415 - as above

    async def load(key: str) -> str:
        await asyncio.sleep(0)
        return key

    if "async_lru" not in kept:
        kept["async_lru"] = alru_cache(ttl=3600)(load)
    expect(await kept["async_lru"](at["folder"]), at["folder"])


async def aiohttp(at: Mapping[str, str]) -> None:
    """A session that keeps its connections, with a timer to close them."""
    import aiohttp as library  # noqa: PLC0415 - as above

    if "aiohttp" not in kept:
        kept["aiohttp"] = library.ClientSession()
    async with kept["aiohttp"].get(at["world"] + "/hello") as response:
        expect(await response.text(), "hello")


async def httpx(at: Mapping[str, str]) -> None:
    """A client that keeps its connections."""
    import httpx as library  # noqa: PLC0415 - as above

    if "httpx" not in kept:
        kept["httpx"] = library.AsyncClient()
    expect((await kept["httpx"].get(at["world"] + "/hello")).text, "hello")


async def openai(at: Mapping[str, str]) -> None:
    """The client of a model's API, with and without streaming."""
    from openai import AsyncOpenAI  # noqa: PLC0415 - as above

    if "openai" not in kept:
        kept["openai"] = AsyncOpenAI(api_key="none", base_url=at["world"] + "/v1")
    ask: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    whole = await kept["openai"].chat.completions.create(**ask)
    expect(whole.choices[0].message.content, "hello")
    parts = await kept["openai"].chat.completions.create(**ask, stream=True)
    expect([part.choices[0].delta.content async for part in parts], ["hel", "lo"])


async def anthropic(at: Mapping[str, str]) -> None:
    """The client of another model's API, with and without streaming."""
    from anthropic import AsyncAnthropic  # noqa: PLC0415 - as above

    if "anthropic" not in kept:
        kept["anthropic"] = AsyncAnthropic(api_key="none", base_url=at["world"])
    ask: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    whole = await kept["anthropic"].messages.create(**ask)
    expect(whole.content[0].text, "hello")
    async with kept["anthropic"].messages.stream(**ask) as stream:
        expect([text async for text in stream.text_stream], ["hel", "lo"])


async def grpc_aio(at: Mapping[str, str]) -> None:
    """A channel that stays open; its poller is a thread."""
    import grpc  # noqa: PLC0415 - as above

    if "grpc_aio" not in kept:
        kept["grpc_aio"] = grpc.aio.insecure_channel(at["grpc"])
    expect(await kept["grpc_aio"].unary_unary("/world.World/Echo")(b"hello"), b"hello")
    call = kept["grpc_aio"].unary_stream("/world.World/Twice")(b"hello")
    expect([part async for part in call], [b"hello", b"hello"])


async def sentry_sdk(at: Mapping[str, str]) -> None:
    """The client of an error tracker, whose worker thread sends the events."""
    import sentry_sdk as library  # noqa: PLC0415 - as above

    if "sentry_sdk" not in kept:
        host = at["world"].removeprefix("http://")
        library.init(f"http://key@{host}/1", traces_sample_rate=1.0, enable_logs=True)
        kept["sentry_sdk"] = library
    with library.start_transaction(name="hop"):
        library.capture_message("hello")
        library.logger.info("hello")
        logging.getLogger("tests").error("an event of its own")


async def opentelemetry(at: Mapping[str, str]) -> None:
    """The SDK of traces and metrics: threads that export batches."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - as above
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - as above
        InMemoryMetricReader,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above

    if "opentelemetry" not in kept:
        exporter = OTLPSpanExporter(endpoint=at["world"] + "/v1/traces")
        kept["opentelemetry"] = TracerProvider()
        kept["opentelemetry"].add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=10)
        )
        kept["readers"] = MeterProvider([InMemoryMetricReader()]), PeriodicExportingMetricReader
    with kept["opentelemetry"].get_tracer("tests").start_as_current_span("hop"):
        await asyncio.sleep(0)


async def apscheduler(at: Mapping[str, str]) -> None:
    """A scheduler that is started in a hop, with a job for every hour."""
    from apscheduler.schedulers.asyncio import AsyncIOScheduler  # noqa: PLC0415 - as above

    if "apscheduler" not in kept:
        kept["apscheduler"] = AsyncIOScheduler()
        kept["apscheduler"].start()
        kept["apscheduler"].add_job(expect, "interval", (at, at), hours=1)
    await asyncio.sleep(0)


async def socketio_client(at: Mapping[str, str]) -> None:
    """A client of socket.io that stays connected, with its loops."""
    import socketio  # noqa: PLC0415 - as above

    if "socketio_client" not in kept:
        kept["socketio_client"] = socketio.AsyncClient()
        await kept["socketio_client"].connect(at["world"], transports=["polling"])
    expect(await kept["socketio_client"].call("echo", "hello", timeout=10), "hello")


async def socketio_server(_: Mapping[str, str]) -> None:
    """A server of socket.io in this process, to which the driver has connected in the same cascade: a broadcast."""
    await kept["sio"].emit("news", "hello")


USES: dict[str, Use] = {
    use.__name__: use
    for use in (
        psycopg_pool, psycopg_pool_sync, asyncpg, sqlalchemy_asyncpg, sqlalchemy_aiosqlite, aiosqlite, redis,
        redis_pubsub, async_lru, aiohttp, httpx, openai, anthropic, grpc_aio, sentry_sdk, opentelemetry, apscheduler,
        socketio_client, socketio_server,
    )
}  # fmt: skip
