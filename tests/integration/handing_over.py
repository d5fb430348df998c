"""Handlers that hand work to task queues, as they are on PyPI: `python -m tests.integration.handing_over NAME...`.

Each runs as the handler of one message, in memory. Printed is a line of JSON for each: its name, the verdict in both modes,
and what is missing. The libraries are imported by the handlers, while the node is open.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiesce import detached
from tests.integration import subjects
from tests.unit.mesh.meshing import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SERVICES = ["celery task app.declared", "*.declared_job", "redis LPUSH declared"]
kept: list[Any] = []


def work() -> None:
    """Do nothing; this function is what is handed over."""


def declared_job() -> None:
    """Do nothing; this function is declared as a service."""


def _celery() -> Any:
    from celery import Celery  # noqa: PLC0415 - the first use is to be in a hop

    app = Celery("app", broker="memory://")
    kept.append(app)
    return app


async def celery(_: str) -> None:
    """`delay()` of a task."""
    _celery().task(work, name="app.send_invoice").delay()


async def celery_by_name(_: str) -> None:
    """A task that is known by its name only."""
    _celery().send_task("app.elsewhere")


async def celery_eager(_: str) -> None:
    """A task that runs at once, in place."""
    app = _celery()
    app.conf.task_always_eager = True
    app.task(work, name="app.now").delay()


async def celery_declared(_: str) -> None:
    """A task that is a service."""
    _celery().send_task("app.declared")


async def celery_detached(_: str) -> None:
    """A task that belongs to nobody."""
    with detached():
        _celery().send_task("app.elsewhere")


async def rq(at: str) -> None:
    """A function for now."""
    from redis import Redis  # noqa: PLC0415 - as above
    from rq import Queue  # noqa: PLC0415 - as above

    Queue(connection=Redis(unix_socket_path=at)).enqueue(work)


async def rq_later(at: str) -> None:
    """A function for later."""
    from redis import Redis  # noqa: PLC0415 - as above
    from rq import Queue  # noqa: PLC0415 - as above

    Queue(connection=Redis(unix_socket_path=at)).enqueue_in(timedelta(hours=1), work)


async def arq(at: str) -> None:
    """A job by name."""
    from arq import create_pool  # noqa: PLC0415 - as above
    from arq.connections import RedisSettings  # noqa: PLC0415 - as above

    pool = await create_pool(RedisSettings(unix_socket_path=at))
    await pool.enqueue_job("send_invoice")
    await pool.aclose()


async def dramatiq(_: str) -> None:
    """A message for an actor."""
    import dramatiq as library  # noqa: PLC0415 - as above
    from dramatiq.brokers.stub import StubBroker  # noqa: PLC0415 - as above

    library.set_broker(StubBroker())
    library.actor(work).send()


async def taskiq(_: str) -> None:
    """A task for a broker of another process."""
    from taskiq import AsyncBroker  # noqa: PLC0415 - as above

    class Broker(AsyncBroker):  # type: ignore[misc]  # not where mypy looks
        async def kick(self, message: Any) -> None:
            kept.append(message)

        async def listen(self) -> Any:
            yield b""

    async def send_invoice() -> None:
        """Do nothing; this function is what is handed over, and the library renames it."""

    await Broker().task(task_name="send_invoice")(send_invoice).kiq()


async def huey(_: str) -> None:
    """A task in the queue."""
    from huey import MemoryHuey  # noqa: PLC0415 - as above

    MemoryHuey(immediate=False).task()(work)()


async def huey_immediate(_: str) -> None:
    """A task that runs at once, in place."""
    from huey import MemoryHuey  # noqa: PLC0415 - as above

    MemoryHuey(immediate=True).task()(work)()


async def procrastinate(_: str) -> None:
    """A job, deferred in a coroutine."""
    from procrastinate import App  # noqa: PLC0415 - as above
    from procrastinate.testing import InMemoryConnector  # noqa: PLC0415 - as above

    app = App(connector=InMemoryConnector())
    async with app.open_async():
        await app.task(name="send_invoice")(work).defer_async()


async def redis_list(at: str) -> None:
    """A push onto a list."""
    import redis  # noqa: PLC0415 - as above

    redis.Redis(unix_socket_path=at).lpush("jobs", "one")


async def redis_raw(at: str) -> None:
    """The same, without its method."""
    import redis  # noqa: PLC0415 - as above

    redis.Redis(unix_socket_path=at).execute_command("rpush", "jobs", "one")


async def redis_async(at: str) -> None:
    """An entry of a stream, in a pipeline of the asynchronous client."""
    import redis.asyncio  # noqa: PLC0415 - as above

    async with redis.asyncio.Redis(unix_socket_path=at) as client, client.pipeline() as pipeline:
        pipeline.xadd("stream", {"job": "one"})
        await pipeline.execute()


async def redis_publish(at: str) -> None:
    """A message of a channel."""
    import redis.asyncio  # noqa: PLC0415 - as above

    async with redis.asyncio.Redis(unix_socket_path=at) as client:
        await client.publish("news", "one")


async def redis_cache(at: str) -> None:
    """What is not handed to anybody."""
    import redis  # noqa: PLC0415 - as above

    redis.Redis(unix_socket_path=at).set("key", "value")


async def redis_declared(at: str) -> None:
    """A list that is a service."""
    import redis  # noqa: PLC0415 - as above

    redis.Redis(unix_socket_path=at).lpush("declared", "one")


async def apscheduler(_: str) -> None:
    """A job for later, of a scheduler in the event loop."""
    from apscheduler.schedulers.asyncio import AsyncIOScheduler  # noqa: PLC0415 - as above

    with detached():  # it was started with the app
        scheduler = AsyncIOScheduler()
        scheduler.start()
    kept.append(scheduler)
    scheduler.add_job(work, "date")


async def apscheduler_thread(_: str) -> None:
    """A job of a scheduler in a thread."""
    from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415 - as above

    with detached():  # as above
        scheduler = BackgroundScheduler()
        scheduler.start()
    kept.append(scheduler)
    scheduler.add_job(work, trigger="date", run_date="2999-12-31")


async def apscheduler_declared(_: str) -> None:
    """A job that is a service."""
    from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415 - as above

    BackgroundScheduler().add_job(declared_job)


async def apscheduler_recurring(_: str) -> None:
    """A job that comes again and again: it is nobody's work."""
    from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415 - as above

    BackgroundScheduler().add_job(work, "interval", hours=1)


async def judge(use: Callable[[str], Awaitable[None]], at: str, folder: Path) -> dict[str, Any]:
    """Return what the verdicts on one message say."""
    folder.mkdir()  # noqa: ASYNC240 - before anything runs
    async with World(folder) as world:
        root, _ = await world.add("a"), await world.add("b", services=SERVICES)
        async with root.cascade("c") as cascade:
            await world.hand("b", lambda _: use(at))
        full = await cascade.settled(20)
        found = await cascade.settled(20, require="participants")
        return {
            "name": use.__name__,
            "full": type(full).__name__,
            "participants": type(found).__name__,
            "missing": list(getattr(full, "missing", ())),
            "opaque": full.receipt.opaque,
            "untracked": full.receipt.untracked,
        }


async def main(names: list[str]) -> None:
    """Run them, with a server of Redis."""
    with tempfile.TemporaryDirectory() as folder:
        at = str(Path(folder, "redis.sock"))
        server = subprocess.Popen(  # noqa: ASYNC220 - as above
            [subjects.redis_server(), "--port", "0", "--unixsocket", at, "--save", "", "--dir", folder],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            while b"ready to accept connections" not in server.stdout.readline():
                assert server.poll() is None
            for name in names:
                found = await judge(globals()[name], at, Path(folder, name))
                sys.stdout.write(json.dumps(found) + "\n")
        finally:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    from tests.integration import handing_over  # its functions are those of a module

    asyncio.run(handing_over.main(sys.argv[1:]))
