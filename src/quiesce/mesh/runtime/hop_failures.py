"""Records the failure of a hop's job whose result no code has asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiesce.core import failures
from quiesce.core.harmless_text import harmless
from quiesce.core.tree import logger
from quiesce.mesh.runtime.hop import Hop

if TYPE_CHECKING:
    from quiesce.core.tree import TreeNode

__all__: list[str] = []


def job_failed(job: Any, error: BaseException) -> object:
    """Record in the hop of a job that the job failed; see `failures.REPORTED`."""
    node: TreeNode | None = job.owner_node
    while node is not None and not isinstance(node, Hop):
        node = node.parent
    if node is not None:
        name = harmless(job.name)
        logger.error("%s %s of %s failed", job.kind, name, node.name, exc_info=error)
        if node.note_failed_unheard(error, job):
            return failures.REPORTED
    return None
