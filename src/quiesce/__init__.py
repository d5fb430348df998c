"""quiesce: async programs that can prove that they have gone quiet.

The layers, from the top; each uses only those below it:

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
    DrainTimeout,
    DuplicateKey,
    JobCancelled,
    QuiesceError,
    ScopeClosed,
    UsageError,
    WorkLost,
)

__all__ = [
    "ArgumentError",
    "DrainTimeout",
    "DuplicateKey",
    "Ended",
    "Frontier",
    "FrontierEntry",
    "Hold",
    "Job",
    "JobCancelled",
    "Outcome",
    "QuiesceError",
    "Report",
    "Scope",
    "ScopeClosed",
    "UsageError",
    "WorkLost",
    "current_scope",
    "detached",
    "run",
]
