"""The connection to NATS: questions with their answers, within a time limit, across reconnects.

nats-py reconnects by itself while its client lives. After some errors (the server ends the connection for another
reason than a fault) the client is closed for good; then the next question makes a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import secrets
from typing import TYPE_CHECKING, Any, TypeVar

from quiesce.core.current import detached
from quiesce.errors import SdkMissing, UsageError

try:
    import nats.errors
    from nats.aio.client import Client
except ModuleNotFoundError as _missing:
    if _missing.name not in {"nats", "nats.errors", "nats.aio", "nats.aio.client"}:
        raise
    raise SdkMissing(
        "a store in NATS needs nats-py, which is not installed: pip install 'quiesce[nats]'",
        name="nats",
    ) from None

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.msg import Msg

    from quiesce.mesh.store.nats_subjects import NatsAddress

__all__: list[str] = []

_T = TypeVar("_T")
_log = logging.getLogger("quiesce.mesh")

_BUFFER = (
    256 * 2**20
)  # so that publishing never waits inside nats-py, where a cancellation would be lost
_DEFAULT_LARGEST = 2**20
_CLOSE_SECONDS = 2.0
_PATIENCE_MIN = 0.5  # with one question; a server that is slow is waited for longer the next time
_MESSAGE_SECONDS = 0.005  # more for each message of a commit
_PAUSE_FIRST, _PAUSE_MAX = 0.005, 0.25
_SETTLING_STEPS = 20  # of the event loop: the tasks of a closed client end in them


class NotNowError(Exception):
    """The servers do not answer, or not as they do when they are well: the same may succeed a moment later."""


class RefusedError(Exception):
    """The server has answered with an error of JetStream."""

    def __init__(self, code: int, text: str) -> None:
        """Carry the error's number and text."""
        self.code = code
        super().__init__(f"{text} ({code})" if code else text)


class _Answer:
    """Collects the messages of one answer."""

    def __init__(self, *, is_list: bool) -> None:
        self.is_list = is_list
        self.messages: list[Msg] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, message: Msg) -> None:
        self.messages.append(message)
        if not self.done.done() and (not self.is_list or status(message)):
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(NotNowError(why))
            self.done.exception()  # nobody may wait for it any more


def status(message: Msg) -> str:
    """Return the status of a message of the server itself; empty for any other."""
    return (message.headers or {}).get("Status", "")


class NatsLink:
    """A connection of one process."""

    def __init__(self, address: NatsAddress, attempt_seconds: float) -> None:
        """Describe the connection. `attempt_seconds`: how long one question waits for its answer at most."""
        self.address = address
        self.last_trouble: str = ""
        self.is_open: bool = False
        self.denied: str = ""
        self.unanswered: int = 0
        """Questions in a row that no server has listened to."""
        self._is_connecting = False
        self.on_connected: list[Callable[[], None]] = []
        self._attempt_seconds = attempt_seconds
        self._patience = min(_PATIENCE_MIN, attempt_seconds)
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._up = asyncio.Event()
        self._answers: dict[str, _Answer] = {}
        self._tokens = itertools.count()
        self._inbox = ""
        self._listeners: dict[str, Callable[[bytes], None]] = {}

    def start(self) -> None:
        """Allow questions, in the event loop that runs now; the first one connects."""
        if not self.is_open:
            self.is_open = True
            self._opening = asyncio.Lock()
            self._up = asyncio.Event()

    # Connecting.

    async def _connected(self) -> Client:
        """Wait for a connection and return its client."""
        while True:
            if not self.is_open:
                raise UsageError(f"the store {self.address.label} is not open: call open() first")
            client = self._client
            if client is not None and client.is_connected:
                return client
            if client is None or client.is_closed:
                await self._renew()
            else:
                self._up.clear()
                await self._up.wait()

    async def _renew(self) -> None:
        async with self._opening:
            if self._client is not None and not self._client.is_closed:
                return
            client = Client()
            with detached():  # its tasks belong to the store, not to the caller's scope
                connecting = asyncio.ensure_future(self._connect(client))
            self._is_connecting = True
            try:
                await asyncio.shield(connecting)
            except BaseException as error:
                connecting.cancel()
                await asyncio.wait([connecting])
                await _end(client)
                if isinstance(error, nats.errors.Error | OSError):
                    raise NotNowError(self._note(error)) from None
                raise
            finally:
                self._is_connecting = False
            self._client = client
            self._note_up()

    async def _connect(self, client: Client) -> None:
        await client.connect(
            list(self.address.servers), name="quiesce", user=self.address.user,
            password=self.address.password, error_cb=self._on_error, disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected, closed_cb=self._on_closed, connect_timeout=2,
            reconnect_time_wait=0.1, max_reconnect_attempts=-1, ping_interval=2, max_outstanding_pings=2,  # type: ignore[arg-type]  # a fraction of a second does
            pending_size=_BUFFER, token=self._bare_token,
        )  # fmt: skip
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._on_answer)
        for subject in self._listeners:
            await client.subscribe(subject, cb=self._on_message)

    @property
    def _bare_token(self) -> str | None:
        return self.address.user if self.address.password is None else None

    @property
    def largest(self) -> int:
        """The size of the largest message that the server takes, with its headers."""
        return _DEFAULT_LARGEST if self._client is None else self._client.max_payload

    def _note(self, error: BaseException) -> str:
        """Remember a trouble of the connection for the next message."""
        text = self.address.without_secrets(str(error) or type(error).__name__)
        self.last_trouble = text
        if "permissions violation" in text.lower():
            self.denied = text
            self._fail_all(text)
        return text

    def _note_up(self) -> None:
        self.last_trouble = ""
        self._up.set()
        for call in self.on_connected:
            call()

    async def _on_error(self, error: Exception) -> None:
        text = self._note(error)
        _log.debug("NATS: %s", text)
        lower = text.lower()
        if self._is_connecting and ("authorization" in lower or "authentication" in lower):
            raise RefusedError(0, text)  # out of `connect`, which would try again for ever

    async def _on_disconnected(self) -> None:
        self.last_trouble = self.last_trouble or "the connection was lost"
        self._fail_all("the connection was lost")

    async def _on_reconnected(self) -> None:
        self._note_up()

    async def _on_closed(self) -> None:
        self._up.set()  # who waits looks again, and makes a new client
        self._fail_all("the connection was closed")

    def _fail_all(self, why: str) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.fail(why)

    async def _on_answer(self, message: Msg) -> None:
        answer = self._answers.get(message.subject.rpartition(".")[2])
        if answer is not None:
            answer.add(message)

    async def _on_message(self, message: Msg) -> None:
        listener = self._listeners.get(message.subject)
        if listener is not None:
            listener(message.data)

    async def close(self) -> None:
        """Close the connection, in a bounded time."""
        self.is_open = False
        client, self._client = self._client, None
        self._fail_all("the store was closed")
        self._up.set()
        if client is not None:
            await _end(client)

    # Questions.

    async def ask(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None,
        *, before: list[tuple[str, bytes, dict[str, str]]] | None = None, is_list: bool = False,
    ) -> list[Msg]:  # fmt: skip
        """Send messages, the last with a return address, and return the answer.

        *Raises*: `NotNowError`.
        """
        client = await self._connected()
        name = str(next(self._tokens))
        answer = self._answers[name] = _Answer(is_list=is_list)
        seconds = self._patience + _MESSAGE_SECONDS * len(before or ())
        began = asyncio.get_running_loop().time()
        try:
            for one in before or ():
                await client.publish(one[0], one[1], headers=one[2])
            await client.publish(subject, payload, reply=f"{self._inbox}.{name}", headers=headers)
            async with asyncio.timeout(seconds):
                await answer.done
        except TimeoutError:
            self._patience = min(2 * self._patience, self._attempt_seconds)
            raise NotNowError(f"no answer from JetStream in {seconds:.1f} seconds") from None
        except (nats.errors.Error, OSError) as error:
            raise NotNowError(self._note(error)) from None
        finally:
            self._answers.pop(name, None)
        if status(answer.messages[-1]) == "503":
            self.unanswered += 1
            raise NotNowError("no server of JetStream answers: there is none, or no leader now")
        self.unanswered = 0
        took = asyncio.get_running_loop().time() - began
        self._patience = min(max(4 * took, _PATIENCE_MIN), self._attempt_seconds)
        return answer.messages

    async def call(self, subject: str, request: object = None) -> dict[str, Any]:
        """Ask the API of JetStream.

        *Raises*: `RefusedError`, `NotNowError`.
        """
        payload = b"" if request is None else json.dumps(request).encode()
        return _checked(await self.ask(f"$JS.API.{subject}", payload))

    async def publish(self, messages: list[tuple[str, bytes, dict[str, str]]]) -> int:
        """Write messages to a stream in one commit; return the sequence of the last one.

        *Raises*: `RefusedError`, `NotNowError`.
        """
        subject, payload, headers = messages[-1]
        if len(messages) == 1:
            return int(_checked(await self.ask(subject, payload, headers))["seq"])
        name = secrets.token_hex(11)
        for number, (_, _, one) in enumerate(messages, 1):
            one["Nats-Batch-Id"] = name
            one["Nats-Batch-Sequence"] = str(number)
        headers["Nats-Batch-Commit"] = "1"
        answer = await self.ask(subject, payload, headers, before=messages[:-1])
        return int(_checked(answer)["seq"])

    # Wake-ups.

    async def listen(self, subject: str, listener: Callable[[bytes], None]) -> None:
        """Call `listener` with each message of a subject, also after a reconnect."""
        client = await self._connected()
        known = subject in self._listeners
        self._listeners[subject] = listener
        if not known:
            try:
                with detached():
                    await client.subscribe(subject, cb=self._on_message)
            except nats.errors.Error as error:
                raise NotNowError(self._note(error)) from None

    def deafen(self, subject: str) -> None:
        """Call no listener for a subject any more."""
        if subject in self._listeners:
            self._listeners[subject] = lambda _: None

    async def tell(self, subject: str, payload: bytes) -> None:
        """Send a message if there is a connection."""
        if self._client is not None and self._client.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.publish(subject, payload)


def _checked(answer: list[Msg]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer[-1].data)
    error = found.get("error")
    if error is not None:
        raise RefusedError(int(error.get("err_code", 0)), str(error.get("description", "")))
    return found


async def _end(client: Client) -> None:
    """Close a client, and let its tasks end."""
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    for _ in range(_SETTLING_STEPS):
        await asyncio.sleep(0)


async def persist(step: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a step while the servers do not answer. The caller sets the time limit."""
    pause = _PAUSE_FIRST
    while True:
        try:
            return await step()
        except NotNowError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX)
