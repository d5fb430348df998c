"""An agent of the mesh, in a process of its own: `python -m tests.integration.mesh.agent CONFIG`.

It does what the plan in a request tells it (plans.py), and writes down what it does (truth.py). CONFIG is
a file of JSON: see `Config`. It serves on a free port of loopback, and tells which in its first line; the
lines after that are its facts. It ends with its standard input: with whoever has started it.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

from quiesce.mesh import CascadeCancelled, Node, Patience, current_hop
from quiesce.mesh.http import Http
from tests.integration.mesh.plans import Plan
from tests.integration.mesh.truth import Log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quiesce.mesh import Cascade, Handing, Hop
    from tests.integration.mesh.truth import Piece

Receive = Any
Send = Any

_NOWHERE = contextvars.copy_context()  # of no hop
_FIRST_TRY_SECONDS = 0.03
_PUSH_SECONDS = 0.05
_ANSWER_SECONDS = 4.0  # how long to wait for an answer; the message goes on
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)


@dataclass
class Config:
    """What an agent is told when it is started."""

    name: str
    kind: str
    """`http`; `opaque`: without a node; `brief`: without a journal; or one of KINDS."""
    url: str | None
    """Where others reach it."""
    folder: str
    """Where its journal is."""
    log: str
    peers: dict[str, str]
    """By name, where to send messages."""
    kinds: dict[str, str]
    patience: dict[str, float] = field(default_factory=dict)


class _Unanswered(Exception):  # noqa: N818 - what happened
    """There is no answer to a message."""


class Agent:
    """One agent."""

    def __init__(self, config: Config) -> None:
        """Make its node, and its clients."""
        self.config = config
        self.log = Log(Path(config.log), config.name, echo=_say)
        self.tasks: set[asyncio.Task[Any]] = set()
        headers = {"X-From": config.name}
        self.plain = httpx.AsyncClient(timeout=_ANSWER_SECONDS, headers=headers)
        self.client = self.plain
        self.a2a: Any = None
        self.node: Node | None = None
        if config.kind != "opaque":
            self.node = Node(
                config.name,
                url=config.url,
                journal=None if config.kind == "brief" else Path(config.folder, f"{config.name}.journal"),
                peers=[url for name, url in config.peers.items() if config.kinds[name] != "opaque"],
                transport=Http(httpx.AsyncClient(timeout=None, headers=headers)),  # noqa: S113 - the node bounds it
                patience=Patience(**config.patience),  # type: ignore[arg-type]  # one is an int
            )  # fmt: skip
            self.client = self.node.client(timeout=_ANSWER_SECONDS, headers=headers)

    # What a plan asks for.

    async def carry_out(
        self, cascade: str, plan: Plan, turn: Callable[[], Awaitable[None]]
    ) -> None:
        """Do what is done before the answer; the background goes on by itself."""
        with self.piece(cascade, plan, "handler"):
            for _ in range(plan.stream or 1):
                await turn()
                await asyncio.sleep(plan.work / (plan.stream or 1))
            later = [child for child in plan.children if child.mode == "background"]
            if plan.after or later:
                self.go_on(cascade, plan, later)
            await self.send_all(cascade, [child for child in plan.children if child not in later])
            if plan.fail:
                message = "it was to fail"
                raise ValueError(message)

    def piece(self, cascade: str, plan: Plan, name: str) -> Piece:
        """Begin a piece of work, of the hop that the running code belongs to."""
        return self.log.piece(cascade, plan.hop, name, joined=current_hop() is not None)

    def go_on(self, cascade: str, plan: Plan, later: list[Plan]) -> None:
        """Work in the background, as a task that nobody waits for."""
        piece = self.piece(cascade, plan, "background")

        async def background() -> None:
            with piece:
                await asyncio.sleep(plan.after)
                await self.send_all(cascade, later)

        task = asyncio.create_task(background())
        self.tasks.add(task)
        task.add_done_callback(lambda _: piece.end())  # one that was cancelled before it began
        task.add_done_callback(self.tasks.discard)

    async def send_all(self, cascade: str, children: list[Plan]) -> bool:
        """Send messages, all at once; gives whether all were answered, whatever the answer."""
        sent = [self.send(cascade, child) for child in children]
        return all(await asyncio.gather(*sent))

    async def send(self, cascade: str, plan: Plan) -> bool:
        """Send a message; what does not reach its agent is not done."""
        try:
            hop = current_hop()
            if self.config.kinds[plan.agent] == "a2a":
                await self.send_by_a2a(cascade, plan)
            elif plan.mode == "retry" and hop is not None:
                await self.send_again(hop, cascade, plan)
            else:
                await self.post(self.client, cascade, plan)
        except (httpx.HTTPError, _Unanswered) as error:
            self.log.write("unanswered", cascade=cascade, hop=plan.hop, why=type(error).__name__)
            return False
        return True

    async def send_by_a2a(self, cascade: str, plan: Plan) -> None:
        """Send a message by A2A."""
        from tests.integration.mesh import a2a  # noqa: PLC0415 - it needs the SDK

        if self.a2a is None:
            self.a2a = a2a.Clients(self, _ANSWER_SECONDS)
        try:
            await self.a2a.send(cascade, plan)
        except Exception as error:  # the SDK has many
            raise _Unanswered(f"{type(error).__name__}: {error}") from error

    async def post(
        self, client: Any, cascade: str, plan: Plan, handing: Handing | None = None, **options: Any
    ) -> None:
        """Post a message, and read the answer to its end."""
        headers = {} if handing is None else handing.headers
        request = client.build_request(
            "POST",
            self.config.peers[plan.agent] + "/run",
            json={"cascade": cascade, "plan": plan.to_json()},
            headers=headers | {"X-Hop": f"{cascade}/{plan.hop}"},
            **options,
        )
        answer = await client.send(request, stream=True)
        try:
            if handing is not None:
                handing.answered(answer.headers.get("Cascade-Receipt"))
            await answer.aread()
        finally:
            await answer.aclose()

    async def send_again(self, hop: Hop, cascade: str, plan: Plan) -> None:
        """Send a message, do not wait long, and send it again as the same one."""
        with hop.delegate(self.config.peers[plan.agent]) as handing:
            may_have_left = False
            try:
                await self.post(self.plain, cascade, plan, handing, timeout=_FIRST_TRY_SECONDS)
            except _NOT_SENT:
                pass
            except httpx.HTTPError:
                may_have_left = True
            else:
                return
            try:
                await self.post(self.plain, cascade, plan, handing)
            except _NOT_SENT:
                if not may_have_left:
                    handing.not_sent()
                raise

    # Cascades that begin here.

    async def begin(self, cascade: str, plan: Plan, cancel: float | None, begun: asyncio.Event) -> None:  # fmt: skip
        """Begin a cascade, and tell what became of it."""
        assert self.node is not None
        made = self.node.cascade(cascade)
        try:
            async with made:
                self.log.write("start", cascade=cascade, id=made.id)
                begun.set()
                if cancel is not None:
                    self.keep(self.cancel(made, cancel), outside=True)
                ok = await self.root(cascade, plan)
                self.log.write("answered", cascade=cascade, ok=ok)
        except CascadeCancelled:
            pass
        await self.tell(made)

    async def root(self, cascade: str, plan: Plan) -> bool:
        """Send the first messages, those of the background from there."""
        with self.log.piece(cascade, plan.hop, "root", joined=True):
            later = [child for child in plan.children if child.mode == "background"]
            if later:
                self.go_on(cascade, plan, later)
            return await self.send_all(cascade, [one for one in plan.children if one not in later])

    async def cancel(self, made: Cascade, seconds: float) -> None:
        """Cancel a cascade after a while."""
        await asyncio.sleep(seconds)
        await made.cancel()

    async def tell(self, made: Cascade) -> None:
        """Write down the verdict, and when it was there."""
        full = await made.settled()
        now = time.monotonic()
        if made._receipt is None:  # this process is being shut down; the next one is told
            self.log.write("interrupted", id=made.id)
            return
        lenient = await made.settled(require="participants")
        counts = {
            name: getattr(full.receipt, name)
            for name in ("hops", "failed", "cancelled", "lost", "opaque", "unknown", "volatile")
        }
        self.log.write(
            "verdict", id=made.id, full=type(full).__name__, participants=type(lenient).__name__,
            at=min(now, made._ended_at), counts=counts, missing=_missing(full),
        )  # fmt: skip

    def keep(self, work: Any, *, outside: bool = False) -> asyncio.Task[None]:
        """Start something that is no part of a cascade."""
        context = _NOWHERE.copy() if outside else None
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    # The app.

    async def app(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request, or the app's life."""
        if scope["type"] == "lifespan":
            await self.live(receive, send)
        elif scope["path"] == "/start":
            await self.start(receive, send)
        elif scope["path"] == "/run":
            await self.run(receive, send)
        elif scope["path"].startswith("/hook/"):
            await self.take_push(scope["path"], receive, send)
        else:
            await _answer(send, 404, [b""])

    async def live(self, receive: Receive, send: Send) -> None:
        """Go on, at the beginning, with what an earlier process has begun."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup" and self.node is not None:
                for cascade in self.node.recovered:
                    self.keep(self.tell(cascade))
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def start(self, receive: Receive, send: Send) -> None:
        """Begin a cascade."""
        asked = json.loads(await _body(receive))
        begun = asyncio.Event()
        plan = Plan.from_json(asked["plan"])
        beginning = self.keep(self.begin(asked["cascade"], plan, asked["cancel_after"], begun))
        beginning.add_done_callback(lambda _: begun.set())  # if it could not be begun
        await begun.wait()
        await _answer(send, 503 if beginning.done() else 202, [b""])

    async def take_push(self, path: str, receive: Receive, send: Send) -> None:
        """Take a push, and work on it in the background."""
        _, _, cascade, hop = path.split("/")
        with self.piece(cascade, Plan(hop, ""), "push"):
            await _body(receive)
            self.go_on(cascade, Plan(hop, "", after=_PUSH_SECONDS), [])
            await _answer(send, 200, [b""])

    async def run(self, receive: Receive, send: Send) -> None:
        """Do what the plan in a request tells."""
        asked = json.loads(await _body(receive))
        plan, cascade = Plan.from_json(asked["plan"]), asked["cascade"]
        has_begun = False

        async def turn() -> None:
            nonlocal has_begun
            if plan.stream:
                if not has_begun:
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                has_begun = True
                await send({"type": "http.response.body", "body": b"more\n", "more_body": True})

        await self.carry_out(cascade, plan, turn)
        with self.piece(cascade, plan, "tail"):
            if has_begun:
                await send({"type": "http.response.body", "body": b"done\n"})
            else:
                await _answer(send, 200, [b"done\n"])
            await asyncio.sleep(plan.tail)


def _missing(settlement: Any) -> list[str]:
    why = [f"{note.name}: {note.status} {note.why}" for note in settlement.receipt.notes if note.status != "done"]  # fmt: skip
    return [*getattr(settlement, "missing", ()), *why]


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, status: int, parts: list[bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    for part in parts:
        await send({"type": "http.response.body", "body": part})


def _say(text: str) -> None:
    os.write(1, text.encode())


def _http_app(agent: Agent) -> Any:
    return agent.app if agent.node is None else agent.node.asgi(agent.app)


def _a2a_app(agent: Agent) -> Any:
    from tests.integration.mesh import a2a  # noqa: PLC0415 - it needs the SDK

    return a2a.app(agent)


KINDS: dict[str, Callable[[Agent], Any]] = {
    "http": _http_app, "opaque": _http_app, "brief": _http_app, "a2a": _a2a_app,
}  # fmt: skip
"""By kind of agent, how its app is made."""


def _tell_all(server: Any) -> None:
    """Write what is still to be done, for whoever wonders why this process does not end."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)  # by itself, its first line goes to stdout: it is no fact
    for connection in server.server_state.connections:
        transport, cycle = connection.transport, connection.cycle
        told = {} if cycle is None else {
            name: value for name, value in vars(cycle).items() if isinstance(value, bool | bytes)
        }  # fmt: skip
        scope = None if cycle is None else cycle.scope
        sys.stderr.write(
            f"connection {transport} closing={transport.is_closing()}"
            f" unsent={transport.get_write_buffer_size()} cycle={told} scope={scope}\n"
        )
    sys.stderr.flush()


class _Server(uvicorn.Server):  # type: ignore[misc]  # no types here
    """Says when it serves."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell it."""
        await super().startup(sockets)
        if self.started:
            self.tell()

    tell: Callable[[], None]


async def main(config: Config) -> None:
    """Serve until it is told to end."""
    agent = Agent(config)
    made = uvicorn.Config(
        KINDS[config.kind](agent),
        log_level="warning",
        lifespan="on",
        interface="asgi3",
        # Longer than clients keep a connection, or messages are lost on one that is being closed.
        timeout_keep_alive=60,
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def tell() -> None:
        known = () if agent.node is None else agent.node.recovered
        port = listener.getsockname()[1]
        agent.log.write("ready", port=port, recovered=[cascade.id for cascade in known])

    server = _Server(made)
    server.tell = tell
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _tell_all, server)
    loop.add_reader(0, lambda: os._exit(3))  # nothing is ever written there: it has ended
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(main(Config(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
