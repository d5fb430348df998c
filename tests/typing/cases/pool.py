"""What a type checker makes of pools: the runner's type comes from what starts it."""

from collections.abc import Awaitable
from typing import assert_type

import quiesce


class Session:
    """Stand for a runner that is no process."""

    @property
    def returncode(self) -> int | None:
        """Return how the runner ended."""

    async def wait(self) -> int:
        """Wait for its end."""
        return 0

    async def stop(self, grace: float) -> None:
        """End it."""


def program(key: str) -> quiesce.Program:
    """Stand for a function that gives a program."""
    return quiesce.Program(["runner", key])


async def session(key: int) -> Session:
    """Stand for a function that starts a runner."""
    return Session()


def awaitable(key: int) -> Awaitable[Session]:
    """Stand for one that is no `async def`."""
    return session(key)


async def process(key: str) -> quiesce.Process:
    """Stand for one that starts a process itself."""
    return await quiesce.start_process(["runner", key], service=True)


async def not_a_runner(key: str) -> int:
    """Stand for what gives something else."""
    return 7


async def leases() -> None:
    """A lease gives the runner, as what it is."""
    async with quiesce.RunnerPool(quiesce.Program(["runner"])).lease(("any", 1)) as shared:
        assert_type(shared, quiesce.Process)
    async with quiesce.RunnerPool(program, runners_max=3).lease("a") as made:
        assert_type(made, quiesce.Process)
    async with quiesce.RunnerPool(process).lease("a") as started:
        assert_type(started, quiesce.Process)
    async with quiesce.RunnerPool(session, restart=None).lease(1) as own:
        assert_type(own, Session)
    async with quiesce.RunnerPool(awaitable).lease(1) as other:
        assert_type(other, Session)
    pool: quiesce.RunnerPool[str, quiesce.Process] = quiesce.RunnerPool(quiesce.Program(["runner"]))
    assert_type(await pool.release("a"), bool)
    assert_type(await quiesce.Program(["runner"]).start(name="a"), quiesce.Process)


async def checks() -> None:
    """Keys and runners are checked."""
    quiesce.RunnerPool(program).lease(1)  # error: arg-type
    await quiesce.RunnerPool(session).release("a")  # error: arg-type
    quiesce.RunnerPool(not_a_runner)  # error
    quiesce.RunnerPool(["runner"])  # error
    quiesce.RunnerPool(program, maximum=3)  # error: call-overload
    quiesce.Program(["runner"], 5.0)  # error: call-arg
