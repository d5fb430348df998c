"""The exception tree, ordered by cause.

```
QuiesceError
├── ScopeClosed        you started something after the closing had begun
├── ChannelClosed      you sent to a closed channel, or read past its end
├── ChannelFull        you sent without waiting, and there was no room
├── TapOverflow        you read a tap with slow="fail" too slowly
├── SpawnFailed        the program could not be started
├── ProcessLost        the process exited before it was ready, or before it had read its input
├── NotReady           the process was not ready in time
├── LineTooLong        the process wrote a line that is longer than allowed
├── ProcessStuck       the process was killed, and has not ended
├── StartFailed        the pool could not start the runner of a key; carries the cause
├── RunnerReleased     you waited for a runner, and other code released its key
├── UsageError         you called a function in the wrong place or at the wrong time
│   └── ArgumentError  you called a function with a wrong argument
│       └── DuplicateKey
├── SdkMissing         the SDK of an adapter is not installed, or is too old
├── SdkUnknown         the SDK is too new: it lacks something that the adapter needs
├── PeerLost           the agent or server at the other end is gone
├── ProtocolError      a message between nodes of a mesh violates the protocol
│   ├── LocalProtocolError    …and this end was about to send it
│   └── RemoteProtocolError   …and the other end has sent it
├── EdgeRefused        this node must not process a message, such as a copy or a late one
├── CascadeCancelled   the cascade that your code works for was cancelled
├── JournalInUse       another node or process uses the journal
├── JournalBroken      the journal of this node is damaged
├── StoreLost          the shared store of this node does not answer, or cannot write
├── ReplicaBuried      this replica was declared dead in its shared store, and may not go on
├── JobCancelled       you awaited a job, and the job was cancelled
├── LeakError          a test left tasks or other things behind; lists each one with its origin
├── EscapeError        code of a hop starts work that no verdict waits for; lists the places
├── SweepFailed        a scenario mishandled cancellation; lists the failing points
├── GateFailed         a shutdown lost or left planted work without reporting it
└── WorkLost           the program lost work; carries the report
    └── DrainTimeout   …because the deadline passed
```

Cancellation is not in this tree: the event loop's own exception is passed on.
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
    """The channel is closed for sending, or it has been read to its end."""


class ChannelFull(QuiesceError):
    """The channel is full, and the sender asked not to wait."""


class TapOverflow(QuiesceError):
    """The reader of a tap with `slow="fail"` was too slow, and has missed items."""


class StartFailed(QuiesceError):
    """A runner could not be started; `cause` is the reason. The next lease tries again."""

    def __init__(self, key: object, cause: BaseException) -> None:
        """Carry the key and the cause."""
        # Use the error's text, not its repr: only the text has the process's last output, often the reason.
        why = f"{type(cause).__name__}: {cause}"
        super().__init__(f"the runner of {key!r} could not be started: {why}")
        self.key: object = key
        self.cause: BaseException = cause


class RunnerReleased(QuiesceError):
    """`release()` ended the runner while a task waited for its start."""


class SpawnFailed(QuiesceError):
    """The program could not be started; the cause is the operating system's error."""


class WithOutput(QuiesceError):
    """An error that shows the last lines of the process's output."""

    def __init__(self, message: str, lines: tuple[str, ...] = ()) -> None:
        """Carry `lines`: the last lines of the output, oldest first."""
        super().__init__(message)
        self.lines: tuple[str, ...] = lines

    def __str__(self) -> str:
        """Return the message, with the lines of output below it."""
        head = str(self.args[0])
        return "\n".join([head, *(f"    {line}" for line in self.lines)])


class ProcessLost(WithOutput):
    """The process exited too early; carries the exit code and the last lines of its output."""

    def __init__(
        self, message: str, returncode: int | None = None, lines: tuple[str, ...] = ()
    ) -> None:
        """Carry the exit code as in `subprocess`: negative for a signal; None if unknown."""
        super().__init__(message, lines)
        self.returncode: int | None = returncode


class NotReady(WithOutput):
    """The process was not ready in time, so it was stopped; carries its last output."""


class LineTooLong(QuiesceError):
    """A process wrote a line that is longer than allowed."""


class ProcessStuck(QuiesceError):
    """The process, or a process of its group, survived SIGKILL; the scope still holds it."""


class UsageError(QuiesceError, RuntimeError):
    """A function was called in the wrong place or at the wrong time; the message says what to do."""


class ArgumentError(UsageError, ValueError):
    """A function was called with a wrong argument; the message says what to do."""


class DuplicateKey(ArgumentError):
    """A job with this key is still in flight in the scope."""


class SdkMissing(QuiesceError, ImportError):
    """The SDK of an adapter is not installed, or too old; the message says what to install."""


class SdkUnknown(QuiesceError):
    """The installed SDK lacks something that the adapter needs; it is newer than the tested versions."""


class PeerLost(QuiesceError):
    """The agent or server at the other end is gone, and the request has no answer."""


class ProtocolError(QuiesceError):
    """A message between nodes of a mesh violates the protocol."""


class LocalProtocolError(ProtocolError):
    """The protocol cannot express a message that this node was about to send."""


class RemoteProtocolError(ProtocolError):
    """A message from another node violates the protocol; this node has ignored it."""


class EdgeRefused(QuiesceError):
    """This node must not process a message. Answer the sender with `header` as the `Cascade-Receipt`."""

    def __init__(self, message: str, header: str, *, is_busy: bool = False) -> None:
        """Carry the answer to the sender."""
        super().__init__(message)
        self.header: str = header
        self.is_busy: bool = is_busy
        """Whether the node rejects all messages now. If not, it rejects only this one, such as a copy."""


class CascadeCancelled(QuiesceError):
    """The cascade that the running code works for was cancelled, so the code is cancelled, too."""


class JournalInUse(QuiesceError):
    """Another node or process uses the journal. Each node needs its own, in one process at a time."""


class JournalBroken(QuiesceError):
    """The journal file is damaged, or is not a journal, so the work it recorded cannot be read."""


class StoreLost(QuiesceError):
    """A shared store does not answer, or cannot write now. The node tries again by itself."""


class ReplicaBuried(QuiesceError):
    """A replica was declared dead in its shared store, so another one may have taken over its work."""

    def __init__(self, incarnation: str, why: str = "") -> None:
        """Say which start of a replica was declared dead, and why, in the words of the process that declared it."""
        self.incarnation: str = incarnation
        self.why: str = why
        known = f": {why}" if why else ""
        super().__init__(
            f"replica {incarnation} is not alive in its store{known}. It may not go on: start the process again"
        )


class JobCancelled(QuiesceError):
    """The awaited job was cancelled, so it has no result.

    It is not a `CancelledError`: the task that awaits the job was not cancelled.
    """


class LeakError(QuiesceError):
    """A test left tasks or other things behind; `findings` lists each with the line that started it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        """Carry the findings."""
        super().__init__(findings)
        self.findings: Sequence[Finding] = findings

    def __str__(self) -> str:
        """Return one line for each finding."""
        count = len(self.findings)
        head = f"{count} thing{'' if count == 1 else 's'} left behind:"
        return "\n  ".join([head, *map(str, self.findings)])


class EscapeError(QuiesceError):
    """Code of a hop starts work that no verdict waits for; `escapes` lists each place and its remedy."""

    def __init__(self, escapes: Sequence[Escape]) -> None:
        """Carry the escapes."""
        super().__init__(escapes)
        self.escapes: Sequence[Escape] = escapes

    def __str__(self) -> str:
        """Return one line for each escape: the place and its remedy."""
        count = len(self.escapes)
        head = f"work leaves at {count} place{'' if count == 1 else 's'}:"
        return "\n  ".join([head, *map(str, self.escapes)])


class SweepFailed(QuiesceError):
    """A scenario mishandled cancellation; `sweep` has the details."""

    def __init__(self, sweep: Sweep) -> None:
        """Carry the result of the sweep."""
        super().__init__(str(sweep))
        self.sweep: Sweep = sweep


class GateFailed(QuiesceError):
    """A shutdown lost or left planted work without reporting it."""

    def __init__(self, gate: Gate) -> None:
        """Carry the gate; its text is the table."""
        super().__init__(gate)
        self.gate: Gate = gate


class WorkLost(QuiesceError):
    """Work was lost: it failed, was cancelled, was not delivered, or is stuck."""

    def __init__(self, report: Report) -> None:
        """Carry `report`, which lists the lost work."""
        super().__init__(report)
        self.report: Report = report

    def __str__(self) -> str:
        """Return the report as text."""
        return str(self.report)


class DrainTimeout(WorkLost):
    """The deadline of a drain passed with work still in flight."""

    def __str__(self) -> str:
        """Return the report as text. If the report lists no loss, put a sentence about the deadline first."""
        text = super().__str__()
        if not self.report.ok:
            return text
        return f"the deadline passed, but the cancelled work returned normally: {text}"
