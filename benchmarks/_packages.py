"""Other libraries: whether they are installed, and in which version."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Package:
    """A library that quiesce is compared with; if it is not installed, the results show it as missing."""

    name: str
    module: str

    @property
    def found(self) -> bool:
        """Return whether the library is installed, and works with this Python."""
        try:
            import_module(self.module)
        except ImportError:
            return False
        return True

    @property
    def version(self) -> str:
        """Return the library's version, or `missing` if it is not installed."""
        if self.module == "asyncio":
            return "standard library"
        try:
            return version(self.module)
        except PackageNotFoundError:
            return "missing"
