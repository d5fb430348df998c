"""Drive agents of frameworks that know nothing of quiesce: `python -m tests.integration.unmodified.drive SCENARIO`.

For each cascade, the driver sends messages, sees that the agent is at work after it has answered, lets the work end,
and asks for the verdict. Then it ends the agents with SIGTERM. It prints a line of JSON for each cascade, with what
was said and when the work really ended, and one for the end of the agents.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from quiesce.mesh import Node
from tests.integration.unmodified.uses import USES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from quiesce.mesh import Cascade

    Send = Callable[[Any], Awaitable[httpx.Response]]

_PACKAGE = "tests.integration.unmodified"
_SECONDS = 30.0  # a guard against hangs, far above what anything takes
_AFTERWARDS = ("background", "starlette_background", "dependency")


class Process:
    """An agent, or the servers of the world."""

    def __init__(self, module: str, config: dict[str, Any], folder: Path) -> None:
        """Start it."""
        self._errors = Path(folder, f"{module}-{config.get('name', '')}.log")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{_PACKAGE}.{module}", json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        self.told: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")

    def end(self, *, by_signal: bool = True) -> dict[str, Any]:
        """Stop the agent by SIGTERM or the end of its input; return its exit code, what it printed, and its log."""
        process, began = self._process, time.monotonic()
        assert process.stdin is not None
        assert process.stdout is not None
        if by_signal:
            process.terminate()
        else:
            process.stdin.close()
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        seconds = time.monotonic() - began
        process.stdin.close()
        with process.stdout:
            told = process.stdout.read()
        return {
            "exit": process.returncode,
            "seconds": seconds,
            "told": [json.loads(line) for line in told.splitlines()],
            "log": self._errors.read_text(encoding="utf-8"),
        }


class Driver:
    """The beginner of cascades."""

    def __init__(self, folder: Path) -> None:
        """Start without agents."""
        self.folder = folder
        self.processes: list[Process] = []
        self.outcomes: list[dict[str, Any]] = []
        self.node: Node
        self.client: Any
        self.plain: httpx.AsyncClient

    def start(self, module: str, **config: Any) -> str:
        """Start an agent; returns its address."""
        process = Process(module, {"folder": str(self.folder), **config}, self.folder)
        self.processes.append(process)
        url: str = process.told["url"]
        return url

    @asynccontextmanager
    async def open(self, *peers: str) -> AsyncIterator[None]:
        """Open a node, once the agents are reachable."""
        journal = self.folder / "driver.journal"
        async with AsyncExitStack() as stack:
            self.node = await stack.enter_async_context(
                Node("driver", store=journal, peers=list(peers))
            )
            self.client = await stack.enter_async_context(self.node.client(timeout=_SECONDS))
            self.plain = await stack.enter_async_context(httpx.AsyncClient(timeout=_SECONDS))
            yield

    async def begin(self, name: str, send: Send, held: str) -> tuple[Cascade, dict[str, Any]]:
        """Begin a cascade; returns it with what became of its messages, and with what holds them in the end."""
        cascade = self.node.cascade(name)
        outcome: dict[str, Any] = {"name": name}
        self.outcomes.append(outcome)
        async with cascade:
            response = await send(self.client)
        outcome["answer"] = f"{response.status_code} {response.text[:500]}"
        deadline = time.monotonic() + _SECONDS
        while True:  # the handler may still be on its way out
            busy = (await cascade.frontier(_SECONDS)).busy
            outcome["held"] = [f"{entry.name}: {entry.what}" for entry in busy]
            alone = all(
                one.what.startswith(held) and not (held and ";" in one.what) for one in busy
            )
            if (busy and alone) or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        return cascade, outcome

    async def let(self, url: str, *names: str) -> None:
        """Let work end."""
        for name in names:
            (await self.plain.post(f"{url}/let/{name}")).raise_for_status()

    async def finish(self, cascade: Cascade, outcome: dict[str, Any]) -> None:
        """Wait for the verdict."""
        found = await cascade.settled(_SECONDS)
        outcome |= {"verdict": type(found).__name__, "at": time.monotonic(), "text": str(found)}
        outcome["ok"] = found.ok

    async def run(self, name: str, url: str, send: Send, held: str, *lets: str) -> None:
        """Run a whole cascade, with one piece of work of its name, or several."""
        cascade, outcome = await self.begin(name, send, held)
        await self.let(url, *(lets or (name,)))
        await self.finish(cascade, outcome)


# Scenarios.


async def libraries(driver: Driver) -> None:
    """Use every library for the first time, and again in work that is left behind."""
    world = Process("world", {"folder": str(driver.folder)}, driver.folder)
    try:
        url = driver.start("library_agent", **world.told)
        async with driver.open(url):
            for name in USES:
                send = _posts(f"{url}/use/{name}")
                if name == "socketio_server":
                    send = _connects(url, send)
                await driver.run(name, url, send, "task again", f"{name}, before", name)
            for name in _AFTERWARDS:
                await driver.run(name, url, _posts(f"{url}/{name}"), "handler")
        driver.outcomes.append(_ended(driver))
    finally:
        world.end(by_signal=False)


async def mcp(driver: Driver, kind: str = "mcp") -> None:
    """Open a session, call a tool, and then two more at a time in the same session."""
    url = driver.start("mcp_agent", kind=kind)
    session: dict[str, str] = {}

    async def ask(client: Any, **message: Any) -> httpx.Response:
        headers = {"accept": "application/json, text/event-stream", **session}
        body = {"jsonrpc": "2.0", **message}
        response: httpx.Response = await client.post(f"{url}/mcp", headers=headers, json=body)
        return response

    def calls(name: str) -> Send:
        params = {"name": "work", "arguments": {"name": name}}
        return lambda client: ask(client, id=name, method="tools/call", params=params)

    async def first(client: Any) -> httpx.Response:
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "driver", "version": "1"},
        }
        opened = await ask(client, id=1, method="initialize", params=hello)
        if kind != "mcp_stateless":
            session["mcp-session-id"] = opened.headers["mcp-session-id"]
        await ask(client, method="notifications/initialized")
        return await calls("first")(client)

    async with driver.open(url):
        await driver.run("first", url, first, "task work")
        second = await driver.begin("second", calls("second"), "task work")
        await driver.run("third", url, calls("third"), "task work")
        second[1]["early"] = type(await second[0].settled(0)).__name__
        await driver.let(url, "second")
        await driver.finish(*second)
    driver.outcomes.append(_ended(driver))


async def fasta2a(driver: Driver) -> None:
    """Send two messages that wait for the worker at the same time."""
    url = driver.start("fasta2a_agent")

    def sends(name: str) -> Send:
        part = {"kind": "text", "text": name}
        message = {"role": "user", "messageId": name, "kind": "message", "parts": [part]}
        params = {"message": message}
        body = {"jsonrpc": "2.0", "id": name, "method": "message/send", "params": params}
        return lambda client: client.post(f"{url}/", json=body)

    async with driver.open(url):
        first = await driver.begin("first", sends("first"), "")
        sent = asyncio.create_task(
            driver.begin("second", sends("second"), "")
        )  # answered when the worker takes it
        await driver.let(url, "first")
        await driver.finish(*first)
        second = await sent
        second[1]["early"] = type(await second[0].settled(0)).__name__
        await driver.let(url, "second")
        await driver.finish(*second)
    driver.outcomes.append(_ended(driver))


async def adk(driver: Driver) -> None:
    """Run three agents that call each other."""
    ports = {name: _free_port() for name in "abc"}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    following = {"a": urls["b"], "b": urls["c"], "c": ""}
    for name in "cba":
        facts = {"name": name, "port": ports[name], "next": following[name]}
        driver.start("adk_agent", **facts, peers=list(urls.values()))
    part = {"kind": "text", "text": "hello"}
    message = {"role": "user", "messageId": "1", "kind": "message", "parts": [part]}
    body = {"jsonrpc": "2.0", "id": "1", "method": "message/send", "params": {"message": message}}
    async with driver.open(*urls.values()):
        cascade, outcome = await driver.begin(
            "a", lambda client: client.post(urls["a"] + "/", json=body), "task work"
        )
        for name, url in urls.items():
            await driver.let(url, name)
        await driver.finish(cascade, outcome)
    driver.outcomes.append(_ended(driver))


def _posts(url: str) -> Send:
    return lambda client: client.post(url)


def _connects(url: str, then: Send) -> Send:
    async def send(client: Any) -> httpx.Response:
        polling = f"{url}/socket.io/?EIO=4&transport=polling"
        opened = await client.get(polling)
        sid = json.loads(opened.text[1:])["sid"]
        (await client.post(f"{polling}&sid={sid}", content="40")).raise_for_status()
        return await then(client)

    return send


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _ended(driver: Driver) -> dict[str, Any]:
    """End the agents; adds to each cascade when its work has ended, and returns what became of the agents."""
    ends = [process.end() for process in driver.processes]
    driver.processes.clear()
    told = [line for end in ends for line in end["told"]]
    work = {line["ended"]: line["at"] for line in told if "ended" in line}
    for outcome in driver.outcomes:
        outcome["ended"] = work.get(outcome["name"])
    return {
        "name": "exit",
        "codes": [end["exit"] for end in ends],
        "seconds": max(end["seconds"] for end in ends),
        "log": "".join(end["log"] for end in ends),
        "errors": [line["error"] for line in told if "error" in line],
        "all_ended": work,
    }


_SCENARIOS: dict[str, Callable[[Driver], Coroutine[Any, Any, None]]] = {
    "libraries": libraries,
    "mcp": mcp,
    "mcp_stateless": lambda driver: mcp(driver, "mcp_stateless"),
    "fastmcp": lambda driver: mcp(driver, "fastmcp"),
    "fasta2a": fasta2a,
    "adk": adk,
}


def main() -> None:
    """Run a scenario."""
    with tempfile.TemporaryDirectory(prefix="quiesce-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        driver = Driver(Path(folder))
        try:
            asyncio.run(_SCENARIOS[sys.argv[1]](driver))
        finally:
            for outcome in driver.outcomes:
                print(json.dumps(outcome), flush=True)  # noqa: T201 - that is how it tells
            for process in driver.processes:
                print(json.dumps({"name": "failed", **process.end()}))  # noqa: T201 - as above


if __name__ == "__main__":
    main()
