"""The setting `quiesce_escapes` in pytest: hops of a test must not be left by an untracked way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.plugin_runs import line, run

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
import asyncio, queue
import pytest
from quiesce.mesh import Memory, Node
ITEMS = queue.SimpleQueue()
async def hand_over():
    ITEMS.put(1)  # HERE
async def leave_a_task(tasks=[]):
    tasks.append(asyncio.create_task(asyncio.sleep(0.01)))  # TASK
def serve(handler):
    async def main():
        async with Node("n", transport=Memory()) as node, node.cascade("c"):
            await handler()
    asyncio.run(main())
def test_leaves(): serve(hand_over)
def test_is_covered(): serve(leave_a_task)
"""


def test_off_is_the_default(tmp_path: Path) -> None:
    """Nobody looks, but for a test whose marker says so."""
    source = SOURCE + "@pytest.mark.quiesce(escapes='error')\ndef test_marked(): serve(hand_over)\n"
    outcome = run(tmp_path, source, guard=None)
    assert outcome.counts() == {"passed": 3, "error": 1}, outcome.text
    assert "ERROR at teardown of test_marked" in outcome.text


def test_error_fails_the_test_with_the_line(tmp_path: Path) -> None:
    """From the settings; what is covered is no error, and a marker may tolerate more."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nquiesce_escapes = error\n")
    source = SOURCE + "@pytest.mark.quiesce(escapes='off')\ndef test_off(): serve(hand_over)\n"
    outcome = run(tmp_path, source, "-cpytest.ini")
    assert outcome.counts() == {"passed": 3, "error": 1}, outcome.text
    assert "quiesce escapes: work leaves: queue.SimpleQueue in hand_over" in outcome.text
    assert f"{line(SOURCE)} in hand_over: the verdict may come" in outcome.text
    assert "write: queue.Queue" in outcome.text
    outcome = run(tmp_path, source, "-cpytest.ini", "--quiesce-escapes=off")
    assert outcome.counts() == {"passed": 3}, outcome.text


def test_report_lists_all_in_the_end(tmp_path: Path) -> None:
    """Also what was held until it ended, apart from what leaves and in plain words; the tests pass."""
    outcome = run(tmp_path, SOURCE, "--quiesce-escapes=report", guard=None)
    assert outcome.code == 0, outcome.text
    assert "= quiesce escapes =" in outcome.text
    assert "2 places where work leaves: 1 unseen, 1 held until it ended\n" in outcome.text
    assert "\nheld until it ended (covered): the verdict waits for it\n" in outcome.text
    assert line(SOURCE) in outcome.text
    assert line(SOURCE, "# TASK") in outcome.text


def test_a_test_that_has_failed_is_not_failed_twice(tmp_path: Path) -> None:
    """What has left is shown below its failure."""
    source = SOURCE + "def test_fails():\n    serve(hand_over)\n    assert False\n"
    outcome = run(tmp_path, source, "--quiesce-escapes=error", "-k", "test_fails", guard=None)
    assert outcome.counts()["failed"] == 1, outcome.text
    assert "error" not in outcome.counts(), outcome.text
    assert "quiesce escapes: work leaves" in outcome.text


def test_what_was_not_looked_at_is_told(tmp_path: Path) -> None:
    """A run without a hop must not look like a proof, nor a test that is marked and has none."""
    source = SOURCE + (
        "def test_plain(): pass\n@pytest.mark.quiesce(escapes='error')\ndef test_marked(): pass\n"
    )
    asks = "--quiesce-escapes=error"
    outcome = run(tmp_path, source, asks, "-k", "test_plain", guard=None)
    assert outcome.counts() == {"passed": 1}, outcome.text
    assert "quiesce escapes: no hop was seen, so nothing was checked" in outcome.text
    outcome = run(tmp_path, source, asks, "-k", "plain or marked or covered", guard=None)
    assert outcome.counts() == {"passed": 3}, outcome.text
    assert "quiesce escapes: hops were seen in 1 of 3 tests" in outcome.text
    assert "quiesce escapes: no hop was seen in test_it.py::test_marked" in outcome.text
    outcome = run(tmp_path, source, "-k", "plain", guard=None)
    assert "hop" not in outcome.text


ERRORS = """
import asyncio
import pytest
from quiesce.testing import escapes
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    status = int(scope["path"].strip("/"))
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body"})
def serve(*statuses):
    async def main():
        async with escapes(app) as found:
            for status in statuses:
                await found.request("POST", f"/{status}")
    asyncio.run(main())
@pytest.mark.quiesce(escapes="error")
def test_errors(): serve(404, 404)
@pytest.mark.quiesce(escapes="error")
def test_also_good(): serve(404, 200)
def test_plain(): serve(404)
"""


def test_a_marked_test_with_errors_alone_is_told(tmp_path: Path) -> None:
    """Its requests were all answered with an error, and no handler may have run."""
    outcome = run(tmp_path, ERRORS, "--quiesce-escapes=error", guard=None)
    assert outcome.counts() == {"passed": 3}, outcome.text
    told = "quiesce escapes: no handler may have run in test_it.py::"
    assert f"{told}test_errors: POST /404: it answered 404\n" in outcome.text
    assert outcome.text.count(told) == 1


def test_a_wrong_marker_is_the_only_error(tmp_path: Path) -> None:
    """What other plugins do at the end of a test is not in its way."""
    source = "import pytest\n@pytest.mark.quiesce(escapes='of')\ndef test_marked(): pass\n"
    outcome = run(tmp_path, source, guard=None)
    assert outcome.counts() == {"error": 1}, outcome.text
    assert "escapes must be one of error, report, off, not 'of'" in outcome.text
    assert "KeyError" not in outcome.text
