"""quiesce: async programs that can prove that all their work has ended.

The packages, in reading order. Each uses only packages above it in this list; `testing` may use all of them.

- `errors`: the exceptions, ordered by cause.
- `core`: the hold, the scope, the job and the report, on asyncio, uvloop and trio.
- `channels`: channels, taps and pipes, which own the items in flight.
- `streams`: async generators that any task may read, leave or close.
- `processes`: child processes that a cancellation cannot orphan.
- `ready`: probes that wait until a child process is ready, and listening sockets to pass to it.
- `pool`: one runner for each key, started when it is first needed.
- `mesh`: agents that hand work to each other, and proof that a whole cascade of work has settled.
- `integrations`: adapters for ASGI, A2A, ACP, MCP and the Claude Agent SDK.
- `testing`: checks that fail a test that leaks.
- `pytest_plugin`: the same checks, as settings and marks of pytest.
"""

from typing import TYPE_CHECKING

from quiesce.core.current import current_scope, detached
from quiesce.core.hold import Hold
from quiesce.core.job import Job, Outcome
from quiesce.core.later_names import import_name as _import_name
from quiesce.core.python_private import get_frame as _get_frame
from quiesce.core.report import Report, ReportEntry
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
    from quiesce.core.frontier import Frontier, FrontierEntry
    from quiesce.core.run import run
    from quiesce.pool.backoff import Backoff
    from quiesce.pool.pool import RunnerPool
    from quiesce.pool.program import Program
    from quiesce.processes.process import Process, start_process
    from quiesce.streams.stream import Stream, stream

# These names are imported at their first use, so a program that uses only scopes does not load the other modules or anyio.
_LATER = {
    "Backoff": "quiesce.pool.backoff",
    "Channel": "quiesce.channels.channel",
    "Frontier": "quiesce.core.frontier",
    "FrontierEntry": "quiesce.core.frontier",
    "Pipe": "quiesce.channels.pipe",
    "Process": "quiesce.processes.process",
    "Program": "quiesce.pool.program",
    "RunnerPool": "quiesce.pool.pool",
    "Stream": "quiesce.streams.stream",
    "Tap": "quiesce.channels.tap",
    "pipe": "quiesce.channels.pipe",
    "run": "quiesce.core.run",
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


if not TYPE_CHECKING:  # with __getattr__, type checkers would accept any misspelled name

    def __getattr__(name: str) -> object:
        """Import a public name at its first use. For a name that moved, raise with the new place."""
        if name in _MOVED:
            message = f"quiesce.{name} moved to {_MOVED[name]}"
            # `from quiesce import ...` hides the text of an AttributeError but shows that of an ImportError.
            is_from = _get_frame(1).f_code.co_name == "_handle_fromlist"
            raise (ImportError if is_from else AttributeError)(message)
        return _import_name(globals(), _LATER, name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
