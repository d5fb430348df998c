"""The rules about what a package exports; tests/test_tidy.py applies them to quiesce.

A public name has one address: it is in the `__all__` of exactly one public module. So there is one way
to import, document and deprecate the name. Internal modules have an `__all__` too, which lists the
names for other modules of the package; it is not an address for users.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from quiesce.errors import SdkMissing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

PAGES = Path(__file__).parent.parent / "mkdocs.yml"


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """Import a package and yield all its modules, without those whose SDK is not installed."""
    yield package
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if found.name.endswith(".__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except SdkMissing:
            continue
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] == package.__name__:
                raise


def inner_modules(package: ModuleType) -> list[str]:
    """Return the names of the modules in a package's subpackages, without importing any."""
    return [
        f"{package.__name__}.{found.name}.{inner.name}"
        for found in pkgutil.iter_modules(package.__path__)
        if found.ispkg
        for inner in pkgutil.iter_modules([str(Path(package.__path__[0], found.name))])
    ]


def exported(module: ModuleType) -> list[str]:
    """Return the `__all__` of a module."""
    return list(getattr(module, "__all__", ()))


def sort_key(name: str) -> tuple[int, str]:
    """Return a key that sorts names as ruff sorts `__all__`: constants, classes, the rest."""
    if name.isupper():
        return 0, name
    return (1, name) if name[:1].isupper() else (2, name)


def is_internal(module: ModuleType, internal: Collection[str]) -> bool:
    """Return whether a module is one of the internal modules, or below one."""
    return any(f"{module.__name__}.".startswith(f"{name}.") for name in internal)


def export_faults(package: ModuleType, internal: Collection[str] = ()) -> list[str]:
    """Return the faults of a package's exports: names missing, unsorted, exported twice, or public but not exported."""
    findings = []
    homes: dict[tuple[bool, str, int], str] = {}
    for module in modules_of(package):
        names = exported(module)
        if names != sorted(set(names), key=sort_key):
            findings.append(f"{module.__name__}.__all__ is not sorted, or repeats a name")
        for name in names:
            if not hasattr(module, name):
                findings.append(f"{module.__name__}.__all__ names {name}, which is not there")
                continue
            thing = is_internal(module, internal), name, id(getattr(module, name))
            home = homes.setdefault(thing, module.__name__)
            if home != module.__name__:
                findings.append(f"{name} is exported by {home} and by {module.__name__}")
    return findings + _strays(package)


def _strays(package: ModuleType) -> list[str]:
    """Return the public names in the package itself that its `__all__` does not have."""
    return [
        f"{package.__name__}.{name} is reachable, but not in __all__"
        for name, value in vars(package).items()
        if not name.startswith("_")
        and name != "TYPE_CHECKING"
        and name not in exported(package)
        and not isinstance(value, ModuleType)
        and type(value).__module__ != "__future__"
    ]


def undocumented(package: ModuleType, internal: Collection[str] = ()) -> list[str]:
    """Return the exported classes and functions, and their public members, that have no docstring."""
    findings = []
    for module in modules_of(package):
        if is_internal(module, internal):
            continue
        for name in exported(module):
            thing = getattr(module, name, None)
            if not (inspect.isclass(thing) or inspect.isroutine(thing)):
                continue
            address = f"{module.__name__}.{name}"
            if not thing.__doc__:
                findings.append(f"{address} has no docstring")
            if inspect.isclass(thing):
                findings += [
                    f"{address}.{member} has no docstring" for member in _bare_members(thing)
                ]
    return findings


def unlisted_members() -> set[str]:
    """Return the members of public classes that the reference leaves out; `filters` in mkdocs.yml lists them.

    Other modules of the package use them, and users do not.
    """
    found = re.findall(r'- "!\^\(([\w|]+)\)\$"', PAGES.read_text(encoding="utf-8"))
    return {name for names in found for name in names.split("|")}


def unused_filters(package: ModuleType, internal: Collection[str] = ()) -> list[str]:
    """Return the names in `filters` that no class of the package has."""
    texts = [path.read_text(encoding="utf-8") for path in Path(package.__path__[0]).rglob("*.py")]
    return [
        f"mkdocs.yml leaves out {name}, which no class has"
        for name in sorted(unlisted_members())
        if not any(f"def {name}(" in text for text in texts)
    ]


def _bare_members(cls: type) -> Iterator[str]:
    unlisted = unlisted_members()
    for name, member in vars(cls).items():
        if name.startswith("_") or name in unlisted:
            continue
        function = getattr(
            member, "__func__", member
        )  # the function that a class method or static method wraps
        if (inspect.isroutine(function) or isinstance(function, property)) and not function.__doc__:
            yield name
