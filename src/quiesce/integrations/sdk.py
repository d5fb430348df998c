"""Checks that the SDK of an adapter is installed, in a version that the adapter supports."""

from __future__ import annotations

import re
from importlib import metadata
from typing import NoReturn

from quiesce.core.extras import how_to_install
from quiesce.errors import SdkMissing, SdkUnknown

__all__: list[str] = []

Version = tuple[int, ...]


def version_numbers(text: str) -> Version:
    """Return the numbers of a version, without suffixes like `rc1`, `.dev0` and `+local`."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def require(distribution: str, *, extra: str, oldest: str) -> Version:
    """Return the version of an installed SDK.

    Args:
        distribution: its name on PyPI.
        extra: the extra of quiesce that installs it.
        oldest: the oldest version that the adapter is tested with.

    Raises:
        SdkMissing: the SDK is not installed, or is older.
    """
    wanted = f"{distribution} {oldest} or newer"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        message = (
            f"quiesce.integrations.{extra} needs {wanted}, which is not installed:"
            f" {how_to_install(extra)}"
        )
        raise SdkMissing(message, name=distribution) from None
    if version_numbers(version) < version_numbers(oldest):
        message = (
            f"quiesce.integrations.{extra} needs {wanted}, but {version} is installed:"
            f" {how_to_install(extra, upgrade=True)}"
        )
        raise SdkMissing(message, name=distribution)
    return version_numbers(version)


def unknown(distribution: str, what: str) -> NoReturn:
    """Raise because the installed SDK lacks `what`, which all tested versions have.

    Raises:
        SdkUnknown: always.
    """
    version = metadata.version(distribution)
    message = (
        f"{distribution} {version} has no {what}, which quiesce needs: it is newer than the versions"
        " that this quiesce was tested with (docs/reference/compatibility.md). Install one of those,"
        " or a newer quiesce."
    )
    raise SdkUnknown(message)
