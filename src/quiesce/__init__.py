"""quiesce: async programs that can prove that they have gone quiet.

The layers, from the top; each uses only those below it:

- `quiesce.resources`: channels, pipes and streams.
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
    QuiesceError,
    ScopeClosed,
    TapOverflow,
    UsageError,
    WorkLost,
)
from quiesce.resources.channel import Channel
from quiesce.resources.pipe import Pipe, pipe
from quiesce.resources.statistics import ChannelStatistics
from quiesce.resources.stream import Stream, stream
from quiesce.resources.tap import Tap

__all__ = [
    "ArgumentError",
    "Channel",
    "ChannelClosed",
    "ChannelFull",
    "ChannelStatistics",
    "DrainTimeout",
    "DuplicateKey",
    "Ended",
    "Frontier",
    "FrontierEntry",
    "Hold",
    "Job",
    "JobCancelled",
    "Outcome",
    "Pipe",
    "QuiesceError",
    "Report",
    "Scope",
    "ScopeClosed",
    "Stream",
    "Tap",
    "TapOverflow",
    "UsageError",
    "WorkLost",
    "current_scope",
    "detached",
    "pipe",
    "run",
    "stream",
]
