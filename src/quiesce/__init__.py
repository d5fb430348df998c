"""quiesce: async programs that can prove that they have gone quiet.

The packages, in reading order. Each uses only packages above it in this list; `testing` may use all of them.

- `errors`: the exceptions, ordered by who is at fault.
- `core`: the hold, the scope, the job, the report; asyncio, uvloop and trio.
- `channels`: channels, taps and pipes: items in flight have an owner.
- `streams`: async generators that any task may read, leave or close.
- `processes`: child processes that no cancellation can orphan, and when they are ready.
- `pool`: runners, one for each key, started when first needed.
- `mesh`: cascades of agents that hand work to each other, and how to know that one has settled.
- `integrations`: adapters for ASGI, A2A, ACP, MCP and the Claude Agent SDK.
- `testing`: what makes a leak fail a test.
- `pytest_plugin`: the same as settings and marks of pytest.
"""

from quiesce.channels.channel import Channel
from quiesce.channels.channel_statistics import ChannelStatistics
from quiesce.channels.pipe import Pipe, pipe
from quiesce.channels.tap import Tap
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
from quiesce.pool.backoff import Backoff
from quiesce.pool.pool import RunnerPool
from quiesce.pool.pool_stats import PoolStats
from quiesce.pool.program import Program
from quiesce.processes.output import Output
from quiesce.processes.process import Process, start_process
from quiesce.processes.raw_stdio import RawOutput
from quiesce.processes.readiness.connect import Http, Tcp, UnixSocket
from quiesce.processes.readiness.listener import Listener
from quiesce.processes.readiness.notify import Notify
from quiesce.processes.readiness.probe import Fd, Line
from quiesce.streams.stream import Stream, stream

__all__ = [
    "ArgumentError",
    "Backoff",
    "Channel",
    "ChannelClosed",
    "ChannelFull",
    "ChannelStatistics",
    "DrainTimeout",
    "DuplicateKey",
    "Fd",
    "Frontier",
    "FrontierEntry",
    "Hold",
    "Http",
    "Job",
    "JobCancelled",
    "Line",
    "LineTooLong",
    "Listener",
    "NotReady",
    "Notify",
    "Outcome",
    "Output",
    "Pipe",
    "PoolStats",
    "Process",
    "ProcessLost",
    "ProcessStuck",
    "Program",
    "QuiesceError",
    "RawOutput",
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
    "Tcp",
    "UnixSocket",
    "UsageError",
    "WorkLost",
    "current_scope",
    "detached",
    "pipe",
    "run",
    "start_process",
    "stream",
]
