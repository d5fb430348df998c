"""What is wrapped of other libraries: while it has to be, also if it is imported late, and not a moment longer."""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from quiesce.core.patches import Patch
from quiesce.core.python_private import request_head, tunnel_of
from quiesce.mesh import Node
from quiesce.mesh.clients.client_hooks import Hooks
from tests.unit.mesh.clients.peering import sender

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


def state() -> list[object]:
    """Return what is wrapped, and what finds modules."""
    places = (http.client.HTTPConnection, socket.socket, socket, uvloop.Loop)
    names = ["endheaders", "getresponse", "close", "connect", "connect_ex", "getaddrinfo"]
    names.append("create_connection")
    return [vars(place).get(name) for place in places for name in names] + list(sys.meta_path)


async def test_libraries_are_wrapped_while_a_node_is_open() -> None:
    """By the first that is opened, until the last is closed: then all is exactly what it was."""
    before = state()
    async with sender():
        wrapped = state()
        assert wrapped != before
        async with sender():
            assert state() == wrapped
        assert state() == wrapped
    assert state() == before


async def test_instruments_are_undone_once() -> None:
    """An undo that comes twice does not take those of another away."""
    before, node = state(), Node("a")
    first, second = node.instrument(), node.instrument()
    assert state() != before
    first.undo()
    first.undo()
    assert state() != before
    second.undo()
    assert state() == before


async def test_a_node_that_is_dropped_keeps_nothing_wrapped() -> None:
    """The next that is closed restores the libraries."""
    before = state()
    Node("a").instrument()
    async with sender():
        pass
    assert state() == before


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a module that was not imported yet."""
    (tmp_path / "quiesce_late.py").write_text("def send():\n    return 'sent'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "quiesce_late"
    sys.modules.pop("quiesce_late", None)


def loud(module: ModuleType) -> Iterator[Patch]:
    """Wrap the one function of the module."""

    def make(original: Any) -> Any:
        return lambda: original().upper()

    yield Patch(module, "send", make)


def test_a_library_that_is_imported_later_is_wrapped(late: str) -> None:
    """As soon as its import is through, and its loader is as it was."""
    hooks = Hooks({late: loud})
    hooks.fit(is_wanted=True)
    try:
        assert importlib.util.find_spec(late) is not None  # only looked for
        module: Any = importlib.import_module(late)
        assert module.send() == "SENT"
        assert "exec_module" not in vars(module.__loader__)
    finally:
        hooks.fit(is_wanted=False)
    assert module.send() == "sent"


def test_a_library_that_is_imported_after_the_end_is_not_wrapped(late: str) -> None:
    """Also if it was looked for before."""
    hooks = Hooks({late: loud})
    hooks.fit(is_wanted=True)
    spec = importlib.util.find_spec(late)
    assert spec is not None
    assert spec.loader is not None
    hooks.fit(is_wanted=False)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.send() == "sent"


def test_a_version_that_is_not_known_does_not_fail_its_import(
    late: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and what could be wrapped is restored in the end."""

    def strange(module: ModuleType) -> Iterator[Patch]:
        yield from loud(module)
        yield Patch(module, "missing", lambda original: original)

    hooks = Hooks({late: strange})
    hooks.fit(is_wanted=True)
    try:
        with caplog.at_level(logging.WARNING, "quiesce"):
            module: Any = importlib.import_module(late)
        assert "does not know this version of quiesce_late" in caplog.text
    finally:
        hooks.fit(is_wanted=False)
    assert module.send() == "sent"


def test_all_that_is_wrapped_is_there_to_be_wrapped() -> None:
    """What is of Python itself, in this version of it."""
    for name in ("putheader", "endheaders", "getresponse", "close"):
        assert callable(getattr(http.client.HTTPConnection, name))
    connection = http.client.HTTPConnection("127.0.0.1")
    connection.putrequest("POST", "/run")
    assert request_head(connection)[0] == b"POST /run HTTP/1.1"
    assert tunnel_of(connection) is None
