"""An agent that does not go: neither when its input ends, nor when it is asked to.

On stderr it tells that it is there, and that its input has ended. If the test dies it goes by itself.
"""

from __future__ import annotations

import signal
import sys
import time

STAYS_SECONDS = 30.0

signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stderr.write("ready\n")
sys.stderr.flush()
sys.stdin.read()
sys.stderr.write("end of input\n")
sys.stderr.flush()
time.sleep(STAYS_SECONDS)
