"""`make demo-losses`: the programs really lose today, really lose nothing with quiesce, and the demo can tell."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.demo.cases import CASES, Case
from examples.demo.judge import changed_lines, judge
from examples.demo.process import Observation, observe

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"
NAMES = [case.name for case in CASES]
QUIET = Observation(
    "", "", exit_code=0, seconds=0.1, out_of_time=False, left_processes=False, orphans=()
)


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as `make demo-losses` does."""
    source = str(ROOT / "src")
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Run all of the demo once, as JSON."""
    done = demo("--json")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["ok"] is (done.returncode == 0)
    return {row["name"]: row for row in document["rows"]}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Make a copy of the programs, to be sabotaged."""
    for half in ("losing", "saved"):
        shutil.copytree(DEMO / half, tmp_path / half)
    return tmp_path


def case_named(name: str) -> Case:
    """Find a case."""
    (case,) = (case for case in CASES if case.name == name)
    return case


def run_row(name: str, programs: Path, *options: str) -> dict[str, Any]:
    """Run one pair of sabotaged programs: the demo has to notice."""
    done = demo("--json", "--only", name, "--programs", str(programs), *options)
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"]) == (1, False)
    (row,) = document["rows"]
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("name", NAMES)
def test_the_program_of_today_loses(rows: dict[str, dict[str, Any]], name: str) -> None:
    """Every fact at stake is lost, by a process that ended by itself."""
    today = rows[name]["today"]
    assert rows[name]["lost"], today
    assert [fact["kept"] for fact in today["facts"]] == [False] * len(case_named(name).checks)


@pytest.mark.parametrize("name", NAMES)
def test_the_program_with_quiesce_loses_nothing(rows: dict[str, dict[str, Any]], name: str) -> None:
    """Every fact is kept, with exit code 0, no complaint, and no process left."""
    saved = rows[name]["with_quiesce"]
    assert rows[name]["saved"], saved
    assert rows[name]["ok"]
    seen = saved["observation"]
    assert (seen["exit_code"], seen["stderr"], seen["left_processes"]) == (0, "", False)


def test_the_orphan_is_named(rows: dict[str, dict[str, Any]]) -> None:
    """The process that outlived its harness is the one that the harness had started."""
    seen = rows["cancelled-spawn"]["today"]["observation"]
    (orphan,) = seen["orphans"]
    assert f"pid {orphan}\n" in seen["stdout"]


@pytest.mark.parametrize("told", [True, False])
def test_what_a_program_leaves_behind_is_ended(tmp_path: Path, *, told: bool) -> None:
    """A process left behind is gone afterwards, whether its id was told or not."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess\n"
        f"child = subprocess.Popen(['sleep', '60'], stdout=open({str(fifo)!r}, 'w'))\n"
        f"if {told}: print('pid', child.pid)\n"
    )
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        seen = observe(program, limit_seconds=10)
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""  # comes once nobody has the other end open
    finally:
        os.close(reader)
    assert (seen.left_processes, len(seen.orphans), seen.stderr) == (True, int(told), "")


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_program_that_loses_is_noticed(programs: Path, name: str) -> None:
    """With the program of today in the place of the saved one, the row is not saved."""
    file = case_named(name).file
    shutil.copy(programs / "losing" / file, programs / "saved" / file)
    row = run_row(name, programs)
    assert (row["lost"], row["saved"], row["change"]) == (True, False, [])


def test_a_program_of_today_that_loses_nothing_is_noticed(programs: Path) -> None:
    """With the saved program in the place of the one of today, the row is not lost."""
    shutil.copy(programs / "saved" / "dangling_task.py", programs / "losing" / "dangling_task.py")
    row = run_row("dangling-task", programs)
    assert (row["lost"], row["saved"]) == (False, True)


@pytest.mark.parametrize("half", ["losing", "saved"])
def test_a_program_that_crashes_shows_nothing(programs: Path, half: str) -> None:
    """A crash is neither a loss nor a save: nobody can tell."""
    (programs / half / "dangling_task.py").write_text("raise SystemExit('crashed')\n")
    row = run_row("dangling-task", programs)
    crashed = row["today" if half == "losing" else "with_quiesce"]
    assert crashed["observation"]["stderr"] == "crashed\n"
    assert [fact["kept"] for fact in crashed["facts"]] == [None, None]
    assert (row["lost"], row["saved"]) == (half != "losing", half != "saved")


def test_a_program_that_hangs_is_ended_at_the_limit(programs: Path) -> None:
    """The time limit ends a process that hangs, and the demo says so in words."""
    hang = "import threading\nthreading.Event().wait()\n"
    (programs / "saved" / "dangling_task.py").write_text(hang)
    done = demo("--only", "dangling-task", "--programs", str(programs), "--limit", "2")
    assert done.returncode == 1
    assert "the time limit ended the process" in done.stdout
    assert "NOT AS IT SHOULD BE" in done.stdout


def test_the_words_match_the_facts() -> None:
    """The page names the report, quotes the process, shows the change and counts."""
    done = demo("--only", "dangling-task", "--show")
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "a2a-python, issue 774",
        "lost  the webhook for 'completed' never fired",
        "> Task was destroyed but it is pending!",
        "kept  the webhook for 'completed' fired",
        "+    async with quiesce.Scope(",
        "--- losing/dangling_task.py",
        "As written today, 1 of 1 lost work. With quiesce, 1 of 1 lost nothing.",
    ):
        assert words in done.stdout
    assert "\x1b" not in done.stdout  # not a terminal


def test_the_same_observation_is_judged_the_same_for_both_halves() -> None:
    """A fake observation shows what each verdict asks for."""
    case = case_named("dangling-task")
    good = replace(QUIET, stdout="webhook: completed\n")
    assert judge(case, good).saved
    assert not judge(case, good).lost
    for sabotaged in (
        replace(good, exit_code=1),
        replace(good, stderr="Task was destroyed but it is pending!\n"),
        replace(good, stderr="some other complaint\n"),
        replace(good, left_processes=True),
        replace(good, out_of_time=True, exit_code=-9),
        QUIET,
    ):
        assert not judge(case, sabotaged).saved


def test_the_change_leaves_out_imports_and_indentation() -> None:
    """A line that is only indented is not a change."""
    before = "import a\n\nwork()\nold()\n"
    after = "import a\nimport b\n\nwith b:\n    work()\n    new()\n"
    assert changed_lines(before, after) == ("+with b:", "-old()", "+    new()")


def test_help_names_every_option() -> None:
    """The options are documented where people look."""
    done = demo("--help")
    assert done.returncode == 0
    for option in ("--only", "--show", "--json", "--no-color", "--programs", "--limit"):
        assert option in done.stdout
