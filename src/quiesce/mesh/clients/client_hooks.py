"""Wraps functions of libraries for a while, also of libraries that are imported later.

`instrumentation` uses this for HTTP clients, and `routes.installing` for task queues and uvloop.
"""

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
    """A set of modules to wrap. Each comes with a function that yields the patches of the module.

    This never imports a module. A module that is not loaded yet is wrapped as soon as it is: this object is an import
    finder that asks the other finders, and replaces `exec_module` of the loader that they find.
    """

    def __init__(self, wraps: Mapping[str, Callable[[ModuleType], Iterable[Patch]]]) -> None:
        self._wraps = wraps
        self._patches: dict[str, list[Patch]] = {}
        self._is_on = False

    def fit(self, *, is_wanted: bool) -> None:
        """Wrap the modules, now or once they are loaded. If `is_wanted` is false, remove all patches."""
        if is_wanted and not self._is_on:
            self._install()
        elif self._is_on and not is_wanted:
            self._remove()

    def _install(self) -> None:
        self._is_on = True
        sys.meta_path.insert(0, self)
        for name in self._wraps:
            module = sys.modules.get(name)
            # A module that is being imported is wrapped by its loader, at the end of the import.
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
                made.append(patch)  # noqa: PERF402 - patches made before an error are kept, to be removed
        except Exception:  # noqa: BLE001 - an unknown version of a library must not fail its import
            logger.warning(
                "quiesce does not know this version of %s, so messages or work that leave by it may be missing from"
                " verdicts. Use another version, or report it",
                name,
                exc_info=True,
            )

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that other finders find for a module of this set. Called by the import system."""
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
        """Wrap the module when its loader has loaded it. Each module has a loader of its own."""
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
        except (AttributeError, TypeError):  # the attributes of this loader cannot be set
            logger.warning(
                "quiesce does not know the loader that imports %s, so messages or work that leave by it may be missing"
                " from verdicts. Import the module before a node is opened",
                name,
            )


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
