"""The five programs: where each comes from, and what is at stake in it."""

from collections.abc import Callable
from dataclasses import dataclass

from .process import Observation

Test = Callable[[Observation], bool | None]


@dataclass(frozen=True)
class Check:
    """One fact to look for, in the output of both programs of a pair.

    `is_kept` says yes, no, or `None`: there is no evidence for either.
    """

    kept: str
    lost: str
    is_kept: Test


@dataclass(frozen=True)
class Case:
    """One pair of programs."""

    name: str
    title: str
    report: str
    url: str
    story: str
    checks: tuple[Check, ...]
    quotes: tuple[str, ...]

    @property
    def file(self) -> str:
        """The name of the file, in `losing/` and in `saved/`."""
        return self.name.replace("-", "_") + ".py"


def told(*, good: str | None = None, bad: str | None = None) -> Test:
    """Look for a line that reports the fact; a missing line counts only if the program ended well."""

    def is_kept(seen: Observation) -> bool | None:
        everything = "\n".join(seen.output)
        if bad is not None and bad in everything:
            return False
        if good is not None and good in everything:
            return True
        return good is None if seen.ended_well else None

    return is_kept


def left_no_process(seen: Observation) -> bool | None:
    """Look for processes that outlived the program."""
    if seen.left_processes:
        return False
    return True if seen.ended_well else None


CASES = (
    Case(
        name="dangling-task",
        title="A dangling task",
        report="a2a-python, issue 774",
        url="https://github.com/a2aproject/a2a-python/issues/774",
        story=(
            'A server answers "working" and leaves the rest to a background task that '
            "nobody refers to. The garbage collector takes it."
        ),
        checks=(
            Check(
                kept="the webhook for 'completed' fired",
                lost="the webhook for 'completed' never fired",
                is_kept=told(good="webhook: completed"),
            ),
            Check(
                kept="the task ran to its end",
                lost="the task was collected while it ran",
                is_kept=told(bad="Task was destroyed but it is pending!"),
            ),
        ),
        quotes=("Task was destroyed", "webhook: completed"),
    ),
    Case(
        name="cancelled-listener",
        title="A cancelled listener",
        report="agent-client-protocol python-sdk, issue 108",
        url="https://github.com/agentclientprotocol/python-sdk/issues/108",
        story=(
            "A bridge cancels `run_agent` when its peer hangs up. The SDK's sender and "
            "dispatcher loops are nobody's now."
        ),
        checks=(
            Check(
                kept="three health checks left no task behind",
                lost="three health checks left tasks behind",
                is_kept=told(good="tasks left over: 0"),
            ),
            Check(
                kept="every loop was stopped",
                lost="loops were destroyed in the middle of an await",
                is_kept=told(bad="Task was destroyed but it is pending!"),
            ),
        ),
        quotes=("tasks left over", "Task was destroyed"),
    ),
    Case(
        name="break-across-tasks",
        title="A break across tasks",
        report="claude-agent-sdk-python, issue 454 and pull request 746",
        url="https://github.com/anthropics/claude-agent-sdk-python/pull/746",
        story=(
            "A host breaks out of `async for`. Python finalizes the generator in another "
            "task, and a task group must be left by the task that entered it."
        ),
        checks=(
            Check(
                kept="the host went on to its next question",
                lost="the host, which did nothing wrong, was cancelled",
                is_kept=told(good="on to the next question", bad="CancelledError"),
            ),
            Check(
                kept="the client was closed without an error",
                lost="closing the client failed",
                is_kept=told(bad="Attempted to exit cancel scope in a different task"),
            ),
        ),
        quotes=(
            "RuntimeError: Attempted to exit cancel scope",
            "CancelledError: ",
            "on to the next question",
        ),
    ),
    Case(
        name="deadlocking-registry",
        title="A deadlocking registry",
        report="a2a-python, issue 1101 and pull request 1105",
        url="https://github.com/a2aproject/a2a-python/issues/1101",
        story=(
            "A shutdown waits for agents while it holds the lock that they need to end. "
            "When it gives up, a late request gets in."
        ),
        checks=(
            Check(
                kept="the shutdown completed",
                lost="the shutdown hung",
                is_kept=told(good="shutdown is complete", bad="shutdown hung"),
            ),
            Check(
                kept="the late request was refused, so its sender knows",
                lost="the late request was accepted by a server that was gone",
                is_kept=told(good="late request was refused", bad="late request was accepted"),
            ),
            Check(
                kept="no agent was at work at the end",
                lost="an agent was still at work at the end, and died with the process",
                is_kept=told(good="agents still at work: 0"),
            ),
        ),
        quotes=("the shutdown", "the late request", "at work: "),
    ),
    Case(
        name="cancelled-spawn",
        title="A cancelled spawn",
        report="omnigent, pull request 1982",
        url="https://github.com/omnigent-ai/omnigent/pull/1982",
        story=(
            "A conversation is deleted while its runner process starts. The process "
            "exists, and is on no register yet."
        ),
        checks=(
            Check(
                kept="the runner process ended with its harness",
                lost="the runner process outlived its harness",
                is_kept=left_no_process,
            ),
        ),
        quotes=("every runner that it knows of",),
    ),
)
