"""An agent of the mesh, in a process of its own: `python -m tests.integration.mesh.agent CONFIG`.

It does what the plan in a request tells it (plans.py), and writes down what it does (truth.py). CONFIG is
a file of JSON: see `Config`. It serves on a free port of loopback, and tells which in its first line; the
lines after that are its facts. It does what the lines of its standard input tell (orders.py), and ends with it: with
the process that has started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
import signal
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

import quiesce
from quiesce.errors import StoreLost
from quiesce.mesh import CascadeCancelled, Node, Patience, current_hop
from quiesce.mesh.transport.http_transport import HttpTransport
from tests.integration.mesh.orders import Orders
from tests.integration.mesh.patterns import Job, Ways
from tests.integration.mesh.plans import BARE, SENDING, Plan
from tests.integration.mesh.server import Server, tell_all
from tests.integration.mesh.truth import Log
from tests.integration.replicas import broken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

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
    peers: dict[str, str]
    """By name, where to send messages."""
    kinds: dict[str, str]
    patience: dict[str, float] = field(default_factory=dict)
    mutant: str = ""
    """How it is broken: `detached`, the work that it leaves behind is not its hop's, and goes on until there is a
    verdict; `declared`, every thread is declared as a service; or one of tests/integration/replicas/broken.py.
    """
    store: str = ""
    """Where its state is, if that is not a journal of its own: the address of a store that replicas share."""
    replica: str | None = None
    lease: float = 15.0
    is_one_of_many: bool = False
    """Whether each request gets a connection of its own, so that it may come to another replica."""


class _Unanswered(Exception):  # noqa: N818 - what happened
    """There is no answer to a message."""


class Agent:
    """One agent."""

    def __init__(self, config: Config) -> None:
        """Make its node, and its clients."""
        self.config = config
        self.log = Log(1, config.name)
        self.ways = Ways()
        self.journal = Path(config.folder, f"{config.name}.journal")
        if config.store:
            self.journal = Path(f"{config.store.removeprefix('sqlite://')}-wal")
        self.seconds_ahead = 0.0
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
                store=None if config.kind == "brief" else config.store or self.journal,
                replica=config.replica,
                lease_seconds=config.lease,
                peers=[url for name, url in config.peers.items() if config.kinds[name] != "opaque"],
                transport=HttpTransport(httpx.AsyncClient(timeout=None, headers=headers)),  # noqa: S113 - the node bounds it
                patience=Patience(**config.patience),  # type: ignore[arg-type]  # one is an int
                services=["*"] if config.mutant == "declared" else (),
            )  # fmt: skip
            if config.name != BARE:
                self.node.instrument()
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
            if plan.pattern != "starlette":
                await self.go_on(cascade, plan)
            await self.send_all(cascade, [one for one in plan.children if one.mode != "background"])
            if plan.fail:
                message = "it was to fail"
                raise ValueError(message)

    def piece(self, cascade: str, plan: Plan, name: str) -> Piece:
        """Begin a piece of work, of the hop that the running code belongs to."""
        return self.log.piece(cascade, plan.hop, name, joined=current_hop() is not None)

    def left(self, cascade: str, plan: Plan) -> Job:
        """Begin the work that a handler leaves behind; in some patterns, it sends messages."""
        later = [child for child in plan.children if child.mode == "background"]
        sent = later if plan.pattern in SENDING else []
        piece = self.piece(cascade, plan, plan.pattern)
        return Job(cascade, piece, plan.after, lambda: self.send_all(cascade, sent))

    async def go_on(self, cascade: str, plan: Plan) -> None:
        """Leave work behind, if the plan has some; where that does not send the messages, a task does."""
        sends = any(child.mode == "background" for child in plan.children)
        if plan.after or sends:
            job = self.left(cascade, plan)
            with self.broken(job):
                await self.ways.leave(plan.pattern, job)
        if sends and plan.pattern not in SENDING:
            await self.ways.leave(
                "task", self.left(cascade, replace(plan, after=0.0, pattern="task"))
            )

    def broken(self, job: Job) -> AbstractContextManager[object]:
        """Return what an agent does around the leaving of work that is broken on purpose, or nothing."""
        if self.config.mutant != "detached":
            return contextlib.nullcontext()
        job.told = self.ways.told[job.cascade]
        return quiesce.detached()

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
            elif plan.mode in {"httpx", "plain"}:
                await self.post(self.plain, cascade, plan)
            elif plan.mode == "sync":
                await asyncio.to_thread(self.post_here, cascade, plan)
            else:
                await self.post(self.client, cascade, plan)
        except (httpx.HTTPError, StoreLost, _Unanswered) as error:
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
                receipt = answer.headers.get("Cascade-Receipt")
                handing.answered(receipt, is_error=answer.is_error)
            await answer.aread()
        finally:
            await answer.aclose()

    def post_here(self, cascade: str, plan: Plan) -> None:
        """Post a message in a thread, as code does that knows nothing of quiesce."""
        url = self.config.peers[plan.agent] + "/run"
        headers = {"X-From": self.config.name, "X-Hop": f"{cascade}/{plan.hop}"}
        made = {"cascade": cascade, "plan": plan.to_json()}
        httpx.post(url, json=made, headers=headers, timeout=_ANSWER_SECONDS)

    async def send_again(self, hop: Hop, cascade: str, plan: Plan) -> None:
        """Send a message, do not wait long, and send it again as the same one."""
        async with hop.delegate(self.config.peers[plan.agent]) as handing:
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
            await self.go_on(cascade, plan)
            at_once = [child for child in plan.children if child.mode != "background"]
            return await self.send_all(cascade, at_once)

    async def cancel(self, made: Cascade, seconds: float) -> None:
        """Cancel a cascade after a while."""
        await asyncio.sleep(seconds)
        await made.cancel()

    async def tell(self, made: Cascade) -> None:
        """Write down the verdict, and when it was there."""
        assert self.node is not None
        full = await made.settled()
        now = time.monotonic()
        while made._receipt is None:
            if self.node.health.state in {"draining", "closed"}:  # the next process is told
                self.log.write("interrupted", id=made.id)
                return
            await asyncio.sleep(0.05)  # it cannot be known while the disk is full
            full = await made.settled()
            now = time.monotonic()
        lenient = await made.settled(require="participants")
        counts = {
            name: getattr(full.receipt, name)
            for name in (
                "hops",
                "failed",
                "cancelled",
                "lost",
                "opaque",
                "untracked",
                "undelivered",
                "unknown",
                "volatile",
            )
        }
        self.log.write(
            "verdict", id=made.id, full=type(full).__name__, participants=type(lenient).__name__,
            at=min(now, made._ended_at), counts=counts, missing=_missing(full),
        )  # fmt: skip

    async def tell_what_it_inherits(self, count: int) -> None:
        """Wait for cascades that another replica has begun, which is dead, and write down what became of them."""
        assert self.node is not None
        while True:
            await asyncio.sleep(0.05)
            for cascade in self.node.recovered[count:]:
                self.keep(self.tell(cascade))
            count = len(self.node.recovered)

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
            await self.run(scope, receive, send)
        elif scope["path"].startswith("/hook/"):
            await self.take_push(scope["path"], receive, send)
        else:
            await _answer(send, 404, [b""])

    async def live(self, receive: Receive, send: Send) -> None:
        """Go on, at the beginning, with what an earlier process has begun."""
        assert (await receive())["type"] == "lifespan.startup"
        async with self.ways.running():
            if self.node is not None:
                for cascade in self.node.recovered:
                    self.keep(self.tell(cascade))
                if self.config.is_one_of_many:
                    self.keep(self.tell_what_it_inherits(len(self.node.recovered)), outside=True)
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

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
            await self.go_on(cascade, Plan(hop, "", after=_PUSH_SECONDS))
            await _answer(send, 200, [b""])

    async def run(self, scope: Any, receive: Receive, send: Send) -> None:
        """Do what the plan in a request tells."""
        body = await _body(receive)
        if not body:  # it was taken, and what it says is lost with its connection
            cascade, _, hop = dict(scope["headers"])[b"x-hop"].decode().partition("/")
            self.log.write("unread", cascade=cascade, hop=hop)
        asked = json.loads(body)
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
                await self.respond(cascade, plan, scope, receive, send)
            await asyncio.sleep(plan.tail)

    async def respond(self, cascade: str, plan: Plan, scope: Any, receive: Receive, send: Send) -> None:  # fmt: skip
        """Answer; with a background task of Starlette, if that is the pattern."""
        if plan.pattern != "starlette":
            await _answer(send, 200, [b"done\n"])
            return
        from starlette.background import BackgroundTask  # noqa: PLC0415 - only agents have it
        from starlette.responses import PlainTextResponse  # noqa: PLC0415 - only agents have it

        job = self.left(cascade, plan)
        broken = (
            quiesce.detached() if self.config.mutant == "detached" else contextlib.nullcontext()
        )
        try:
            with broken:
                await PlainTextResponse("done\n", background=BackgroundTask(job.run))(scope, receive, send)  # fmt: skip
        finally:
            job.piece.end()  # if it was never begun


def _missing(settlement: Any) -> list[str]:
    why = [f"{note.name}: {note.status} {note.why}" for note in settlement.receipt.notes if note.status != "done"]  # fmt: skip
    told = [*getattr(settlement, "missing", ()), *why]
    return [text[:300] for text in told[:8]]  # a line has to be short


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, status: int, parts: list[bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    for part in parts:
        await send({"type": "http.response.body", "body": part})


def _http_app(agent: Agent) -> Any:
    return agent.app if agent.node is None else agent.node.asgi(agent.app)


def _a2a_app(agent: Agent) -> Any:
    from tests.integration.mesh import a2a  # noqa: PLC0415 - it needs the SDK

    return a2a.app(agent)


KINDS: dict[str, Callable[[Agent], Any]] = {
    "http": _http_app, "opaque": _http_app, "brief": _http_app, "a2a": _a2a_app,
}  # fmt: skip
"""By kind of agent, how its app is made."""


async def main(config: Config) -> None:
    """Serve until it is told to end."""
    if config.mutant in broken.WAYS:
        broken.WAYS[config.mutant]()
    real = time.time
    time.time = lambda: real() + agent.seconds_ahead  # before the node asks for it
    agent = Agent(config)
    made = uvicorn.Config(
        KINDS[config.kind](agent),
        log_level="warning",
        lifespan="on",
        interface="asgi3",
        # Longer than clients keep a connection, or messages are lost on one that is being closed.
        timeout_keep_alive=60,
        headers=[("connection", "close")] if config.is_one_of_many else [],
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def tell() -> None:
        known = () if agent.node is None else agent.node.recovered
        port = listener.getsockname()[1]
        agent.log.write("ready", port=port, recovered=[cascade.id for cascade in known])

    server = Server(made)
    server.tell = tell
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, tell_all, server)
    loop.add_reader(0, Orders(agent).read)
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(main(Config(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
