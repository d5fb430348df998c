"""The place that is named for a plain request in a thread is the user's, and never a file of quiesce."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest
import requests

from quiesce.mesh import Unknown
from tests.unit.mesh.clients.peering import peer, sender

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.backends("asyncio", "uvloop"), pytest.mark.real_time]


def _by_thread(fn: Callable[..., Any], url: str, *, daemon: bool = False) -> None:
    thread = threading.Thread(target=fn, args=(url,), daemon=daemon)
    thread.start()
    thread.join()


async def _to_thread(url: str) -> None:
    await asyncio.to_thread(requests.post, url)


async def _task(url: str) -> None:
    await asyncio.create_task(asyncio.to_thread(requests.post, url))


async def _executor(url: str) -> None:
    await asyncio.get_running_loop().run_in_executor(None, requests.post, url)


async def _pool(url: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(requests.post, url).result()


async def _thread_pool(url: str) -> None:
    with ThreadPool(1) as pool:
        pool.apply(requests.post, (url,))


async def _thread(url: str) -> None:
    _by_thread(requests.post, url)


async def _daemon(url: str) -> None:
    _by_thread(requests.post, url, daemon=True)


async def _timer(url: str) -> None:
    timer = threading.Timer(0, requests.post, (url,))
    timer.start()
    timer.join()


@pytest.mark.parametrize(
    "way", [_to_thread, _task, _executor, _pool, _thread_pool, _thread, _daemon, _timer]
)
async def test_a_request_that_a_thread_runs_directly_is_named_by_the_line_that_has_handed_it_over(
    way: Any,
) -> None:
    """There is no function of the user's in the thread."""
    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("c") as cascade:
                await way(f"{b.url}/run")
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Unknown)
    (missing,) = [text for text in found.missing if "plain requests" in text]
    function = "_by_thread" if way in {_thread, _daemon} else way.__name__
    assert f"{__file__}:" in missing
    assert f" in {function}. Write node.instrument()" in missing


async def test_a_request_of_a_function_in_a_thread_is_named_by_that_function() -> None:
    """It is the innermost place of the user's."""

    def order(url: str) -> None:
        requests.post(url, timeout=5)

    with peer() as b:
        async with sender(b) as node:
            async with node.cascade("c") as cascade:
                await asyncio.to_thread(order, f"{b.url}/run")
            found = await cascade.settled(5, require="participants")
    assert isinstance(found, Unknown)
    (missing,) = found.missing
    assert f"{__file__}:{order.__code__.co_firstlineno + 1} in " in missing
