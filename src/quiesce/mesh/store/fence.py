"""Ends this process by a timer of the kernel, unless the timer is set again in time.

The kernel kills the process when the timer is due: also while the process is stopped (SIGSTOP), waits for a disk, or never
yields. A stopped process that is continued later does not run one more instruction. So other machines know that the
code has stopped when the time is over, without asking. The time goes on while the machine is suspended
(CLOCK_BOOTTIME). The timer belongs to this process alone: forked children do not have it.

Assumptions: the machine's clock does not run slow by more than the spare time of `replica_identity`, and a virtual machine
that was paused or migrated notices the time of the pause.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from quiesce.errors import UsageError

__all__: list[str] = []

_CLOCK_BOOTTIME = 7
_SIGEV_SIGNAL = 0
_SIGEVENT_BYTES = 64


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * (_SIGEVENT_BYTES - ctypes.sizeof(ctypes.c_void_p) - 8)),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerTime(ctypes.Structure):
    _fields_ = (("every", _Time), ("first", _Time))


class Fence:
    """A timer that kills this process."""

    def __init__(self) -> None:
        """Make the timer; it does not run yet.

        *Raises*: `UsageError` if this system does not have such timers.
        """
        message = "fence=True needs Linux, whose kernel can end a process by a timer: leave it out on this system"
        if sys.platform != "linux":
            raise UsageError(message)
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "timer_create"):  # an old C library has it elsewhere
            raise UsageError(message)
        event = _SignalEvent(None, signal.SIGKILL, _SIGEV_SIGNAL)
        self._timer = ctypes.c_void_p()
        self._check(
            self._libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer))
        )
        self._is_open = True

    def _check(self, result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def kill_in(self, seconds: float) -> None:
        """Kill this process after some seconds, in place of an earlier time; at once if they are not positive."""
        nanoseconds = max(1, int(seconds * 1e9))
        first = _Time(*divmod(nanoseconds, 1_000_000_000))
        self._check(
            self._libc.timer_settime(
                self._timer, 0, ctypes.byref(_TimerTime(_Time(0, 0), first)), None
            )
        )

    def close(self) -> None:
        """Remove the timer. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._libc.timer_delete(self._timer)
