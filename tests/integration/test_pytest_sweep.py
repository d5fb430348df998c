"""`@pytest.mark.sweep` in real runs of pytest, with the plugins that run async tests."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.integration.plugin_runs import PYTEST_ASYNCIO, PYTEST_TRIO, run

if TYPE_CHECKING:
    from pathlib import Path


class Way(NamedTuple):
    """How async tests are run."""

    uses: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    mark: str = ""
    loop: str = "asyncio"
    """What the tests are swept on."""
    anyio_backend: str = '"asyncio"'


WAYS = {
    "no other plugin": Way(),
    "pytest-asyncio, strict": Way((PYTEST_ASYNCIO,), mark="pytest.mark.asyncio"),
    "pytest-asyncio, auto": Way((PYTEST_ASYNCIO,), ("--asyncio-mode=auto",)),
    "pytest-asyncio, not marked": Way((PYTEST_ASYNCIO,)),
    "pytest-asyncio, one loop for all": Way(
        (PYTEST_ASYNCIO,), mark='pytest.mark.asyncio(loop_scope="session")'
    ),
    "pytest-trio": Way((PYTEST_TRIO,), mark="pytest.mark.trio", loop="trio"),
    "anyio on asyncio": Way(("anyio",), mark="pytest.mark.anyio"),
    "anyio on uvloop": Way(
        ("anyio",),
        mark="pytest.mark.anyio",
        loop="uvloop",
        anyio_backend='("asyncio", {"use_uvloop": True})',
    ),
    "anyio on trio": Way(("anyio",), mark="pytest.mark.anyio", loop="trio", anyio_backend='"trio"'),
}

SUITE = """
import asyncio, anyio, pytest, trio, uvloop
from contextlib import suppress

pytestmark = [{mark}]
loops = []

@pytest.fixture
def anyio_backend():
    return {anyio_backend}

@pytest.fixture
def number():
    return 7

def loop():
    if trio.lowlevel.in_trio_run():
        return "trio"
    return "uvloop" if isinstance(asyncio.get_running_loop(), uvloop.Loop) else "asyncio"

@pytest.mark.sweep
async def test_good(number):
    assert number == 7
    loops.append(loop())
    await anyio.sleep(0)

@pytest.mark.sweep
async def test_bad():
    with suppress(BaseException):
        await anyio.sleep(0)  # BAD

class TestClass:
    word = None

    @pytest.fixture(autouse=True)
    def given(self):
        self.word = "given"

    @pytest.mark.sweep(depth=2)
    @pytest.mark.parametrize("letter", ["a"])
    async def test_bad_too(self, number, letter):
        assert (self.word, number, letter) == ("given", 7, "a")
        with suppress(BaseException):
            await anyio.sleep(0)

def teardown_module():
    print("loops:", loops)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_marked_test_is_swept_whoever_runs_async_tests(way: Way, tmp_path: Path) -> None:
    """It gets its fixtures, runs many times on its own event loop, and fails where it should."""
    source = SUITE.replace("{mark}", way.mark).replace("{anyio_backend}", way.anyio_backend)
    done = run(tmp_path, source, "-s", *way.options, uses=way.uses)
    assert done.counts() == {"passed": 1, "failed": 2}, done.text
    runs = 2 if way.loop == "trio" else 3
    assert f"loops: {[way.loop] * runs}" in done.text
    # The messages; pytest also prints a part of the result itself, cut off somewhere.
    messages = re.findall(
        r"^E +the scenario was cancelled, but returned as if it had not been$",
        done.text,
        re.MULTILINE,
    )
    assert len(messages) == 2
    assert "--quiesce-replay" in done.text


REFUSED = {
    "is not async": "def test_it(): pass",
    "is an async generator": "async def test_it(): yield",
    "takes its arguments by name": "async def test_it(): await asyncio.sleep(0)",
    "unittest runs its tests itself": """
        class Test(unittest.IsolatedAsyncioTestCase):
            async def test_it(self): await asyncio.sleep(0)
    """,
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_swept_fails_and_says_why(why: str, tmp_path: Path) -> None:
    """A marker that does nothing would be a test that seems to be swept."""
    marker = "sweep(2)" if "by name" in why else "sweep"
    head = f"import asyncio, pytest, unittest\npytestmark = pytest.mark.{marker}\n"
    done = run(tmp_path, head + textwrap.dedent(REFUSED[why]))
    assert done.counts() == {"failed": 1}, done.text
    assert why in done.text


def test_one_run_is_run_again(tmp_path: Path) -> None:
    """The id that a failure names, given on the command line, runs that one alone."""
    source = """
        import asyncio, pytest
        from contextlib import suppress

        @pytest.mark.sweep
        async def test_bad():
            print("a run")
            with suppress(BaseException):
                await asyncio.sleep(0)
    """
    done = run(tmp_path, source, "-s", "--quiesce-replay=asyncio:task:native:1")
    assert done.counts() == {"failed": 1}, done.text
    assert done.text.count("a run\n") == 1
    assert "1 runs, 1 failed" in done.text


def test_a_skipped_test_is_skipped(tmp_path: Path) -> None:
    """What pytest.skip() says of the test goes out of the sweep."""
    source = """
        import pytest

        @pytest.mark.sweep
        async def test_bad(): pytest.skip("not here")
    """
    assert run(tmp_path, source).counts() == {"skipped": 1}


def test_a_wrong_use_is_told_in_a_line(tmp_path: Path) -> None:
    """Whoever has written the marker wants to know what is wrong with it, not where we found out."""
    source = """
    import pytest
    @pytest.mark.sweep
    def test_sync(): pass
    @pytest.mark.quiesce(alow=["x"])
    def test_marker(): pass
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"failed": 1, "error": 1}, outcome.text
    assert "test_sync is not async" in outcome.text
    assert "takes only guard=, allow= and escapes=" in outcome.text
    assert "raise UsageError" not in outcome.text


def test_a_replay_id_that_is_none_is_refused_before_any_test(tmp_path: Path) -> None:
    """A run that would replay nothing must not be green."""
    outcome = run(tmp_path, "def test_fine(): pass", "--quiesce-replay", "garbage")
    assert outcome.code == 4
    assert "'garbage' is not the id of a run" in outcome.text + outcome.complaints
