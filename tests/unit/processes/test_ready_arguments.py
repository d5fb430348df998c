"""What cannot work is refused when the probe is made, by name."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest

import quiesce
from quiesce import ready
from quiesce.errors import ArgumentError
from quiesce.processes.readiness.addresses import PATH_BYTES_MAX
from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.probe import Fd, Line, Probe, ready_of

if TYPE_CHECKING:
    from collections.abc import Callable


def untyped(value: Any) -> Any:
    """Pass what the types forbid."""
    return value


LONGEST = "x" * (PATH_BYTES_MAX - 1)
CASES: dict[str, tuple[Callable[[], object], str]] = {
    "long path": (lambda: UnixSocket(LONGEST + "x"), f"at most {PATH_BYTES_MAX - 1}"),
    "long path in bytes": (lambda: UnixSocket("é" * 60), "has 120 bytes"),
    "long path to listen at": (lambda: Listener.unix(LONGEST + "x"), "Listener.unix.*at most"),
    "long path of Http": (lambda: Http("http://x/", unix=LONGEST + "x"), "Http.*at most"),
    "empty path": (lambda: UnixSocket(""), "not empty"),
    "NUL in the path": (lambda: UnixSocket("a\0b"), "a NUL"),
    "path that cannot be encoded": (lambda: UnixSocket("\ud800"), "encoding cannot express"),
    "bytes as path": (lambda: UnixSocket(untyped(b"x")), "needs a path"),
    "no port": (lambda: Tcp("localhost", 0), "from 1 to 65535, not 0"),
    "big port": (lambda: Tcp("localhost", 65536), "not 65536"),
    "port as text": (lambda: Tcp("localhost", untyped("80")), "not '80'"),
    "True as port": (lambda: Tcp("localhost", True), "not True"),  # noqa: FBT003 - the mistake
    "empty host": (
        lambda: Tcp("", 80),
        "the host of Tcp must be a valid host name or IP address, not ''",
    ),
    "space in the host": (lambda: Tcp("a b", 80), "not 'a b'"),
    "long host": (lambda: Tcp("x" * 64, 80), "must be a valid host name"),
    "host of another type": (lambda: Tcp(untyped(None), 80), "must be a string"),
    "https": (lambda: Http("https://x/"), "for other schemes, pass an async function"),
    "no scheme": (lambda: Http("localhost:80/x"), "for other schemes"),
    "no host": (lambda: Http("http:///x"), "must have a host"),
    "user": (lambda: Http("http://me@x/"), "must not have a user"),
    "bad port": (lambda: Http("http://x:y/"), "needs a URL like"),
    "port out of range": (lambda: Http("http://x:99999/"), "needs a URL like"),
    "port zero": (lambda: Http("http://x:0/"), "not 0"),
    "line end in the URL": (lambda: Http("http://x/\r\nHost:y"), "characters"),
    "umlaut in the URL": (lambda: Http("http://x/ü"), "characters"),
    "long host in the URL": (lambda: Http(f"http://{'x' * 64}/"), "the host of Http"),
    "bad bracket": (lambda: Http("http://[::1/"), "needs a URL like"),
    "interim status": (lambda: Http("http://x/", 100), "like 200, not 100"),
    "status as text": (lambda: Http("http://x/", untyped("200")), "not '2'"),
    "True as status": (lambda: Http("http://x/", True), "not True"),  # noqa: FBT003 - the mistake
    "no status": (lambda: Http("http://x/", ()), "not empty"),
    "bad pattern": (lambda: Line("(ready"), "'\\(ready', is not a regular expression"),
    "pattern of another type": (lambda: Line(untyped(5)), "must be a string"),
    "pattern of bytes": (lambda: Line(untyped(re.compile(b"x"))), "must be a string, not b'x'"),
    "bad variable": (lambda: Fd("A=B"), "only letters, digits and _, not 'A=B'"),
    "empty placeholder": (lambda: Fd(placeholder=""), "must not be empty"),
    "class": (lambda: ready_of(Fd), r"write Fd\(…\)"),
    "not callable": (lambda: ready_of(5), "5 is not a function"),
    "name to listen at": (lambda: Listener.tcp("example.test"), "an IP address or 'localhost'"),
    "bad port to listen at": (lambda: Listener.tcp(port=-1), "from 0 to 65535"),
    "mode as text": (lambda: Listener.unix("nowhere/x", mode=untyped("0600")), "mode.*not '0600'"),
    "mode with other bits": (
        lambda: Listener.unix("nowhere/x", mode=0o1777),
        "mode of Listener.unix",
    ),
    "bad backlog": (lambda: Listener.tcp(backlog=0), "backlog must be"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused(case: str) -> None:
    """Each mistake is an ArgumentError that names it."""
    make, message = CASES[case]
    with pytest.raises(ArgumentError, match=message):
        make()


def test_what_is_just_right_is_taken() -> None:
    """The limits themselves are allowed, and a good probe shows what it is."""
    assert UnixSocket(LONGEST).path == LONGEST
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(FileNotFoundError):
        sock.connect(f"no-such-folder/{LONGEST[15:]}")
    assert repr(Tcp("::1", 65535)) == "Tcp('::1', 65535)"
    assert Http("http://[::1]:8000").host == "::1"
    assert Http("http://x", range(200, 300)).status[-1] == 299
    assert repr(Line("a")) == "Line('a')"
    assert repr(Fd()) == "Fd('READY_FD')"
    assert repr(UnixSocket("a")) == "UnixSocket('a')"
    assert repr(Http("http://x")) == "Http('http://x')"


def test_a_probe_of_the_users_own_is_taken_as_it_is() -> None:
    """Anything with prepare and wait is a probe, and a library probe is copied for each launch."""

    class Own:
        def prepare(self, launch: object) -> None:
            """Do nothing."""

        async def wait(self, process: object) -> None:
            """Return at once: the process is ready."""

    own = Own()
    assert ready_of(own) is own
    line = Line("x")
    copied = ready_of(line)
    assert copied is not line
    assert isinstance(copied, Probe)


@pytest.mark.parametrize("name", ["Fd", "Http", "Line", "Listener", "Tcp", "UnixSocket"])
def test_a_probe_that_is_looked_for_where_it_was_is_found(name: str) -> None:
    """However it is asked for, the error says where it is."""
    assert hasattr(ready, name)
    text = f"quiesce.{name} moved to quiesce.ready.{name}$"
    with pytest.raises(AttributeError, match=text):
        getattr(quiesce, name)
    with pytest.raises(ImportError, match=text):
        exec(f"from quiesce import {name}", {})  # noqa: S102 - as a program would
    assert not hasattr(quiesce, name)


def test_a_name_that_never_was_is_refused_as_ever() -> None:
    """It has moved nowhere."""
    with pytest.raises(AttributeError, match=r"^module 'quiesce' has no attribute 'Htpp'$"):
        quiesce.Htpp  # type: ignore[attr-defined]  # noqa: B018 - on purpose
