"""The exceptions that the end of an `async with Scope(...)` block raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiesce.core.tree import logger
from quiesce.errors import DrainTimeout, WorkLost

if TYPE_CHECKING:
    from quiesce.core.report import Report
    from quiesce.core.scope import Scope


def end_block(
    scope: Scope,
    report: Report,
    exc: BaseException | None,
    *,
    late: bool = False,
    gave_up: bool = False,
) -> None:
    """Raise the exception with which the block ends, if any; `exc` is the exception that ended its body.

    - Jobs failed: an exception group of their errors and the body's exception, if it raised one.
    - Only the body raised: `exc` goes on unchanged; this function returns.
    - The body was cancelled, or a generator was closed around it: `exc` goes on unchanged.
      Failures of jobs are in the report and in the log.
    - The block's own deadline has passed with work left (`late`): the group has a `DrainTimeout`.
    - The close `gave_up` on items without a reader, and no job failed: the group has a `WorkLost`.
    """
    errors = [item.error for item in report.failed if item.error is not None]
    fatal = scope.fatal_error if scope.backend.name == "trio" else None
    leaving = fatal if exc is None or isinstance(exc, Exception) else exc
    if leaving is not None:
        if report.failed or report.undelivered or report.stuck:
            why = scope.fatal_error or leaving
            logger.warning("scope %r ended with %r:\n%s", scope.name, why, report)
        if fatal is not None:
            raise fatal  # on trio only: on asyncio the event loop raises it
        return
    if exc is None and (late or (gave_up and not errors)):
        errors.append(DrainTimeout(report) if late else WorkLost(report))
    if not errors:
        return
    everything = errors if exc is None else [exc, *errors]
    message = f"{len(everything)} error(s) in scope {scope.name!r}"
    raise BaseExceptionGroup(message, everything) from None
