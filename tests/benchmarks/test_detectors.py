"""The table of detectors: what it runs is run, and what it prints is what was seen."""

from __future__ import annotations

import json

import pytest

from benchmarks import detectors
from benchmarks._detectors import DETECTORS, Answer, Detector, Ruff
from tests.seeds.cases import BY_NAME, Case

NAMED = {detector.name: detector for detector in DETECTORS}
LISTENER, BREAK, LATE = (BY_NAME[f"{name}-asyncio"] for name in ("000", "002", "003_late"))


def installed(name: str) -> Detector:
    """Return a detector, or skip: peers are installed for the benchmarks alone."""
    detector = NAMED[name]
    if not detector.found:
        pytest.skip(f"what {name} needs is not installed")
    return detector


@pytest.mark.parametrize(
    ("name", "case", "word"),
    [
        ("nothing", LISTENER, "misses"),
        ("nothing", BREAK, "finds"),
        ("anyio's plugin", LISTENER, "misses"),
        ("anyio's plugin", BREAK, "finds"),
        ("pytest-asyncio", LISTENER, "misses"),
        ("pyleak", LISTENER, "finds"),
        ("pytest-trio", LISTENER, "-"),
        ("ruff, all rules", LISTENER, "misses"),
        ("ruff, ASYNC", BY_NAME["001-asyncio"], "misses"),
        ("quiesce's plugin", LISTENER, "finds"),
        ("quiesce guard", LISTENER, "finds"),
        ("quiesce sweep", LISTENER, "finds"),
        ("quiesce sweep", LATE, "-"),
    ],
)
def test_each_sort_of_detector_is_really_run(name: str, case: Case, word: str) -> None:
    """The answers to a seed that is quick are the known ones."""
    assert installed(name).ask(case).word == word


def test_ruff_is_told_by_its_rule() -> None:
    """The rule that names the bug is shown, and none that speaks of our comments."""
    answer = installed("ruff, all rules").ask(BY_NAME["001-asyncio"])
    assert answer == Answer("finds", "RUF006")


def test_ruff_is_not_led_by_marks_nor_silenced_by_comments() -> None:
    """What it reads has neither."""
    ruff = installed("ruff, all rules")
    assert isinstance(ruff, Ruff)
    rules = {rule for _, rule in ruff._findings(BY_NAME["001-asyncio"].path)}
    assert "RUF006" in rules
    assert "RUF100" not in rules


class Known:
    """A detector whose answers are known."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name = name
        self.package = NAMED["anyio's plugin"].package
        self.found = True
        self.answer = answer

    def ask(self, _: Case) -> Answer:
        """Return the answer."""
        return self.answer


def test_the_table_has_a_row_for_each_case_and_a_column_for_each_detector() -> None:
    """It is Markdown, and its columns are straight."""
    asked = [Known("one", Answer("finds", "a task")), Known("the other", Answer("-"))]
    table = detectors.look(asked, [LISTENER, BREAK])
    lines = detectors.as_text(table, asked, why=False).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split("|")[-3:-1] == [" one   ", " the other "]
    assert lines[2].split("|")[-3:-1] == [" finds ", " -         "]
    assert "000 on asyncio, one: a task" in detectors.as_text(table, asked, why=True)


def test_the_data_has_the_versions_and_every_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not installed has its version as missing."""
    monkeypatch.setattr(detectors, "DETECTORS", (Known("one", Answer("misses")),))
    assert detectors.main(["--json", "--only", "000"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data["versions"]) == ["anyio"]
    (case,) = data["cases"]
    assert case["answers"] == {"one": {"word": "misses", "why": ""}}
