"""The project keeps its style rules, and each rule is seen to bite."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import quiesce
from quiesce import integrations, mesh, testing
from tests import exports, tidy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

ROOT = Path(__file__).parent.parent

# Debts, with their exact size. An entry may only shrink, and goes when it is no longer needed.
MODULES_ALLOWED: dict[str, int] = {}
FUNCTIONS_ALLOWED: dict[str, int] = {}
# Programs that stand for slow ones, and waits for what other processes write.
SLEEPS_ALLOWED: dict[str, int] = {
    "tests/adapters/a2a/kit.py": 1,
    "tests/adapters/a2a/server.py": 2,
    "tests/adapters/claude/host.py": 1,
    "tests/adapters/claude/known_faults.py": 1,
    "tests/adapters/claude/fake_cli.py": 1,
    "tests/unit/mesh/routes/test_bystanders.py": 6,  # in loops that are its subject, in virtual time
}

# What is public of these is exported by quiesce itself.
INTERNAL = (
    "quiesce.core",
    "quiesce.errors",
    "quiesce.channels",
    "quiesce.pool",
    "quiesce.processes",
    "quiesce.streams",
    # Of these: by quiesce.testing, and by quiesce.mesh, but for what needs httpx.
    *(found.name for found in pkgutil.iter_modules(testing.__path__, f"{testing.__name__}.")),
    *(
        found.name
        for found in pkgutil.iter_modules(mesh.__path__, f"{mesh.__name__}.")
        if found.name != "quiesce.mesh.http"
    ),
)

# Parts of bad programs, put together here so that no rule finds them in this file.
SLEEP = "sle" + "ep"
NOQA = "no" + "qa"
IGNORE = "type: " + "ignore"


def nothing(findings: list[str]) -> None:
    """Fail with one finding a line."""
    assert not findings, "\n" + "\n".join(findings)


def test_modules_are_short() -> None:
    """No module has more than 500 lines."""
    sizes = tidy.module_lines(ROOT)
    assert sizes, "no module was found: the check looks in the wrong place"
    nothing(tidy.oversize(sizes, tidy.MODULE_LINES_MAX, MODULES_ALLOWED))


def test_functions_are_short() -> None:
    """No function has more than 70 lines."""
    nothing(tidy.oversize(tidy.function_lines(ROOT), tidy.FUNCTION_LINES_MAX, FUNCTIONS_ALLOWED))


def test_nobody_sleeps() -> None:
    """A test waits for a fact, not for time; the debts have their exact size."""
    found = Counter(finding.partition(":")[0] for finding in tidy.sleeps(ROOT))
    assert found == SLEEPS_ALLOWED


@pytest.mark.parametrize(
    "check",
    [
        tidy.one_sentence_each,
        tidy.unreasoned_ignores,
        tidy.machine_paths,
        tidy.prints,
        tidy.old_openings,
        tidy.unmapped,
        tidy.ambiguous,
    ],
)
def test_the_tree_keeps(check: Callable[[Path], list[str]]) -> None:
    """Each rule about files holds in the whole tree."""
    nothing(check(ROOT))


@pytest.mark.parametrize(
    "check", [exports.export_faults, exports.undocumented, exports.unused_filters]
)
def test_the_package_keeps(check: Callable[[ModuleType, Collection[str]], list[str]]) -> None:
    """Each public name is exported exactly once, in order, and documented."""
    assert exports.exported(quiesce), "quiesce exports nothing"
    nothing(check(quiesce, (*INTERNAL, *exports.inner_modules(integrations))))


def test_tests_know_few_private_names() -> None:
    """Tests go through what the callers of a module see; the private names of others are in tests/foreign_private.py."""
    found = tidy.private_accesses(ROOT)
    nothing(found if len(found) > tidy.PRIVATE_ACCESSES_MAX else [])


# --- each rule can fail -------------------------------------------------------------------------


def write(root: Path, name: str, text: str) -> None:
    """Put a file into a small tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_every_mutant_has_its_place() -> None:
    """What a mutant replaces occurs once in the file it names, so that no mutant goes stale."""
    nothing(
        [
            f"{path.name}: {mutant['guarantee']}: not just once in {mutant['file']}"
            for path in sorted((ROOT / "tests" / "mutants").glob("*.toml"))
            for mutant in tomllib.loads(path.read_text())["mutant"]
            if (ROOT / mutant["file"]).read_text().count(mutant["old"]) != 1
        ]
    )


def test_every_mutant_has_its_tests() -> None:
    """The tests that are to notice a mutant are there, so that a run of them does not begin in vain."""

    def is_there(test: str) -> bool:
        file, _, name = test.partition("::")
        path = ROOT / file
        text = path.read_text() if path.is_file() else ""
        for other in re.findall(r"^from (tests\.[\w.]+) import \*", text, re.MULTILINE):
            text += (ROOT / f"{other.replace('.', '/')}.py").read_text()
        return f"def {name.partition('[')[0]}(" in text if name else path.exists()

    nothing(
        [
            f"{path.name}: {mutant['guarantee']}: there is no {test}"
            for path in sorted((ROOT / "tests" / "mutants").glob("*.toml"))
            for mutant in tomllib.loads(path.read_text())["mutant"]
            for test in mutant["tests"]
            if not is_there(test)
        ]
    )


def test_a_long_module_is_found(tmp_path: Path) -> None:
    """A module one line over the limit is found, one at the limit is not."""
    write(tmp_path, "src/long.py", "x = 1\n" * 501)
    write(tmp_path, "src/good.py", "x = 1\n" * 500)
    (finding,) = tidy.oversize(tidy.module_lines(tmp_path), tidy.MODULE_LINES_MAX, {})
    assert finding.startswith("src/long.py: 501 lines")


def test_a_long_function_is_found(tmp_path: Path) -> None:
    """A function one line over the limit is found under its qualified name, also when nested."""
    body = "        x = 1\n"
    write(tmp_path, "src/a.py", "class C:\n    async def long(self):\n" + body * 70)
    write(tmp_path, "src/b.py", "class C:\n    def good(self):\n" + body * 69)
    (finding,) = tidy.oversize(tidy.function_lines(tmp_path), tidy.FUNCTION_LINES_MAX, {})
    assert finding.startswith("src/a.py::C.long: 71 lines")


@pytest.mark.parametrize(
    ("size", "finding"),
    [
        (600, []),
        (601, ["a: 601 lines, at most 500: split it"]),
        (599, ["a: 599 lines now: lower its entry from 600"]),
        (500, ["a: 500 lines, no longer over 500: take it off the list"]),
    ],
)
def test_the_list_of_debts_only_shrinks(size: int, finding: list[str]) -> None:
    """An entry that is too small, too large or no longer needed is a finding."""
    assert tidy.oversize({"a": size}, 500, {"a": 600}) == finding


@pytest.mark.parametrize(
    "text",
    [
        f"import time\ntime.{SLEEP}(0.1)\n",
        f"import asyncio as aio\nasync def f(): await aio.{SLEEP}(1)\n",
        f"from trio import {SLEEP} as nap\nasync def f(): await nap(1)\n",
        f"import anyio\nasync def f(n): await anyio.{SLEEP}(n)\n",
        f"program = 'import time; time.{SLEEP}(9)'\n",
    ],
)
def test_a_sleep_is_found(tmp_path: Path, text: str) -> None:
    """A sleep is found under any name and in a string, but not in tests/integration."""
    write(tmp_path, "tests/test_a.py", text)
    write(tmp_path, "tests/integration/test_a.py", text)
    (finding,) = tidy.sleeps(tmp_path)
    assert finding.startswith("tests/test_a.py:")


def test_a_sleep_of_zero_is_no_sleep(tmp_path: Path) -> None:
    """To let others run once is allowed."""
    text = f"import asyncio, anyio\nasync def f():\n    await asyncio.{SLEEP}(0)\n"
    write(tmp_path, "tests/test_a.py", text + f"    await anyio.{SLEEP}_forever()\n")
    assert tidy.sleeps(tmp_path) == []


@pytest.mark.parametrize(
    "docstring", ["", '"""No stop"""', '"""One. Two."""', '"""A.\n\n    B."""']
)
def test_a_test_without_a_sentence_is_found(tmp_path: Path, docstring: str) -> None:
    """A docstring that is missing, cut off or longer than a sentence is found, in classes too."""
    bad = f"class TestA:\n    async def test_a(self):\n        {docstring}\n        pass\n"
    write(tmp_path, "tests/test_a.py", bad)
    write(
        tmp_path, "tests/test_b.py", 'def test_b():\n    """It works with e.g. two\n    lines."""\n'
    )
    (finding,) = tidy.one_sentence_each(tmp_path)
    assert finding.startswith("tests/test_a.py:2: TestA.test_a:")


@pytest.mark.parametrize(
    "comment",
    [NOQA, f"{NOQA}: E501", f"ruff: {NOQA}", IGNORE, f"{IGNORE}[arg-type]", "pyright: " + "ignore"],
)
def test_an_ignore_without_reason_is_found(tmp_path: Path, comment: str) -> None:
    """A checker is silenced only with the rule's name and a reason."""
    write(tmp_path, "src/a.py", f"x = 1  # {comment}\n")
    good = f"x = 1  # {NOQA}: E501, F401 - a reason\ny = 2  # {IGNORE}[arg-type]  # a reason\n"
    write(tmp_path, "src/b.py", good + f"z = '# {comment}'\n")
    (finding,) = tidy.unreasoned_ignores(tmp_path)
    assert finding.startswith("src/a.py:1: write it as #")


@pytest.mark.parametrize("parts", [("", "home", "ann", "x"), ("", "root", "x"), ("", "tmp", "x")])
def test_a_machine_path_is_found(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """A path of one machine is found in any text file, and a link is not taken for one."""
    write(tmp_path, "docs/a.md", f"see {'/'.join(parts)}\n")
    write(tmp_path, "docs/b.md", f"see https://example.org{'/'.join(parts)}\n")
    write(tmp_path, ".venv/c.md", f"see {'/'.join(parts)}\n")
    assert tidy.machine_paths(tmp_path) == ["docs/a.md:1: a path of one machine"]


def test_a_print_is_found(tmp_path: Path) -> None:
    """A print in the library is found, one in the command line is not."""
    for name in ("core/scope.py", "cli/main.py", "core/run.py"):
        write(tmp_path, f"src/quiesce/{name}", "print('hello')\n")
    assert tidy.prints(tmp_path) == ["src/quiesce/core/scope.py:1: a library does not print"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Make and import a small package from the text of its modules."""

    def make(**modules: str) -> ModuleType:
        name = "package_of_" + tmp_path.name.replace("-", "_")
        for module, text in modules.items():
            write(tmp_path, f"{name}/{module}.py", text)
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(name)

    return make


@pytest.mark.parametrize(
    ("init", "other", "finding"),
    [
        ("__all__ = ['gone']", "", "names gone, which is not there"),
        ("b = a = 1\n__all__ = ['b', 'a']", "", "is not sorted"),
        ("a = 1\n__all__ = ['a', 'a']", "", "repeats a name"),
        (
            "from .other import A\n__all__ = ['A']",
            "class A: ...\n__all__ = ['A']",
            "A is exported by",
        ),
        ("a = 1", "", ".a is reachable, but not in __all__"),
    ],
)
def test_a_wrong_export_is_found(
    package: Callable[..., ModuleType], init: str, other: str, finding: str
) -> None:
    """A name that is missing, out of order, exported twice or left out is found."""
    (found,) = exports.export_faults(package(__init__=init, other=other))
    assert finding in found


def test_an_internal_module_is_no_address(package: Callable[..., ModuleType]) -> None:
    """A name may also be in the `__all__` of one internal module, and not of two."""
    made = package(
        __init__="from .a import X\n__all__ = ['X']",
        a="class X: 'A class.'\nclass Y: pass\n__all__ = ['X', 'Y']",
    )
    internal = [f"{made.__name__}.a", f"{made.__name__}.b"]
    assert exports.export_faults(made, internal) == []
    assert exports.undocumented(made, internal) == []
    module = importlib.import_module(f"{made.__name__}.a")
    write(Path(str(module.__file__)).parent, "b.py", "from .a import X\n__all__ = ['X']")
    importlib.invalidate_caches()
    (finding,) = exports.export_faults(made, internal)
    assert finding.startswith("X is exported by")


def test_a_right_export_passes(package: Callable[..., ModuleType]) -> None:
    """Two adapters may use one name for two things, and internals export nothing."""
    made = package(
        __init__="from __future__ import annotations\nfrom ._inner import X\n__all__ = ['X']",
        _inner="class X: 'A class.'",
        one="class Adapter: 'One.'\n__all__ = ['Adapter']",
        two="class Adapter: 'Two.'\n__all__ = ['Adapter']",
        needs_sdk="import an_sdk_that_is_not_installed",
    )
    assert exports.export_faults(made) == []
    assert exports.undocumented(made) == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("class A: pass", "A has no docstring"),
        ("def A(): pass", "A has no docstring"),
        ("class A:\n  'Doc.'\n  def act(self): pass", "A.act has no docstring"),
        ("class A:\n  'Doc.'\n  @property\n  def size(self): pass", "A.size has no docstring"),
        ("class A:\n  'Doc.'\n  @classmethod\n  def new(cls): pass", "A.new has no docstring"),
    ],
)
def test_a_missing_docstring_is_found(
    package: Callable[..., ModuleType], text: str, finding: str
) -> None:
    """A public class, function, method or property without a docstring is found."""
    (found,) = exports.undocumented(package(__init__=f"{text}\n__all__ = ['A']"))
    assert found.endswith(finding)


def test_a_member_that_the_reference_leaves_out_needs_no_docstring(
    package: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is for other modules of the package; and a name that is left out has to be there."""
    made = package(__init__='__all__ = ["A"]\nclass A:\n    """A."""\n    def b(self): pass\n')
    assert exports.undocumented(made) == [f"{made.__name__}.A.b has no docstring"]
    write(tmp_path, "mkdocs.yml", '- "!^(b|c)$"\n')
    monkeypatch.setattr(exports, "PAGES", tmp_path / "mkdocs.yml")
    assert exports.undocumented(made) == []
    assert exports.unused_filters(made) == ["mkdocs.yml leaves out c, which no class has"]


def test_every_extra_has_code_that_needs_it() -> None:
    """A name that installs packages which nothing uses is a promise that is not kept."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src" / "quiesce").rglob("*.py")
    )
    unused = [
        name
        for name in project["optional-dependencies"]
        if name != "all"
        and not (ROOT / "src" / "quiesce" / "integrations" / name).is_dir()
        and not re.search(rf"import {name}\b|\"{name}\"", source)
    ]
    assert unused == []


def test_a_private_access_is_found(tmp_path: Path) -> None:
    """Of any object and module, but for a test's own, and for the one that Python documents."""
    bad = "x = a._b\na.self._c = 1\nimport m\nm._d()\nf()._e._g\n"
    write(tmp_path, "tests/unit/a/test_a.py", bad)
    write(
        tmp_path, "tests/unit/b.py", "self._b, cls._c, super()._d, a.__name__, os._exit(1), a.b_\n"
    )
    write(tmp_path, "tests/helper.py", bad)
    assert sorted(tidy.private_accesses(tmp_path)) == [
        "tests/unit/a/test_a.py:1: _b",
        "tests/unit/a/test_a.py:2: _c",
        "tests/unit/a/test_a.py:4: _d",
        "tests/unit/a/test_a.py:5: _e",
        "tests/unit/a/test_a.py:5: _g",
    ]


@pytest.mark.parametrize("word", ["Give", "Tell", "Have"])
def test_an_old_opening_is_found(tmp_path: Path, word: str) -> None:
    """In a function, a method, a class or a module of the package."""
    text = f'"""{word} it."""\n\n\nclass A:\n    """Return it."""\n\n    def b(self):\n        """{word} it."""\n'
    write(tmp_path, "src/a.py", text)
    first, second = tidy.old_openings(tmp_path)
    assert first.startswith("src/a.py:1: ")
    assert second.startswith("src/a.py:7: ")


def test_a_module_without_a_line_in_its_package_is_found(tmp_path: Path) -> None:
    """Also a line without a module, and packages."""
    write(tmp_path, "src/quiesce/__init__.py", '"""A.\n\n- `gone`: it.\n- `b`: it.\n"""\n')
    for name in ("a", "b", "inner/__init__"):
        write(tmp_path, f"src/quiesce/{name}.py", '"""A."""\n')
    assert tidy.unmapped(tmp_path) == [
        "src/quiesce/__init__.py: the docstring does not list a",
        "src/quiesce/__init__.py: the docstring does not list inner",
        "src/quiesce/__init__.py: lists gone, which is not there",
    ]


def test_a_name_that_means_two_things_is_found(tmp_path: Path) -> None:
    """Of classes, functions and modules; private ones are a module's own."""
    write(tmp_path, "src/quiesce/a/x.py", "class A: ...\ndef _own(): ...\ndef run(): ...\n")
    write(tmp_path, "src/quiesce/b/x.py", "def A(): ...\ndef _own(): ...\ndef run(): ...\n")
    assert tidy.ambiguous(tmp_path) == [
        "A means two things: src/quiesce/a/x.py, src/quiesce/b/x.py",
        "module x means two things: src/quiesce/a/x.py, src/quiesce/b/x.py",
    ]
