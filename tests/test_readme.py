"""What the README and the other pages show is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import markdown

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PROGRAMS = [
    pytest.param(program, id=f"{page.relative_to(ROOT).as_posix()}:{program.line}")
    for page in PAGES
    for program in markdown.programs(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_does_what_its_page_says(program: markdown.Program, tmp_path: Path) -> None:
    """Each program in a page runs, ends with the exit code shown and prints the text shown."""
    fault = markdown.fault_of(program, tmp_path)
    assert fault is None, fault


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link of a page leads to a file that exists."""
    assert markdown.broken_links(page) == []


def test_commands_exist() -> None:
    """Each make target that a page names is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        (page.name, target)
        for page in PAGES
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert ("README.md", "test") in named
    assert {pair for pair in named if pair[1] not in targets} == set()


def test_every_page_is_in_the_navigation() -> None:
    """Each page of the documentation is named in mkdocs.yml, and each one named there exists."""
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    named = re.findall(r"^ *- (?:[^#\n]*: )?([\w/-]+\.md)$", settings, re.MULTILINE)
    folder = ROOT / "docs"
    assert sorted(named) == sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.md"))


# --- the checks can fail ------------------------------------------------------------------------

HELLO = "```python\nprint('hello')\nprint('world')\n```\n"


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (HELLO, None),
        (HELLO + "It prints:\n```text\nhello\nworld\n```\n", None),
        (HELLO + "```text\nhe...ld\n```\n", None),
        (HELLO + "```console\nanything\n```\n", None),
        (HELLO + "```text\nhello\n```\n", "but the page says"),
        (HELLO + "```text\nhello\nthere\n```\n", "but the page says"),
        ("```python\nraise SystemExit(3)\n```\n", "exit code 3, not 0"),
        ("<!-- run: exit=3 -->\n```python\nraise SystemExit(3)\n```\n", None),
        ("<!-- run: exit=3 -->\n\n" + HELLO, "exit code 0, not 3"),
        ("<!-- not run: a fragment -->\n```python\nraise await something()\n```\n", None),
        ("- a list\n\n  ```python\n  if True:\n      print(1)\n  ```\n", None),
    ],
)
def test_a_wrong_program_is_found(page: str, fault: str | None, tmp_path: Path) -> None:
    """A program that does not do what its page says is found, and one that does is not."""
    (program,) = markdown.programs(page)
    found = markdown.fault_of(program, tmp_path)
    assert found is None if fault is None else fault in (found or "")


def test_errors_are_part_of_the_output(tmp_path: Path) -> None:
    """Standard error is compared too, and the program's folder is not part of it."""
    text = "```python\nraise ValueError('lost')\n```\n"
    output = '```text\nTraceback (most recent call last):\n  File "lost.py", line 1...lost\n```\n'
    (program,) = markdown.programs("<!-- run: exit=1 file=lost.py -->\n" + text + output)
    assert markdown.fault_of(program, tmp_path) is None


def test_a_fragment_has_to_compile(tmp_path: Path) -> None:
    """A block that is not run is at least Python."""
    (program,) = markdown.programs("<!-- not run: a fragment -->\n```python\nawait (\n```\n")
    with pytest.raises(SyntaxError):
        markdown.fault_of(program, tmp_path)


@pytest.mark.parametrize("page", ["```python\n1\n", "<!-- run: exits=3 -->\n" + HELLO])
def test_a_broken_page_is_refused(page: str) -> None:
    """A block that is not closed and an option that does not exist are errors."""
    with pytest.raises(ValueError, match="line"):
        markdown.programs(page)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A relative link to a missing file is found; links to the web and to headings are left alone."""
    page = tmp_path / "page.md"
    page.write_text(
        "[a](page.md#x) [b](gone.md) [c](https://example.org) [d](#x)", encoding="utf-8"
    )
    assert markdown.broken_links(page) == ["gone.md"]
