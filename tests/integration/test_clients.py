"""The HTTP clients that a node makes and instruments, with the newest of each library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import subjects

_ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 500.0  # a guard against hangs
_ALL = ("clients_plain_cases", "clients_own_cases")

_NEITHER = """
import quiesce.errors, quiesce.mesh
try:
    import quiesce.mesh.transport.http_transport
except quiesce.errors.SdkMissing as error:
    print(error)
"""


@pytest.mark.timeout(_SECONDS_MAX + 60.0)
@pytest.mark.parametrize(
    ("subject", "modules"),
    [
        pytest.param("aiohttp-3.14.5", _ALL, id="all", marks=pytest.mark.usual),
        pytest.param("mcp-2.3.0", ("clients_httpx2_cases",), id="httpx2 alone"),
        pytest.param(
            "openai-3.51.0", ("clients_models_cases",), id="models", marks=pytest.mark.usual
        ),
    ],
)
def test_cases(subject: str, modules: tuple[str, ...]) -> None:
    """What they send in hops is a message, or is noticed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60"),
            *(f"tests/adapters/{module}.py" for module in modules),
        ],
        cwd=_ROOT,
        env=subjects.environment(subject),
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)


def test_without_either_library_it_is_said_what_to_install() -> None:
    """The mesh itself needs neither."""
    done = subprocess.run(
        [sys.executable, "-c", _NEITHER], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert "pip install 'quiesce[httpx]' or pip install 'quiesce[httpx2]'" in done.stdout
