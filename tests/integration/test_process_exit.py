"""The exit of a process that has lost work, instead of Python's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# `ProcessPoolExecutor` imports `multiprocessing.util`, whose own end of daemons then comes after that of quiesce: never.
_PROGRAM = """
import multiprocessing.util, time
from quiesce.core import process_exit
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
child.start()
print(child.pid)
process_exit.lost()
"""


def test_daemons_of_multiprocessing_are_ended() -> None:
    """As Python ends them at every other exit."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=False, stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
