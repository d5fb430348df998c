"""What a type checker makes of spawning; a line marked `error` must be one, and no other."""

from typing import assert_type

import quiesce


async def number(text: str, base: int) -> int:
    """Stand for work that takes arguments and gives a result."""
    return int(text, base)


async def nothing() -> None:
    """Stand for work that gives no result."""


def not_async(text: str) -> int:
    """Stand for a function that is no work."""
    return int(text)


async def keeps_the_result(scope: quiesce.Scope) -> None:
    """A job has the result type of its function, whoever awaits it."""
    job = scope.spawn(number, "12", 10)
    assert_type(job, quiesce.Job[int])
    assert_type(await job, int)
    assert_type(await scope.spawn(nothing), None)
    scope.spawn(number, "12", 10, name="n", key=("any", "hashable"), service=True)
    assert_type(job.cancel(), bool)
    assert_type(job.done(), bool)


async def checks_the_arguments(scope: quiesce.Scope) -> None:
    """Arguments are checked as in a call of the function."""
    scope.spawn(number, 12, 10)  # error: arg-type
    scope.spawn(number, "12")  # error: arg-type
    scope.spawn(nothing, "12")  # error: arg-type
    scope.spawn(not_async, "12")  # error: arg-type
    scope.spawn(number("12", 10))  # error: arg-type
    scope.spawn("nothing")  # error: arg-type
    scope.spawn(nothing, nam="n")  # error: call-arg
    await scope.spawn(number, "12", 10) + "1"  # error: operator
