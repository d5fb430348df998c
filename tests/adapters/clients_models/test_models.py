"""Clients of models, which stand on httpx2: what they send to a model is no message, and to a peer it is one.

Not collected by itself: tests/integration/test_clients.py runs it with the newest of each client.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from quiesce.mesh import Settled
from tests.unit.mesh.clients.peering import peer, sender

pytestmark = [pytest.mark.real_time, pytest.mark.backends("asyncio", "uvloop")]

_HELLO: list[Any] = [{"role": "user", "content": "hello"}]
_CHAT = {
    "id": "1", "object": "chat.completion", "created": 0, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}  # fmt: skip
_MESSAGE = {
    "id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "hi"}],
    "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip
BODIES = {
    "/v1/chat/completions": json.dumps(_CHAT).encode(),
    "/v1/messages": json.dumps(_MESSAGE).encode(),
}


async def ask_openai(url: str, **options: Any) -> str | None:
    """Ask a model of one."""
    options = {"max_retries": 0, **options}
    async with openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", **options) as client:
        answer = await client.chat.completions.create(model="m", messages=_HELLO)
        said: str | None = answer.choices[0].message.content
        return said


async def ask_anthropic(url: str, **options: Any) -> str | None:
    """Ask a model of the other."""
    options = {"max_retries": 0, **options}
    async with anthropic.AsyncAnthropic(api_key="k", base_url=url, **options) as client:
        answer = await client.messages.create(model="m", messages=_HELLO, max_tokens=1)
        said: str | None = answer.content[0].text
        return said


both = pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])


@both
@pytest.mark.parametrize("is_instrumented", [False, True])
async def test_a_model_is_sent_nothing_of_the_mesh(ask: Any, is_instrumented: bool) -> None:  # noqa: FBT001 - a parameter
    """And the verdict is green: the call has ended when the handler has."""
    with peer(BODIES) as model, peer() as b:
        async with sender(b) as node:
            undo = node.instrument() if is_instrumented else None
            async with node.cascade("c") as cascade:
                assert await ask(model.url) == "hi"
            found = await cascade.settled(5, require="participants")
            if undo is not None:
                undo.undo()
    assert model.edges == [None]
    assert isinstance(found, Settled), str(found)
    assert found.receipt.hops == 1


@both
async def test_a_peer_that_speaks_like_a_model_is_handed_a_message(ask: Any) -> None:
    """By an instrumented client, and by one that stands on the node's own."""
    with peer(BODIES) as b:
        async with sender(b) as node:
            async with node.cascade("own") as own:
                client = node.client(library="httpx2", trust_env=False)
                assert isinstance(client, httpx2.AsyncClient)
                assert await ask(b.url, http_client=client) == "hi"
            with node.instrument():
                async with node.cascade("plain") as plain:
                    assert await ask(b.url) == "hi"
            for cascade in (own, plain):
                found = await cascade.settled(5, require="participants")
                assert isinstance(found, Settled), str(found)
                assert found.receipt.hops == 2
    assert None not in b.edges
