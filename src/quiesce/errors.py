"""The exception tree, ordered by who is at fault.

```
QuiesceError
├── ScopeClosed        you started something after the closing had begun
├── ChannelClosed      you sent to a closed channel, or read past its end
├── ChannelFull        you sent without waiting, and there was no room
├── TapOverflow        you read a tap too slowly, and it was to fail then
├── SpawnFailed        the program could not be started
├── ProcessLost        it exited before it was ready, or before it had taken what was sent to it
├── NotReady           it was not ready in time
├── LineTooLong        it has written a line that is longer than was allowed
├── ProcessStuck       it was killed, and has not ended
├── StartFailed        the runner of a key could not be started; carries the cause
├── RunnerReleased     you waited for a runner, and somebody has released its key
├── UsageError         you called it in the wrong place or at the wrong time
│   └── ArgumentError  you called it with a wrong argument
│       └── DuplicateKey
├── SdkMissing         the SDK that an adapter is for is not installed, or too old
├── SdkUnknown         the SDK has changed, and the adapter does not guess
├── PeerLost           the agent or server at the other end is gone
├── ProtocolError      a message between nodes of a mesh is not as it should be
│   ├── LocalProtocolError    …and this end was about to send it
│   └── RemoteProtocolError   …and the other end has sent it
├── EdgeRefused        a message that must not be worked on: it was before, or came too late
├── CascadeCancelled   what you do is part of a cascade that was told to end
├── JournalInUse       another node, or process, has the journal
├── JournalBroken      the journal of this node is not as it was written
├── JobCancelled       you awaited a job, and the job was cancelled
├── LeakError          something was left behind; carries what, and where it was started
├── EscapeError        work leaves a hop by a way that no verdict waits for; carries where
├── SweepFailed        a scenario did not stand being cancelled; carries where
├── GateFailed         what was planted survived a shutdown, or was lost, in silence
└── WorkLost           the program lost work; carries the report
    └── DrainTimeout   …because the deadline passed
```

Cancellation is not in this tree: it is passed on as the event loop raised it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quiesce.core.report import Report
    from quiesce.testing.escaping.escape_report import Escape
    from quiesce.testing.leaks.findings import Finding
    from quiesce.testing.plants.shutdown_gate import Gate
    from quiesce.testing.sweeps.result import Sweep


class QuiesceError(Exception):
    """Base of every error that quiesce raises by itself."""


class ScopeClosed(QuiesceError):
    """Something was started in a scope whose closing has begun."""


class ChannelClosed(QuiesceError):
    """The channel takes nothing more; or it has been read to its end."""


class ChannelFull(QuiesceError):
    """There is no room in the channel, and the sender does not want to wait."""


class TapOverflow(QuiesceError):
    """The tap's reader was too slow, and `slow="fail"` was asked for: it has missed items."""


class StartFailed(QuiesceError):
    """A runner could not be started; `cause` tells why. The next lease tries again."""

    def __init__(self, key: object, cause: BaseException) -> None:
        """Carry the key and the cause."""
        # Not its repr: what the process has written last, often the reason, is in its text.
        why = f"{type(cause).__name__}: {cause}"
        super().__init__(f"the runner of {key!r} could not be started: {why}")
        self.key: object = key
        self.cause: BaseException = cause


class RunnerReleased(QuiesceError):
    """`release()` has ended the runner while somebody waited for its start."""


class SpawnFailed(QuiesceError):
    """The program could not be started; the cause is the operating system's error."""


class WithOutput(QuiesceError):
    """An error that shows the last lines of the process's output."""

    def __init__(self, message: str, lines: tuple[str, ...] = ()) -> None:
        """Carry `lines`, the last of the output, oldest first."""
        super().__init__(message)
        self.lines: tuple[str, ...] = lines

    def __str__(self) -> str:
        """Return the message, and the lines below it."""
        head = str(self.args[0])
        return "\n".join([head, *(f"    {line}" for line in self.lines)])


class ProcessLost(WithOutput):
    """The process exited too early; carries the exit code and the last lines of its output."""

    def __init__(
        self, message: str, returncode: int | None = None, lines: tuple[str, ...] = ()
    ) -> None:
        """Carry how it exited, as in `subprocess`: negative for a signal; None if unknown."""
        super().__init__(message, lines)
        self.returncode: int | None = returncode


class NotReady(WithOutput):
    """The process was not ready in time, and has been stopped; carries its last output."""


class LineTooLong(QuiesceError):
    """A process has written a line that is longer than was allowed."""


class ProcessStuck(QuiesceError):
    """The process, or one in its group, outlived SIGKILL; the scope still holds it."""


class UsageError(QuiesceError, RuntimeError):
    """A call in the wrong place, or at the wrong time; the message says what to do."""


class ArgumentError(UsageError, ValueError):
    """A call with an argument that cannot work; the message says what to do."""


class DuplicateKey(ArgumentError):
    """A job with this key is still in flight in the scope."""


class SdkMissing(QuiesceError, ImportError):
    """The SDK that an adapter is for is not installed, or is too old: it says what to install."""


class SdkUnknown(QuiesceError):
    """The installed SDK lacks something that the adapter needs: newer than what it was tested with."""


class PeerLost(QuiesceError):
    """The agent or server at the other end is gone, and what was asked of it has no answer."""


class ProtocolError(QuiesceError):
    """A message between nodes of a mesh is not as the protocol has it."""


class LocalProtocolError(ProtocolError):
    """What was to be sent cannot be written as the protocol has it."""


class RemoteProtocolError(ProtocolError):
    """What another node has sent is not of the protocol; nothing was changed by it."""


class EdgeRefused(QuiesceError):
    """A message must not be worked on; `header` is what its sender is to be told, as `Cascade-Receipt`."""

    def __init__(self, message: str, header: str, *, is_busy: bool = False) -> None:
        """Carry the answer."""
        super().__init__(message)
        self.header: str = header
        self.is_busy: bool = is_busy
        """Whether the agent takes no messages now; else it is this message that is refused, as a copy is."""


class CascadeCancelled(QuiesceError):
    """The cascade that the running code works for was told to end, and so was the code."""


class JournalInUse(QuiesceError):
    """Another process has the journal: a node has one of its own, and one process at a time."""


class JournalBroken(QuiesceError):
    """The file is not a journal, or not as it was written: what was begun is not known."""


class JobCancelled(QuiesceError):
    """The awaited job was cancelled, so it has no result.

    It is not a `CancelledError`: the one who awaits was not cancelled.
    """


class LeakError(QuiesceError):
    """Something was left behind; `findings` names each thing, and the line that started it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        """Carry what was left."""
        super().__init__(findings)
        self.findings: Sequence[Finding] = findings

    def __str__(self) -> str:
        """Return one line for each thing that was left."""
        count = len(self.findings)
        head = f"{count} thing{'' if count == 1 else 's'} left behind:"
        return "\n  ".join([head, *map(str, self.findings)])


class EscapeError(QuiesceError):
    """Work leaves a hop by a way that no verdict waits for; `escapes` names each place, and what to write instead."""

    def __init__(self, escapes: Sequence[Escape]) -> None:
        """Carry the places."""
        super().__init__(escapes)
        self.escapes: Sequence[Escape] = escapes

    def __str__(self) -> str:
        """Return one line for each place, and what to write there."""
        count = len(self.escapes)
        head = f"work leaves at {count} place{'' if count == 1 else 's'}:"
        return "\n  ".join([head, *map(str, self.escapes)])


class SweepFailed(QuiesceError):
    """A scenario did not stand being cancelled; `sweep` has the details."""

    def __init__(self, sweep: Sweep) -> None:
        """Carry the result of the sweep."""
        super().__init__(str(sweep))
        self.sweep: Sweep = sweep


class GateFailed(QuiesceError):
    """Something that was planted survived a shutdown, or was lost, and nobody was told."""

    def __init__(self, gate: Gate) -> None:
        """Carry the gate, whose text is the table."""
        super().__init__(gate)
        self.gate: Gate = gate


class WorkLost(QuiesceError):
    """Work was lost: something failed, was cut short, was not delivered or is stuck."""

    def __init__(self, report: Report) -> None:
        """Carry `report`, which names what was lost."""
        super().__init__(report)
        self.report: Report = report

    def __str__(self) -> str:
        """Return the report as text."""
        return str(self.report)


class DrainTimeout(WorkLost):
    """The deadline of a drain passed with work still in flight."""

    def __str__(self) -> str:
        """Return the report as text; say what happened if that names no loss."""
        text = super().__str__()
        if not self.report.ok:
            return text
        return f"the deadline passed; what was left returned when it was cancelled: {text}"
