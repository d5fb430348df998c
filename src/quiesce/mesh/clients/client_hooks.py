"""Functions of HTTP libraries that are wrapped while they have to be, also of libraries that are imported later."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from quiesce.core.tree import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from quiesce.core.patches import Patch

__all__: list[str] = []


class Hooks:
    """What is wrapped: by module, a function that wraps what it needs of it.

    A module is never imported for it. One that is not loaded is wrapped as soon as it is, by a finder that asks
    the other finders, and has the loader they found tell when it is through.
    """

    def __init__(self, wraps: Mapping[str, Callable[[ModuleType], Iterable[Patch]]]) -> None:
        self._wraps = wraps
        self._patches: dict[str, list[Patch]] = {}
        self._is_on = False

    def fit(self, *, is_wanted: bool) -> None:
        """Wrap what is loaded, and what will be; or restore everything as it was."""
        if is_wanted and not self._is_on:
            self._install()
        elif self._is_on and not is_wanted:
            self._remove()

    def _install(self) -> None:
        self._is_on = True
        sys.meta_path.insert(0, self)
        for name in self._wraps:
            module = sys.modules.get(name)
            # One that is being imported has a loader that tells.
            if module is not None and not _is_initializing(module):
                self._wrap(name, module)

    def _remove(self) -> None:
        self._is_on = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        while self._patches:
            for patch in reversed(self._patches.popitem()[1]):
                patch.remove()

    def _wrap(self, name: str, module: ModuleType) -> None:
        if not self._is_on or name in self._patches:
            return
        made = self._patches[name] = []
        try:
            for patch in self._wraps[name](module):
                made.append(patch)  # noqa: PERF402 - what is made before an error is kept, to be removed
        except Exception:  # noqa: BLE001 - a version that differs: it must not fail the import
            logger.warning(
                "this version of %s is not known: what it sends to peers may pass unnoticed",
                name,
                exc_info=True,
            )

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what other finders find, if it is to be wrapped; the import system asks."""
        if name not in self._wraps:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                None if finder is self or find is None else find(name, path, target)
            )
            if spec is not None:
                self._listen(name, spec.loader)
                return spec
        return None

    def _listen(self, name: str, loader: Any) -> None:
        """Watch a loader, to hear when it has loaded a module: each module has its own."""
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: ModuleType) -> None:
            load(module)
            if module.__name__ == name:
                vars(loader).pop("exec_module", None)
                self._wrap(name, module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):  # a loader of another kind, which takes no attributes
            logger.warning(
                "%s is loaded in a way that is not known: what it sends may pass unnoticed", name
            )


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
