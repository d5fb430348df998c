"""A mesh without an HTTP client; tests/adapters/clients* has the tests of each client."""

from __future__ import annotations

import subprocess
import sys

_NEITHER = """
import quiesce.errors, quiesce.mesh
try:
    import quiesce.mesh.transport.http_transport
except quiesce.errors.SdkMissing as error:
    print(error)
"""


def test_without_either_library_it_is_said_what_to_install() -> None:
    """The mesh itself needs neither."""
    done = subprocess.run(
        [sys.executable, "-c", _NEITHER], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert "pip install 'quiesce[httpx]' or pip install 'quiesce[httpx2]'" in done.stdout
