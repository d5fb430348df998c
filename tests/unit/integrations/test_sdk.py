"""What an adapter says when its SDK is not there, is too old, or has changed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

from quiesce.errors import SdkMissing, SdkUnknown
from quiesce.integrations import sdk


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the versions that are taken for installed, to be filled in by the test."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    return versions


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.8.1", (0, 8, 1)), ("2.3.0rc1", (2, 3, 0)), ("1.4.1.post1", (1, 4, 1)), ("odd", ())],
)
def test_a_version_is_its_numbers(text: str, numbers: tuple[int, ...]) -> None:
    """What follows the numbers does not count."""
    assert sdk.version_numbers(text) == numbers


@pytest.mark.parametrize("version", ["0.8.1", "0.10.0", "1.0.0rc1"])
def test_an_sdk_that_is_new_enough_is_taken(installed: dict[str, str], version: str) -> None:
    """The version comes back as numbers, which compare as versions do."""
    installed["an-sdk"] = version
    assert sdk.require("an-sdk", extra="some", oldest="0.8.1") == sdk.version_numbers(version)


def test_an_sdk_that_is_not_there_is_named_with_what_to_install(installed: dict[str, str]) -> None:
    """It is an ImportError too, for those who try optional imports."""
    assert installed == {}
    with pytest.raises(
        ImportError, match=re.escape("run pip install '.[some]' in a checkout")
    ) as caught:
        sdk.require("an-sdk", extra="some", oldest="0.8.1")
    assert isinstance(caught.value, SdkMissing)
    assert caught.value.name == "an-sdk"
    assert "an-sdk 0.8.1 or newer" in str(caught.value)


def test_an_sdk_that_is_too_old_is_named_with_both_versions(installed: dict[str, str]) -> None:
    """What is there, what is wanted, and how to get it."""
    installed["an-sdk"] = "0.7.9"
    with pytest.raises(
        SdkMissing, match=re.escape("0.8.1 or newer, but 0.7.9 is installed")
    ) as caught:
        sdk.require("an-sdk", extra="some", oldest="0.8.1")
    assert "--upgrade" in str(caught.value)


def test_an_sdk_that_has_changed_is_not_guessed_at(installed: dict[str, str]) -> None:
    """The error names the version and what it lacks."""
    installed["an-sdk"] = "9.0"
    with pytest.raises(SdkUnknown, match=r"an-sdk 9\.0 has no thing\._inner"):
        sdk.unknown("an-sdk", "thing._inner")


WITHOUT = """
import sys
from importlib import metadata
def missing(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = missing
sys.modules[{module!r}] = None
try:
    import quiesce.integrations.{adapter}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("adapter", "module"),
    [("a2a", "a2a"), ("acp", "acp"), ("claude", "claude_agent_sdk"), ("mcp", "mcp")],
)
def test_each_adapter_says_what_to_install(adapter: str, module: str) -> None:
    """Without its SDK the import fails with the same error, whichever adapter it is."""
    program = WITHOUT.format(adapter=adapter, module=module)
    argv = [sys.executable, "-c", program]
    found = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert found.stdout.startswith(f"SdkMissing quiesce.integrations.{adapter} needs"), found
    assert (
        f"which is not installed: run pip install '.[{adapter}]' in a checkout of quiesce"
        in found.stdout
    )
