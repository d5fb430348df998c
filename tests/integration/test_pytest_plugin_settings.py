"""The guard's settings in pytest: modes, the marker, patterns, the baseline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.plugin_runs import run

if TYPE_CHECKING:
    from pathlib import Path

LEAKY = """
import pytest, threading
def leave(name): threading.Thread(target=threading.Event().wait, name=name, daemon=True).start()
"""


def test_off_is_the_default(tmp_path: Path) -> None:
    """Without a setting nothing is guarded, but for a test whose marker says so."""
    source = LEAKY + (
        "def test_a(): leave('a')\n@pytest.mark.quiesce(guard='error')\ndef test_b(): leave('b')\n"
    )
    outcome = run(tmp_path, source, guard=None)
    assert outcome.counts() == {"passed": 2, "error": 1}, outcome.text
    assert "thread:b" in outcome.text


def test_the_setting_is_read_from_a_file(tmp_path: Path) -> None:
    """`quiesce_guard` and `quiesce_allow` come from pytest's settings, and an option wins."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nquiesce_guard = error\nquiesce_allow =\n    thread:a\n    task:*\n"
    )
    source = LEAKY + "def test_a(): leave('a')\ndef test_b(): leave('b')\n"
    outcome = run(tmp_path, source, "-cpytest.ini", guard=None)
    assert outcome.counts() == {"passed": 2, "error": 1}, outcome.text
    assert "thread:b" in outcome.text
    assert run(tmp_path, source, "-cpytest.ini", guard="off").counts() == {"passed": 2}


def test_warn_warns(tmp_path: Path) -> None:
    """With `warn` the test passes, and the warning tells what was left."""
    source = LEAKY + "def test_a(): leave('a')\n"
    outcome = run(tmp_path, source, guard="warn")
    assert outcome.counts() == {"passed": 1, "warning": 1}, outcome.text
    assert "LeakWarning: quiesce guard: left behind: thread:a" in outcome.text
    assert outcome.code == 0


def test_the_marker_tunes_one_test(tmp_path: Path) -> None:
    """A marker turns the guard off or allows some things, of a test, a class or a module."""
    source = LEAKY + (
        "pytestmark = pytest.mark.quiesce(allow=['thread:module*'])\n"
        "@pytest.mark.quiesce(guard='off')\n"
        "def test_off(): leave('a')\n"
        "@pytest.mark.quiesce(allow=['thread:b'])\n"
        "def test_allow():\n"
        "    leave('b')\n"
        "    leave('module 1')\n"
        "@pytest.mark.quiesce(allow=['thread:b'])\n"
        "def test_other(): leave('c')\n"
        "@pytest.mark.quiesce(guard='warn')\n"
        "def test_warn(): leave('d')\n"
    )
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"passed": 4, "error": 1, "warning": 1}, outcome.text
    assert "thread:c" in outcome.text


@pytest.mark.parametrize(
    ("marker", "options", "message"),
    [
        ("guard='loud'", (), "guard must be one of error, warn, off, not 'loud'"),
        ("allow='thread:*'", (), "allow takes a list of patterns, as in ['thread:*']"),
        ("allow=['threads']", (), "'threads' is not a pattern of the form kind:name"),
        ("allowed=[]", (), "the marker quiesce takes only guard=, allow= and escapes=, by name"),
        (
            "",
            ("-oquiesce_guard=loud",),
            "quiesce_guard must be one of error, warn, off, not 'loud'",
        ),
        ("escapes='loud'", (), "escapes must be one of error, report, off, not 'loud'"),
        (
            "",
            ("-oquiesce_escapes=loud",),
            "quiesce_escapes must be one of error, report, off, not 'loud'",
        ),
        ("", ("-oquiesce_allow=x",), "'x' is not a pattern of the form kind:name"),
        ("", ("--quiesce-baseline=test_it.py",), "test_it.py is not a baseline file"),
    ],
)
def test_a_wrong_setting_is_refused(
    tmp_path: Path, marker: str, options: tuple[str, ...], message: str
) -> None:
    """What cannot work is an error that says what to do."""
    source = f"import pytest\n@pytest.mark.quiesce({marker})\ndef test_a(): pass\n"
    guard = None if options and "guard" in options[0] else "error"
    outcome = run(tmp_path, source, *options, guard=guard)
    assert outcome.code != 0
    assert message in outcome.text + outcome.complaints


def test_socket_files_in_a_temporary_folder_may_stay(tmp_path: Path) -> None:
    """Pytest keeps its temporary folders on purpose: a socket file in one is not left behind."""
    source = """
    import socket
    def bind(path):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
    def test_temporary(tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        bind("kept.sock")
    def test_elsewhere(): bind("left.sock")
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"passed": 2, "error": 1}, outcome.text
    assert "socket:left.sock" in outcome.text


def test_a_recorded_warning_is_the_tests_own(tmp_path: Path) -> None:
    """A test that records the warning of a coroutine that is not awaited knows about it."""
    source = """
    import pytest
    async def nothing(): pass
    def test_knows():
        with pytest.warns(RuntimeWarning, match="never awaited"):
            nothing()
    """
    assert run(tmp_path, source).counts() == {"passed": 1}


# --- the baseline -------------------------------------------------------------------------------


def known(folder: Path) -> object:
    """Read what the baseline tolerates."""
    return json.loads((folder / "known.json").read_text())["tests"]


def test_the_baseline_only_shrinks(tmp_path: Path) -> None:
    """It is written once, tolerates what it lists, takes nothing new, and loses what is mended."""
    option = "--quiesce-baseline=known.json"
    first = LEAKY + (
        "def test_a():\n    leave('a')\n    leave('a')\ndef test_b(): leave('b')\n"
        "def test_c(): pass\n"
    )
    outcome = run(tmp_path, first, option)
    assert outcome.counts() == {"passed": 3}, outcome.text
    assert outcome.code == 0
    assert "baseline written: 3 known in 2 tests" in outcome.text
    everything = {"test_it.py::test_a": {"thread:a": 2}, "test_it.py::test_b": {"thread:b": 1}}
    assert known(tmp_path) == everything

    assert run(tmp_path, first, option).counts() == {"passed": 3}
    assert known(tmp_path) == everything

    worse = LEAKY + (
        "def test_a():\n    leave('a')\n    leave('new')\n"
        "def test_b():\n    leave('b')\n    leave('b')\ndef test_c(): leave('c')\n"
    )
    outcome = run(tmp_path, worse, option)
    assert outcome.counts() == {"passed": 3, "error": 3}, outcome.text
    assert "baseline: 1 of 3 gone, 2 left" in outcome.text
    assert known(tmp_path) == {
        "test_it.py::test_a": {"thread:a": 1},
        "test_it.py::test_b": {"thread:b": 1},
    }

    outcome = run(tmp_path, worse, option, "-k", "test_b")  # what did not run is not judged
    assert known(tmp_path) == {
        "test_it.py::test_a": {"thread:a": 1},
        "test_it.py::test_b": {"thread:b": 1},
    }

    mended = LEAKY + "def test_a(): pass\ndef test_b():\n    assert not 'broken'\n"
    outcome = run(tmp_path, mended, option)
    assert outcome.counts() == {"passed": 1, "failed": 1}, outcome.text
    assert known(tmp_path) == {"test_it.py::test_b": {"thread:b": 1}}  # a failure proves nothing


def test_what_is_noticed_later_is_in_the_baseline_too(tmp_path: Path) -> None:
    """A finding that comes when its test is over is written, and tolerated the next time."""
    source = """
    import asyncio
    kept = []
    async def fail(): raise ValueError
    async def main():
        kept.append(asyncio.create_task(fail()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    def test_a(): asyncio.run(main())
    def test_b(): kept.clear()
    """
    for _ in range(2):
        outcome = run(tmp_path, source, "--quiesce-baseline=known.json")
        assert outcome.counts() == {"passed": 2}, outcome.text
        assert known(tmp_path) == {"test_it.py::test_a": {"task failure:fail": 1}}
