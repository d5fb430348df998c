"""Ways to send a request with each of the HTTP clients, sync and async."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio.to_thread
import httpx
import httpx2
import requests
import urllib3

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Send = Callable[..., Awaitable[int]]


async def by_httpx(url: str, method: str = "POST") -> int:
    """Send with httpx."""
    async with httpx.AsyncClient(trust_env=False, verify=TLS, follow_redirects=True) as client:
        status: int = (await client.request(method, url)).status_code
        return status


async def by_httpx2(url: str, method: str = "POST") -> int:
    """Send with httpx2."""
    async with httpx2.AsyncClient(trust_env=False, verify=TLS, follow_redirects=True) as client:
        status: int = (await client.request(method, url)).status_code
        return status


async def by_aiohttp(url: str, method: str = "POST") -> int:
    """Send with aiohttp; on trio, in an event loop of another thread."""
    if asyncio._get_running_loop() is None:
        return await anyio.to_thread.run_sync(lambda: asyncio.run(by_aiohttp(url, method)))
    async with aiohttp.ClientSession() as session, session.request(method, url) as response:
        status: int = response.status
        return status


def _httpx(module: Any, url: str, method: str) -> int:
    with module.Client(trust_env=False, verify=TLS, follow_redirects=True) as client:
        status: int = client.request(method, url).status_code
        return status


def _requests(url: str, method: str) -> int:
    with requests.Session() as session:
        session.trust_env = False
        status: int = session.request(method, url, data=b"work", timeout=5).status_code
        return status


def _urllib3(url: str, method: str) -> int:
    with urllib3.PoolManager(retries=urllib3.Retry(redirect=3, connect=0, read=0)) as pool:
        status: int = pool.request(method, url, body=b"work").status
        return status


def _in_thread(send: Callable[[str, str], int], name: str) -> Send:
    async def sends(url: str, method: str = "POST") -> int:
        return await anyio.to_thread.run_sync(send, url, method)

    sends.__name__ = name
    return sends


def _here(send: Callable[[str, str], int], name: str) -> Send:
    async def sends(url: str, method: str = "POST") -> int:
        return send(url, method)

    sends.__name__ = name
    return sends


TLS = ssl.create_default_context()  # once: it takes long
SYNC: dict[str, Callable[[str, str], int]] = {
    "httpx": partial(_httpx, httpx),
    "httpx2": partial(_httpx, httpx2),
    "requests": _requests,
    "urllib3": _urllib3,
}
WAYS: dict[str, Send] = {
    "aiohttp": by_aiohttp,
    "httpx": by_httpx,
    "httpx2": by_httpx2,
    **{f"{name} in a thread": _in_thread(send, name) for name, send in SYNC.items()},
    **{f"{name}, sync": _here(send, name) for name, send in SYNC.items()},
}
