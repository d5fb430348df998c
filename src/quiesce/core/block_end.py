"""What the end of an `async with Scope(...)` block raises."""

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
    """Raise the exception of the block's end, given the exception that ended its body.

    - Jobs failed: an exception group of their errors, and of the body's, if it raised one.
    - Only the body raised: its exception, unchanged.
    - The body was cancelled, or a generator was closed around it: that exception is passed on.
      Failures are in the report and in the log.
    - The block's own deadline has passed with work left (`late`): `DrainTimeout` is in the group.
    - The close `gave_up` on items without a reader, and no job failed: `WorkLost`.
    """
    errors = [item.error for item in report.failed if item.error is not None]
    if scope._fatal is not None and scope._backend.name == "trio":
        raise scope._fatal  # on asyncio the event loop raises it
    if exc is not None and not isinstance(exc, Exception):
        if report.failed or report.undelivered or report.stuck:
            logger.warning("scope %r ended with %r:\n%s", scope.name, exc, report)
        return
    if exc is None and (late or (gave_up and not errors)):
        errors.append(DrainTimeout(report) if late else WorkLost(report))
    if not errors:
        return
    everything = errors if exc is None else [exc, *errors]
    message = f"{len(everything)} error(s) in scope {scope.name!r}"
    raise BaseExceptionGroup(message, everything) from None
