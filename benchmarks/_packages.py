"""Other libraries: whether they are there, and in which version."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Package:
    """A library that quiesce is shown beside; one that is not installed is reported as missing."""

    name: str
    module: str

    @property
    def found(self) -> bool:
        """Return whether it is installed, and works with this Python."""
        try:
            import_module(self.module)
        except ImportError:
            return False
        return True

    @property
    def version(self) -> str:
        """Return its version, `missing` if it is not there."""
        if self.module == "asyncio":
            return "standard library"
        try:
            return version(self.module)
        except PackageNotFoundError:
            return "missing"
