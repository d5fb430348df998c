"""quiesce: async programs that can prove that all their work has ended.

The packages, in reading order. Each uses only packages above it in this list; `testing` may use all of them.

- `errors`: the exceptions, ordered by cause.
- `core`: the hold, the scope, the job, the report; asyncio, uvloop and trio.
- `channels`: channels, taps and pipes: items in flight have an owner.
- `streams`: async generators that any task may read, leave or close.
- `processes`: child processes that no cancellation can orphan.
- `ready`: probes that tell when a child process is ready, and listeners to pass to it.
- `pool`: runners, one for each key, started when first needed.
- `mesh`: cascades of agents that hand work to each other, and whether a cascade has settled.
- `integrations`: adapters for ASGI, A2A, ACP, MCP and the Claude Agent SDK.
- `testing`: checks that make a leak fail a test.
- `pytest_plugin`: the same checks as settings and marks of pytest.
"""

from sys import _getframe
from typing import TYPE_CHECKING

from quiesce.core.current import current_scope, detached
from quiesce.core.frontier import Frontier, FrontierEntry
from quiesce.core.hold import Hold
from quiesce.core.job import Job, Outcome
from quiesce.core.report import Report, ReportEntry
from quiesce.core.run import run
from quiesce.core.scope import Scope
from quiesce.errors import (
    ArgumentError,
    ChannelClosed,
    ChannelFull,
    DrainTimeout,
    DuplicateKey,
    JobCancelled,
    LineTooLong,
    NotReady,
    ProcessLost,
    ProcessStuck,
    QuiesceError,
    RunnerReleased,
    ScopeClosed,
    SpawnFailed,
    StartFailed,
    TapOverflow,
    UsageError,
    WorkLost,
)

if TYPE_CHECKING:
    from quiesce.channels.channel import Channel
    from quiesce.channels.pipe import Pipe, pipe
    from quiesce.channels.tap import Tap
    from quiesce.pool.backoff import Backoff
    from quiesce.pool.pool import RunnerPool
    from quiesce.pool.program import Program
    from quiesce.processes.process import Process, start_process
    from quiesce.streams.stream import Stream, stream

# Imported when first used: a program that uses only scopes does not wait for the rest.
_LATER = {
    "Backoff": "quiesce.pool.backoff",
    "Channel": "quiesce.channels.channel",
    "Pipe": "quiesce.channels.pipe",
    "Process": "quiesce.processes.process",
    "Program": "quiesce.pool.program",
    "RunnerPool": "quiesce.pool.pool",
    "Stream": "quiesce.streams.stream",
    "Tap": "quiesce.channels.tap",
    "pipe": "quiesce.channels.pipe",
    "start_process": "quiesce.processes.process",
    "stream": "quiesce.streams.stream",
}

_MOVED = {
    "Ended": "quiesce.ReportEntry",
    "Fd": "quiesce.ready.Fd",
    "Http": "quiesce.ready.Http",
    "Line": "quiesce.ready.Line",
    "Listener": "quiesce.ready.Listener",
    "Tcp": "quiesce.ready.Tcp",
    "UnixSocket": "quiesce.ready.UnixSocket",
}

__all__ = [
    "ArgumentError",
    "Backoff",
    "Channel",
    "ChannelClosed",
    "ChannelFull",
    "DrainTimeout",
    "DuplicateKey",
    "Frontier",
    "FrontierEntry",
    "Hold",
    "Job",
    "JobCancelled",
    "LineTooLong",
    "NotReady",
    "Outcome",
    "Pipe",
    "Process",
    "ProcessLost",
    "ProcessStuck",
    "Program",
    "QuiesceError",
    "Report",
    "ReportEntry",
    "RunnerPool",
    "RunnerReleased",
    "Scope",
    "ScopeClosed",
    "SpawnFailed",
    "StartFailed",
    "Stream",
    "Tap",
    "TapOverflow",
    "UsageError",
    "WorkLost",
    "current_scope",
    "detached",
    "pipe",
    "run",
    "start_process",
    "stream",
]


if not TYPE_CHECKING:  # else type checkers would accept a misspelled name

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used; raise where a name that moved is now."""
        if name in _MOVED:
            message = f"quiesce.{name} moved to {_MOVED[name]}"
            # `from quiesce import ...` drops the text of an AttributeError, and shows that of an ImportError.
            is_from = _getframe(1).f_code.co_name == "_handle_fromlist"
            raise (ImportError if is_from else AttributeError)(message)
        if name not in _LATER:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        from importlib import import_module  # noqa: PLC0415 - most programs have imported all they use

        globals()[name] = found = getattr(import_module(_LATER[name]), name)
        return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
