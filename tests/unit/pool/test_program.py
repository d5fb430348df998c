"""A program as a value: started alone, or by a pool, once a key."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quiesce import ArgumentError, Process, Program, RunnerPool, Scope
from quiesce.errors import StartFailed
from quiesce.ready import Http, Listener, Tcp, UnixSocket
from tests.unit.processes.small_programs import GRACE, POLITE, READY, counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quiesce.core.hold import Held

pytestmark = pytest.mark.real_time


async def first_line(process: Process) -> str:
    """Read the first line that a process has written."""
    async for line in process.stdout:
        return line
    return ""


def pids_of(services: Iterable[Held]) -> list[object]:
    """Return the pids of the processes among a scope's services."""
    return [held.details["pid"] for held in services if held.kind == "process"]


async def test_a_program_is_started_as_a_service() -> None:
    """It does not keep its scope busy, and is stopped with it."""
    with counted():
        async with Scope("a") as scope:
            process = await Program(POLITE, ready=READY).start(name="one", grace=GRACE)
            assert (process.name, process.state, process.argv) == ("one", "ready", tuple(POLITE))
            assert not scope.holds
            assert process.where is not None
            assert process.where.startswith(__file__)
        assert process.returncode == -15


async def test_a_program_may_be_started_many_times() -> None:
    """Each start is a process of its own, in the scope that was asked for."""
    program = Program(POLITE, ready=READY)
    with counted() as census:
        async with Scope("a") as scope, Scope("b"):
            first = await program.start(scope=scope)
            second = await program.start(scope=scope)
            assert census.pids == [first.pid, second.pid]
            assert first.pid in pids_of(scope.services.values())


def made(key: str, argv: list[str]) -> Program:
    """Make the program of a key."""
    return Program([*argv, key], ready=READY)


class Maker:
    """A callable object that makes programs."""

    def __call__(self, key: str) -> Program:
        """Make one."""
        return made(key, POLITE)


class AsyncMaker:
    """The same, after some thought."""

    async def __call__(self, key: str) -> Program:
        """Make one."""
        return made(key, POLITE)


class Starter:
    """A callable object that starts processes itself."""

    async def __call__(self, key: str) -> Process:
        """Start one."""
        return await made(key, POLITE).start(name=key)


FACTORIES: dict[str, Any] = {
    "a program": Program(POLITE, ready=READY),
    "a function": lambda key: made(key, POLITE),
    "a partial": functools.partial(made, argv=POLITE),
    "an object": Maker(),
    "an async object that gives a program": AsyncMaker(),
    "an async object that gives a process": Starter(),
    "a partial of an async one": functools.partial(Starter()),
    "a plain function that gives an awaitable": lambda key: made(key, POLITE).start(name=key),
}


@pytest.mark.parametrize("factory", FACTORIES)
async def test_a_pool_takes_whatever_gives_a_program_or_a_runner(factory: str) -> None:
    """What is given decides, not what kind of function gives it."""
    with counted() as census:
        async with Scope("a"):
            pool: RunnerPool[str, Process] = RunnerPool(FACTORIES[factory])
            async with pool.lease("x") as runner, pool.lease("x") as same:
                assert runner is same
                assert runner.name == "x"
                assert runner.pid in pids_of(pool.own_scope.services.values())
            assert len(census.pids) == 1


async def test_the_program_is_told_its_key() -> None:
    """In an environment variable, beside its own; any key has a name."""
    argv = ["sh", "-c", 'echo "$QUIESCE_RUNNER_KEY $OTHER"; exec sleep 60']
    with counted():
        async with Scope("a"):
            pool = RunnerPool(Program(argv, env={"OTHER": "kept", "PATH": "/usr/bin:/bin"}))
            async with pool.lease(("a", 1)) as runner:
                assert await first_line(runner) == "('a', 1) kept"
                assert runner.name == "('a', 1)"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"ready": UnixSocket("/nowhere/socket")}, "ready"),
        ({"ready": Tcp("127.0.0.1", 9)}, "ready"),
        ({"ready": Http("http://127.0.0.1:9/")}, "ready"),
        ({"logs": Path("log")}, "logs"),
        ({"listen": "a listener"}, "listen"),
        ({"logs": Path("log"), "listen": "a listener"}, "listen and logs"),
    ],
)
async def test_what_only_one_process_can_have_is_refused_for_all_keys(
    options: dict[str, Any], name: str
) -> None:
    """The error says what, and what to do; as a function of the key it is allowed."""
    if "listen" not in options:
        program = Program(POLITE, **options)
    else:
        with Listener.tcp() as listener:
            program = Program(POLITE, **{**options, "listen": listener})
    async with Scope("a") as scope:
        with pytest.raises(
            ArgumentError, match=f"^a Program for all keys cannot have {name}, .* function"
        ):
            RunnerPool(program)
        assert not scope.children
        RunnerPool(lambda _: program)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"argv": "sleep 60"}, "argv must be a list"),
        ({"argv": []}, "argv must be a list"),
        ({"argv": ["a\0b"]}, "without a NUL"),
        ({"env": {"A=B": "c"}}, "environment variable"),
        ({"ready": 7}, "not a function"),
        ({"ready": Tcp}, r"write Tcp\(…\)"),
        ({"ready_within": -1}, "ready_within must be"),
        ({"stdin": "file"}, "stdin must be"),
        ({"logs": "elsewhere"}, "logs must be"),
    ],
)
def test_a_wrong_program_is_refused_where_it_is_described(
    options: dict[str, Any], match: str
) -> None:
    """Not when it is started, which may be much later."""
    with pytest.raises(ArgumentError, match=match):
        Program(**{"argv": ["true"], **options})


def test_a_program_keeps_what_it_was_given() -> None:
    """It does not change with the lists it was made of, and does not show its environment."""
    argv, env = ["true"], {"TOKEN": "secret"}
    program = Program(argv, env=env)
    argv.append("x")
    env.clear()
    assert (program.argv, program.env) == (("true",), {"TOKEN": "secret"})
    assert "secret" not in repr(program)


@pytest.mark.parametrize("argument", [None, 7, "sleep"])
async def test_what_can_start_nothing_is_refused(argument: Any) -> None:
    """At once, by name."""
    async with Scope("a"):
        with pytest.raises(ArgumentError, match="is not a function"):
            RunnerPool(argument)


async def test_what_a_factory_gives_instead_is_named() -> None:
    """The error says what a pool can make a runner of."""

    async def generate(_: str) -> Any:
        yield 1

    async with Scope("a"):
        for wrong, name in ((lambda _: None, "None"), (generate, "<async_generator")):
            pool: RunnerPool[str, Any] = RunnerPool(wrong)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(StartFailed, match=f"returned {name}.*needs a Program") as caught:
                async with pool.lease("a"):
                    pass
            assert isinstance(caught.value.cause, ArgumentError)
