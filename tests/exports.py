"""The rules about what a package exports; tests/test_tidy.py applies them to quiesce.

A public name has one address: it is in the `__all__` of exactly one public module, so that there
is one way to import it, to document it and to deprecate it. Internal modules have an `__all__` too;
it says what the modules around them use, and is no address for a user.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from quiesce.errors import SdkMissing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """Import a package and all its modules; those of an SDK that is not installed are left out."""
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
    """Name the modules of the packages in a package, without importing any of them."""
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
    """Order names as ruff does in `__all__`: constants, classes, the rest."""
    if name.isupper():
        return 0, name
    return (1, name) if name[:1].isupper() else (2, name)


def is_internal(module: ModuleType, internal: Collection[str]) -> bool:
    """Return whether a module is one of those named, or below one."""
    return any(f"{module.__name__}.".startswith(f"{name}.") for name in internal)


def export_faults(package: ModuleType, internal: Collection[str] = ()) -> list[str]:
    """Find names that are missing, out of order, exported twice, or public without being named."""
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
    """Find names that a user can reach on the package itself, but that it does not export."""
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
    """Find exported classes and functions, and public members of classes, without a docstring."""
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


def _bare_members(cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        function = getattr(member, "__func__", member)  # what a class or static method wraps
        if (inspect.isroutine(function) or isinstance(function, property)) and not function.__doc__:
            yield name
