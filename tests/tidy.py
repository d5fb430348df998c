"""The style rules that a program can check; tests/test_tidy.py applies them to the project.

Each check takes the root of a tree and returns its findings as lines that say what to change; an empty
list is a pass. Files are read, never executed. The rules about what the package exports need the
imported package; they are in tests/exports.py.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MODULE_LINES_MAX = 500
OLD_OPENINGS = frozenset({"Be", "Give", "Gives", "Have", "Know", "Tell", "Tells"})
OLD_OPENING = re.compile(rf"""["'](?:{"|".join(sorted(OLD_OPENINGS))})\b""")
FUNCTION_LINES_MAX = 70
PRIVATE_ACCESSES_MAX = 0  # in tests/unit
# Names that several modules define with the same meaning.
ONE_MEANING = frozenset(
    {
        "module versions",  # what differs between the versions of an adapter's SDK
        "run",  # runs an async function to its end: as a program, or in virtual time
    }
)

CODE_FOLDERS = ("src", "tests", "examples", "benchmarks", "tools")
NOT_OURS = frozenset({"build", "dist", "site", "__pycache__"})
SLEEPING_MODULES = frozenset({"anyio", "asyncio", "time", "trio"})

# Written so that the patterns do not match this file.
SLEEP_IN_TEXT = re.compile(r"\b(?:anyio|asyncio|time|trio)\.slee[p]\((?!0(?:\.0*)?\))")
MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(?:roo[t]/|hom[e]/\w+|User[s]/\w+|wor[k]/|tm[p]/\w+|op[t]/\w+)"
)
IGNORE = re.compile(
    r"#\s*(?P<word>(?:ruff:\s*)?noqa|(?:type|pyright|mypy):\s*ignore)\b(?P<rest>.*)"
)
NOQA_WITH_REASON = re.compile(r":\s*[A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*\s*[-#]\s*\S*[a-zA-Z]")
IGNORE_WITH_REASON = re.compile(r"\[[\w\s,-]+\]\s*#\s*\S*[a-zA-Z]")
SECOND_SENTENCE = re.compile(r"[.!?]\s+[A-Z]")

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(root: Path, *folders: str) -> Iterator[Path]:
    """Return the Python files of some folders below `root`, in a fixed order."""
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def name_of(path: Path, root: Path) -> str:
    """Return a file's path for findings: relative to the root, with slashes."""
    return path.relative_to(root).as_posix()


def functions_in(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function of a module, with its qualified name; nested functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = inside + node.name
            yield name, node
            yield from functions_in(node, name + ".")
        elif isinstance(node, ast.ClassDef):
            yield from functions_in(node, f"{inside}{node.name}.")
        else:
            yield from functions_in(node, inside)


def module_lines(root: Path) -> dict[str, int]:
    """Return the number of lines of every module."""
    return {
        name_of(path, root): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(root, *CODE_FOLDERS)
    }


def function_lines(root: Path) -> dict[str, int]:
    """Return the number of lines of every function, from `def` to its last line, with the docstring."""
    sizes: dict[str, int] = {}
    for path in python_files(root, *CODE_FOLDERS):
        for name, node in functions_in(ast.parse(path.read_bytes())):
            end = node.end_lineno or node.lineno
            sizes[f"{name_of(path, root)}::{name}"] = end - node.lineno + 1
    return sizes


def oversize(sizes: Mapping[str, int], limit: int, allowed: Mapping[str, int]) -> list[str]:
    """Return each size over `limit`, and each entry of `allowed` that has to become smaller or be removed.

    An entry of `allowed` is an exception to remove later. It must be the exact size, so it can only shrink.
    """
    findings = [
        f"{name}: {size} lines, at most {limit}: split it"
        for name, size in sizes.items()
        if size > max(limit, allowed.get(name, 0))
    ]
    for name, agreed in allowed.items():
        size = sizes.get(name, 0)
        if size <= limit:
            findings.append(f"{name}: {size} lines, no longer over {limit}: take it off the list")
        elif size < agreed:
            findings.append(f"{name}: {size} lines now: lower its entry from {agreed}")
    return findings


def sleeps(root: Path) -> list[str]:
    """Return the sleeps of more than 0 in tests outside tests/integration.

    A test that waits for time and not for a fact is slow or flaky, and often both. Programs in
    strings count. A length counts unless it is the literal 0, because this check cannot compute it.
    """
    findings: set[tuple[str, int]] = set()
    for path in python_files(root, "tests"):
        if (root / "tests" / "integration") in path.parents:
            continue
        name = name_of(path, root)
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            if SLEEP_IN_TEXT.search(line):
                findings.add((name, number))
        if "sleep" in text:  # to parse takes the longest
            findings.update((name, number) for number in _sleep_calls(ast.parse(text)))
    return [f"{name}:{line}: a sleep: wait for the fact" for name, line in sorted(findings)]


def _sleep_calls(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that call a sleep, under any imported name."""
    modules: set[str] = set()
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(a.asname or a.name for a in node.names if a.name in SLEEPING_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in SLEEPING_MODULES:
            functions.update(a.asname or a.name for a in node.names if a.name == "sleep")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr="sleep", value=ast.Name(id=module)) if module in modules:
                pass
            case ast.Name(id=function) if function in functions:
                pass
            case _:
                continue
        match node.args:
            case [ast.Constant(value=0)]:
                pass
            case _:
                yield node.lineno


def one_sentence_each(root: Path) -> list[str]:
    """Return the tests whose docstring is not exactly one sentence."""
    findings = []
    for path in python_files(root, "tests"):
        if not path.name.startswith("test_"):
            continue
        for name, node in functions_in(ast.parse(path.read_bytes())):
            if not node.name.startswith("test_"):
                continue
            text = ast.get_docstring(node) or ""
            fault = _sentence_fault(text)
            if fault:
                findings.append(f"{name_of(path, root)}:{node.lineno}: {name}: {fault}")
    return findings


def _sentence_fault(text: str) -> str | None:
    if not text:
        return "no docstring: say in one sentence what must hold"
    if not text.endswith((".", "?", "!")):
        return "the docstring is not a sentence: it has no full stop"
    if "\n\n" in text or SECOND_SENTENCE.search(text):
        return "the docstring is more than one sentence"
    return None


def unreasoned_ignores(root: Path) -> list[str]:
    """Return the comments that silence a checker without naming the rule and a reason."""
    findings = []
    for path in python_files(root, *CODE_FOLDERS):
        source = path.read_text(encoding="utf-8")
        if not IGNORE.search(source):
            continue
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            found = IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
            if found is None:
                continue
            noqa = found["word"].endswith("noqa")
            wanted = NOQA_WITH_REASON if noqa else IGNORE_WITH_REASON
            if not wanted.match(found["rest"]):
                shape = ": CODE - reason" if noqa else "[code]  # reason"
                findings.append(
                    f"{name_of(path, root)}:{token.start[0]}: write it as # {found['word']}{shape}"
                )
    return findings


def machine_paths(root: Path) -> list[str]:
    """Return the absolute paths that exist on one machine only."""
    findings = []
    for path in _text_files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE_PATH.search(line):
                findings.append(f"{name_of(path, root)}:{number}: a path of one machine")
    return findings


def _text_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in NOT_OURS or (path.name.startswith(".") and path.name != ".ci"):
            continue
        if path.is_dir():
            yield from _text_files(path)
        else:
            yield path


def prints(root: Path) -> list[str]:
    """Return the prints in the library; only the command line (cli/, run.py) may print."""
    findings = []
    for path in python_files(root, "src"):
        if "cli" in path.parts or path.stem in {"cli", "run"}:
            continue
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "print" in source else ():
            match node:
                case ast.Call(func=ast.Name(id="print")):
                    findings.append(
                        f"{name_of(path, root)}:{node.lineno}: a library does not print"
                    )
    return findings


def old_openings(root: Path) -> list[str]:
    """Return each docstring that opens with a word that a reader has to decode."""
    found = []
    for path in python_files(root, *CODE_FOLDERS):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if OLD_OPENING.search(source) else ():
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node, clean=False) or ""
                first, _, _ = text.partition(" ")
                if first in OLD_OPENINGS:
                    line = getattr(node, "lineno", 1)
                    found.append(
                        f"{name_of(path, root)}:{line}: opens with {first!r}: say what it does"
                    )
    return found


def private_accesses(root: Path) -> list[str]:
    """Return each place in tests/unit that reads a private name of an object or a module."""
    return [
        f"{name_of(path, root)}:{node.lineno}: {node.attr}"
        for path in python_files(root, "tests/unit")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute) and _is_private(node)
    ]


def _is_private(node: ast.Attribute) -> bool:
    """Return whether a name has one underscore, and is not that of `self`, `cls` or `super()`, or documented by Python."""
    match node.value:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
            return False
        case ast.Name(id="os") if node.attr == "_exit":
            return False
        case _:
            return node.attr.startswith("_") and not node.attr.startswith("__")


def unmapped(root: Path) -> list[str]:
    """Return each module that its package's docstring does not list, and each listed module that does not exist."""
    found = []
    for path in python_files(root, "src"):
        if path.name != "__init__.py":
            continue
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        listed = re.findall(r"^- `(\w+)`: ", text, flags=re.MULTILINE)
        there = {one.stem for one in path.parent.glob("*.py") if one != path}
        there |= {one.parent.name for one in path.parent.glob("*/__init__.py")}
        where = name_of(path, root)
        found += [
            f"{where}: the docstring does not list {name}" for name in sorted(there - {*listed})
        ]
        found += [
            f"{where}: lists {name}, which is not there" for name in sorted({*listed} - there)
        ]
    return found


def ambiguous(root: Path) -> list[str]:
    """Return each public name of a class, function or module that is defined twice in the package."""
    places: dict[str, set[str]] = {}
    for path in python_files(root, "src"):
        where = name_of(path, root)
        if path.name != "__init__.py":
            places.setdefault(f"module {path.stem}", set()).add(where)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(where)
    return [
        f"{name} means two things: {', '.join(sorted(found))}"
        for name, found in sorted(places.items())
        if len(found) > 1 and name not in ONE_MEANING
    ]
