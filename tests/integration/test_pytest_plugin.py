"""The guard as a pytest plugin: it works with every way of running async tests, and blames rightly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.plugin_runs import PYTEST_ASYNCIO, PYTEST_TRIO, line, run

if TYPE_CHECKING:
    from pathlib import Path

LEAKS = """
import asyncio, threading, subprocess, time, unittest
import anyio, pytest, trio, uvloop

kept = []

async def forever():
    await asyncio.Event().wait()

async def numbers():
    yield 1
    yield 2

async def leave_task():
    kept.append(asyncio.create_task(forever()))  # TASK
    await asyncio.sleep(0)

async def leave_generator():
    kept.append(numbers())
    await anext(kept[-1])  # GENERATOR

async def tidy():
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    async for _ in numbers():
        pass
    assert await asyncio.to_thread(lambda: 3) == 3
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()

async def tidy_on_trio():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0)
    async for _ in numbers():
        pass
    assert await trio.to_thread.run_sync(lambda: 3) == 3
    await trio.run_process(["true"])
"""

WAYS = {
    "asyncio.run": """
        def test_leaves_{kind}(): asyncio.run({leave}())
        def test_is_tidy(): asyncio.run(tidy())
    """,
    "uvloop.run": """
        def test_leaves_{kind}(): uvloop.run({leave}())
        def test_is_tidy(): uvloop.run(tidy())
    """,
    "a loop of its own": """
        def run(coroutine):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(coroutine)
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        def test_leaves_{kind}(): run({leave}())
        def test_is_tidy(): run(tidy())
    """,
    "pytest-asyncio": """
        @pytest.mark.asyncio
        async def test_leaves_{kind}(): await {leave}()
        @pytest.mark.asyncio
        async def test_is_tidy(): await tidy()
    """,
    "pytest-asyncio, one loop for all": """
        pytestmark = pytest.mark.asyncio(loop_scope="session")
        async def test_leaves_{kind}(): await {leave}()
        async def test_is_tidy(): await tidy()
    """,
    "anyio on asyncio": """
        pytestmark = pytest.mark.anyio
        @pytest.fixture
        def anyio_backend(): return "asyncio"
        async def test_leaves_{kind}(): await {leave}()
        async def test_is_tidy(): await tidy()
    """,
    "anyio on uvloop": """
        pytestmark = pytest.mark.anyio
        @pytest.fixture
        def anyio_backend(): return "asyncio", {{"use_uvloop": True}}
        async def test_leaves_{kind}(): await {leave}()
        async def test_is_tidy(): await tidy()
    """,
    "anyio, one loop for all": """
        pytestmark = pytest.mark.anyio
        @pytest.fixture(scope="session")
        def anyio_backend(): return "asyncio"
        @pytest.fixture(scope="session", autouse=True)
        async def server():
            task = asyncio.create_task(forever())
            yield
            task.cancel()
        async def test_leaves_{kind}(): await {leave}()
        async def test_is_tidy(): await tidy()
    """,
    "unittest": """
        class Test(unittest.IsolatedAsyncioTestCase):
            async def test_leaves_{kind}(self): await {leave}()
            async def test_is_tidy(self): await tidy()
    """,
    "trio.run": """
        def test_leaves_{kind}(): trio.run({leave})
        def test_is_tidy(): trio.run(tidy_on_trio)
    """,
    "pytest-trio": """
        @pytest.mark.trio
        async def test_leaves_{kind}(): await {leave}()
        @pytest.mark.trio
        async def test_is_tidy(nursery): await tidy_on_trio()
    """,
    "anyio on trio": """
        pytestmark = pytest.mark.anyio
        @pytest.fixture
        def anyio_backend(): return "trio"
        async def test_leaves_{kind}(): await {leave}()
        async def test_is_tidy(): await tidy_on_trio()
    """,
}
USES = {"pytest-asyncio": PYTEST_ASYNCIO, "pytest-trio": PYTEST_TRIO, "anyio": "anyio"}


def suite(way: str, kind: str) -> str:
    """Write a suite of two tests: one leaves something, the other does not."""
    lines = WAYS[way].format(leave=f"leave_{kind.lower()}", kind=kind).splitlines()
    return LEAKS + "\n".join(text.removeprefix("        ") for text in lines)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_left_is_found_with_its_line(tmp_path: Path, way: str) -> None:
    """However a test is run, it fails if it leaves something, and the one after it does not."""
    kinds = ["GENERATOR"] if "trio" in way else ["GENERATOR", "TASK"]
    sources = {kind: suite(way, kind) for kind in kinds}
    files = {f"test_{kind}": source for kind, source in sources.items()}
    uses = tuple(package for word, package in USES.items() if way.startswith(word))
    outcome = run(tmp_path, "", uses=uses, **files)
    for kind, source in sources.items():
        name = f"Test.test_leaves_{kind}" if way == "unittest" else f"test_leaves_{kind}"
        found = outcome.lines(name)
        assert len(found) == 1, outcome.text
        called = "forever" if kind == "TASK" else "numbers"
        assert found[0].startswith(f"{kind.lower()} '{called}', started at "), outcome.text
        assert line(source, f"# {kind}", f"test_{kind}") in found[0]
        assert "moments later" not in found[0]
    count = len(kinds)
    assert outcome.counts() | {"warning": 0} == {"passed": 2 * count, "error": count, "warning": 0}
    assert outcome.code == 1


THINGS = {
    "thread 'work'": "threading.Thread(target=work, daemon=True).start()",
    "process 'sleep'": "kept.append(subprocess.Popen(['sleep', '3']))",
    "process 'true'": "kept.append(subprocess.Popen(['true']))",
    "file 'socket'": "kept.append(socket.socket())",
    "file 'event loop'": "kept.append(asyncio.new_event_loop())",
    "socket 'left.sock'": "socket.socket(socket.AF_UNIX).bind('left.sock')",
    "coroutine 'nothing'": "nothing()",
    "scope 'left'": "asyncio.run(opens())",
}


def test_things_are_found_with_their_line(tmp_path: Path) -> None:
    """Each sort of thing that a plain test leaves is found, with the line that started it."""
    source = """
import asyncio, quiesce, socket, subprocess, threading, time
kept = []
def work(): time.sleep(3)
async def nothing(): pass
async def opens(): await quiesce.Scope.open("left")  # SCOPE
def test_is_tidy(): pass
"""
    for number, leave in enumerate(THINGS.values()):
        source += f"""
def test_leaves_{number}():
    {leave}  # HERE {number}
def test_is_tidy_after_{number}(): pass
"""
    outcome = run(tmp_path, source, "-Wignore")
    count = len(THINGS)
    assert outcome.counts() == {"passed": 2 * count + 1, "error": count}, outcome.text
    for number, thing in enumerate(THINGS):
        lines = outcome.lines(f"test_leaves_{number}")
        found = [text for text in lines if text.startswith(thing)]
        assert len(found) == 1, outcome.text
        mark = "# SCOPE" if thing.startswith("scope") else f"# HERE {number}"
        assert line(source, mark) in found[0]


def test_handlers_that_are_not_restored_are_found(tmp_path: Path) -> None:
    """A signal's handler is found, and so is one of an event loop that other tests use."""
    source = """
    import asyncio, pytest, signal
    @pytest.fixture(scope="module")
    def loop():
        loop = asyncio.new_event_loop()
        yield loop
        loop.close()
    def test_signal(): signal.signal(signal.SIGUSR1, lambda *_: None)
    def test_loop(loop): loop.set_exception_handler(lambda *_: None)
    def test_is_tidy(loop, monkeypatch): pass
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"passed": 3, "error": 2}, outcome.text
    (found,) = outcome.lines("test_signal")
    assert found.startswith("handler 'SIGUSR1' (now ")
    (found,) = outcome.lines("test_loop")
    assert found.startswith('handler "event loop\'s exceptions" (now ')


def test_descendants_and_orphans_are_found(tmp_path: Path) -> None:
    """A child's child is found, and so is one whose parent has ended."""
    source = """
    import subprocess
    kept = []
    def test_child():
        kept.append(subprocess.Popen(["sh", "-c", "sleep 3; true"], stdout=subprocess.PIPE))
        kept[-1].stdout.close()
    def test_orphan():
        subprocess.run(["sh", "-c", "sleep 3 & exit 0"])  # HERE
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"passed": 2, "error": 2}, outcome.text
    assert any(text.startswith("process 'sh'") for text in outcome.lines("test_child"))
    (orphan,) = outcome.lines("test_orphan")
    assert orphan.startswith("process '")
    assert line(source) in orphan


def test_gone_moments_later_is_told_apart(tmp_path: Path) -> None:
    """What ends by itself in a moment is found, and said to be gone."""
    source = """
    import asyncio, threading, time
    kept = []
    async def two():
        kept.append(asyncio.create_task(asyncio.sleep(0.01), name="soon"))
        kept.append(asyncio.create_task(asyncio.sleep(100), name="never"))
    def test_tasks(): asyncio.run(two())
    def test_thread(): threading.Thread(target=lambda: time.sleep(0.02)).start()
    """
    outcome = run(tmp_path, source)
    soon, never = outcome.lines("test_tasks")
    assert soon.startswith("task 'soon'")
    assert soon.endswith("; gone moments later")
    assert never.startswith("task 'never'")
    assert "moments later" not in never
    (thread,) = outcome.lines("test_thread")
    assert thread.endswith("; gone moments later")


def test_wider_fixtures_are_not_blamed_on_a_test(tmp_path: Path) -> None:
    """What fixtures of a wider scope have made is theirs, also if a test asks for one midway."""
    source = """
    import asyncio, signal, socket, subprocess, threading, pytest
    @pytest.fixture(scope="session")
    def server():
        stop, process = threading.Event(), subprocess.Popen(["sleep", "30"])
        thread = threading.Thread(target=stop.wait)
        thread.start()
        sock, loop = socket.socket(), asyncio.new_event_loop()
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        yield
        signal.signal(signal.SIGUSR1, before)
        stop.set(); thread.join(); process.kill(); process.wait(); sock.close(); loop.close()
    @pytest.fixture(scope="module")
    def leaky_teardown():
        yield
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    @pytest.fixture
    def own():
        thread = threading.Thread(target=(stop := threading.Event()).wait)
        thread.start()
        yield
        stop.set(); thread.join()
    def test_midway(request): request.getfixturevalue("server")
    def test_own(own, request): request.getfixturevalue("server")
    def test_asks(server): pass
    def test_last(leaky_teardown): pass
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"passed": 4}, outcome.text


def test_tasks_of_a_wide_server_are_not_blamed(tmp_path: Path) -> None:
    """A task that a session's own background task starts while a test runs is not the test's."""
    source = """
    import asyncio, pytest, pytest_asyncio
    pytestmark = pytest.mark.asyncio(loop_scope="session")
    async def serve(asked):
        async with asyncio.TaskGroup() as group:
            while True:
                await asked.wait()
                asked.clear()
                group.create_task(asyncio.sleep(100))
    @pytest_asyncio.fixture(scope="session", loop_scope="session")
    async def asked():
        asked = asyncio.Event()
        task = asyncio.create_task(serve(asked))
        yield asked
        task.cancel()
    async def test_asks(asked):
        asked.set()
        for _ in range(5):
            await asyncio.sleep(0)
    """
    outcome = run(tmp_path, source, uses=(PYTEST_ASYNCIO,))
    assert outcome.counts() | {"warning": 0} == {"passed": 1, "warning": 0}, outcome.text


def test_a_failure_of_the_test_is_not_masked(tmp_path: Path) -> None:
    """If the test fails by itself, that is its failure, and what it left is told below."""
    source = """
    import threading, pytest
    def leave(): threading.Thread(target=threading.Event().wait, daemon=True).start()
    def test_fails():
        leave()
        assert 1 == 2
    @pytest.mark.xfail
    def test_fails_as_expected():
        leave()
        assert 1 == 2
    def test_skips():
        leave()
        pytest.skip()
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"failed": 1, "xfailed": 1, "skipped": 1, "error": 1}, outcome.text
    assert "assert 1 == 2" in outcome.text
    assert "Captured quiesce guard teardown" in outcome.text
    assert outcome.text.count("thread 'wait', started at") == 2


def test_what_is_collected_later_is_blamed_on_its_test(tmp_path: Path) -> None:
    """A task that is collected only in a later test is an error of the one that created it."""
    source = """
    import asyncio, gc
    kept = []
    async def stuck(): await asyncio.get_running_loop().create_future()
    async def fail(): raise ValueError
    async def main():
        task = asyncio.create_task(fail())  # HERE
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kept.append([task])
    def test_a(): asyncio.run(main())
    def test_b(): kept.clear()
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"passed": 2, "error": 1}, outcome.text
    (found,) = outcome.lines("test_a")
    assert found.startswith("task failure 'fail'")
    assert line(source) in found
    assert "noticed when the test was over" in outcome.text
    assert outcome.code == 1


def test_what_is_collected_at_the_end_is_told(tmp_path: Path) -> None:
    """What only the last collection finds fails the run as well."""
    source = """
    import asyncio, gc
    async def fail(): raise ValueError
    async def main():
        cycle = [asyncio.create_task(fail())]
        cycle.append(cycle)
        gc.collect()  # it is old now: a quick collection does not find it
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    def test_a(): asyncio.run(main())
    """
    outcome = run(tmp_path, source)
    assert outcome.counts() == {"passed": 1, "error": 1}, outcome.text
    assert "task failure 'fail'" in outcome.text
    assert outcome.code == 1
