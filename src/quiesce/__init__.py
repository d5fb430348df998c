"""quiesce: async programs that can prove that they have gone quiet.

The layers, from the top; each uses only those below it:

- `quiesce.resources`: channels, pipes and streams; processes and pools of runners.
- `quiesce.core`: the hold, the scope, the job, the report; asyncio, uvloop and trio.
- `quiesce.errors`: the exception tree.

Everything public is here, under `quiesce`.
"""

from quiesce.core.current import current_scope, detached
from quiesce.core.frontier import Frontier, FrontierEntry
from quiesce.core.hold import Hold
from quiesce.core.job import Job, Outcome
from quiesce.core.report import Ended, Report
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
from quiesce.resources.backoff import Backoff
from quiesce.resources.channel import Channel
from quiesce.resources.connecting import Http, Tcp, UnixSocket
from quiesce.resources.listening import Listener
from quiesce.resources.notify import Notify
from quiesce.resources.output import Output
from quiesce.resources.pipe import Pipe, pipe
from quiesce.resources.pool import RunnerPool
from quiesce.resources.pool_stats import PoolStats
from quiesce.resources.process import Process, start_process
from quiesce.resources.program import Program
from quiesce.resources.raw import RawOutput
from quiesce.resources.ready import Fd, Line
from quiesce.resources.statistics import ChannelStatistics
from quiesce.resources.stream import Stream, stream
from quiesce.resources.tap import Tap

__all__ = [
    "ArgumentError",
    "Backoff",
    "Channel",
    "ChannelClosed",
    "ChannelFull",
    "ChannelStatistics",
    "DrainTimeout",
    "DuplicateKey",
    "Ended",
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
