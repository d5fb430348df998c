"""`run()`: real processes, real signals."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
import uvloop

import quiesce
from tests.integration.child import Child

if TYPE_CHECKING:
    from collections.abc import Callable

NOISE = re.compile(
    r"Traceback|never retrieved|was destroyed|Exception ignored|Warning|never awaited"
)
WELL = 'returned "main\'s value"'


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    """Return the event loop that the process runs."""
    return str(request.param)


@pytest.fixture(params=[SIGTERM, SIGINT], ids=["SIGTERM", "SIGINT"])
def sent(request: pytest.FixtureRequest) -> signal.Signals:
    """Return the signal that the process is sent."""
    return signal.Signals(request.param)


def assert_quiet(stderr: str) -> None:
    """Find nothing but what quiesce has to say."""
    assert not NOISE.search(stderr), stderr


def test_a_signal_drains_and_nothing_is_lost(backend: str, sent: signal.Signals) -> None:
    """Work in flight is finished, main returns its value, and the process ends with 0."""
    with Child("finish", backend) as child:
        child.stdout.expect("ready")
        child.send(sent)
        code, out, err = child.end()
    assert (code, out) == (0, ["ready", "finished", WELL])
    assert f"quiesce: {sent.name}: draining for up to 60 s" in err
    assert "job finish · " in err  # the frontier, when the drain began
    assert "nothing it owned was lost: 2 jobs completed" in err
    assert_quiet(err)


@pytest.mark.parametrize("program", ["unspeakable", "silent"])
def test_what_cannot_be_told_does_not_stop_the_drain(backend: str, program: str) -> None:
    """A detail whose text raises, or no standard error at all: the signal drains all the same."""
    with Child(program, backend) as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        code, out, err = child.end()
    assert (code, out) == (0, ["ready", "finished", WELL])
    assert_quiet(err)


def test_work_that_overruns_is_cancelled_and_reported(backend: str, sent: signal.Signals) -> None:
    """What is left at the deadline is cancelled, named with its place, and the code is 1."""
    with Child("overrun", backend, "0.1") as child:
        child.stdout.expect("ready")
        child.send(sent)
        code, out, err = child.end()
    assert (code, out) == (1, ["ready", "cancelled"])
    assert "WORK LOST: 1 job completed, 1 cancelled" in err
    assert re.search(r"cancelled: job overrun · .* · started .*run_programs.py:\d+", err)
    assert_quiet(err)


@pytest.mark.parametrize("second", [SIGTERM, SIGINT])
def test_a_second_signal_cancels_at_once(backend: str, second: signal.Signals) -> None:
    """Whoever will not wait for the drain sends another signal, of either kind."""
    with Child("overrun", backend) as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        child.stderr.expect("draining")
        child.send(second)
        code, out, err = child.end()
    assert (code, out) == (1, ["ready", "cancelled"])
    assert f"quiesce: {second.name}: cancelling the remaining work" in err
    assert_quiet(err)


@pytest.mark.parametrize("stubborn", ["swallow", "block", "main-swallows"])
def test_a_third_signal_leaves_at_once(backend: str, stubborn: str, sent: signal.Signals) -> None:
    """Neither a job that swallows cancellation nor a blocked thread keeps the process alive."""
    with Child(stubborn, backend) as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        child.stderr.expect("draining")
        child.send(SIGTERM)
        child.stderr.expect("cancelling")
        if stubborn != "block":
            child.stdout.expect("swallowed")
        child.send(sent)
        code, _, err = child.end()
    assert code == 128 + sent
    assert f"quiesce: {sent.name}: exiting at once; still in flight:" in err
    assert_quiet(err)


@pytest.mark.parametrize(
    ("stubborn", "named"),
    [("swallow", "job swallow"), ("block", "thread wait_for_ever")],
)
def test_what_is_stuck_does_not_keep_the_process_alive(
    backend: str, stubborn: str, named: str
) -> None:
    """After the deadlines the process ends with 1, and the report has the stack of what is stuck."""
    with Child(stubborn, backend, "0.1", "0.1") as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        code, _, err = child.end()
    assert code == 1
    assert "WORK LOST" in err
    stuck = err[err.index("stuck: ") :]
    assert stuck.startswith(f"stuck: {named} · ")
    assert re.search(r"run_programs.py:\d+ in |threading.py:\d+ in ", stuck)
    assert_quiet(err)


def test_a_main_that_is_cut_short_is_lost_work(backend: str) -> None:
    """A main that is no service and does not return in the drain counts as lost."""
    with Child("main-overruns", backend, "0.1") as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        code, out, err = child.end()
    assert (code, out) == (1, ["ready", "main stopped"])
    assert "cancelled: job main · " in err
    assert_quiet(err)


def test_a_main_that_is_a_service_is_stopped_without_loss(backend: str) -> None:
    """A main that only accepts work is cancelled at the end, and the code is 0."""
    with Child("service", backend) as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        code, out, err = child.end()
    assert (code, out) == (0, ["ready", "main stopped", "returned None"])
    assert "nothing it owned was lost: 0 jobs completed, 1 service stopped" in err
    assert_quiet(err)


def test_a_main_that_returns_is_drained_in_silence(backend: str) -> None:
    """What main has started is finished before its value is returned; nothing is told."""
    with Child("returns", backend) as child:
        assert child.end() == (0, ["finished", WELL], "")


def test_a_main_that_raises_is_drained_and_its_error_gets_out(backend: str) -> None:
    """The error of main is raised as it is, after the work in flight was finished."""
    with Child("raises", backend) as child:
        code, out, err = child.end()
    assert (code, out) == (1, ["finished"])
    assert err.splitlines()[-1] == "KeyError: 'of main'"
    assert err.count("Traceback") == 1
    assert "WORK LOST: 1 job completed, 1 failed" in err


def test_a_main_that_exits_is_drained_first(backend: str) -> None:
    """The code that main gives to sys.exit() is the process's, after the drain."""
    with Child("exits-3", backend) as child:
        assert child.end() == (3, ["finished"], "")


@pytest.mark.parametrize(
    ("program", "expected"), [("exits-0-with-loss", 1), ("exits-4-with-loss", 4)]
)
def test_a_main_that_exits_does_not_hide_a_loss(backend: str, program: str, expected: int) -> None:
    """The code is 0 only if nothing was lost, whatever main says; a code that tells of trouble stays."""
    with Child(program, backend) as child:
        code, _, err = child.end()
    assert code == expected
    assert "ValueError: of the job" in err
    assert_quiet(err)


def test_an_error_of_main_is_told_although_something_is_stuck(backend: str) -> None:
    """When a stuck thread forces the end, what main raised is in the report."""
    with Child("raises-with-stuck", backend, "0.1", "0.1") as child:
        code, _, err = child.end()
    assert code == 1
    assert "stuck: thread" in err
    assert "failed: job main" in err
    assert "KeyError: 'of main'" in err


def test_a_job_that_failed_is_reported(backend: str) -> None:
    """A failure long before the end makes the code 1, and the report has it."""
    with Child("fail", backend) as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        code, out, err = child.end()
    assert (code, out) == (1, ["ready"])
    assert re.search(r"failed: job fail · .* · ValueError: of the job", err)
    assert_quiet(err)


def test_a_hold_that_nobody_released_is_reported(backend: str) -> None:
    """A forgotten hold is undelivered: the drain waits for it, and the code is 1."""
    with Child("hold", backend, "1.2", "0.1") as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        code, _, err = child.end()
    assert code == 1
    assert " s left" not in err  # that is for terminals
    assert "undelivered: request GET /forgotten" in err
    assert_quiet(err)


def test_a_job_that_exits_ends_the_process_with_its_code(backend: str) -> None:
    """sys.exit() in a job gets out of the loop, without noise, and the report tells what was cut."""
    with Child("leave", backend) as child:
        code, _, err = child.end()
    assert code == 5
    assert "scope 'quiesce.run' ended with SystemExit(5):" in err
    assert re.search(r"failed: job leave · .* · SystemExit: 5", err)
    assert_quiet(err)


def test_an_interrupt_raised_in_main_gets_out(backend: str) -> None:
    """A KeyboardInterrupt that code raises by itself ends the process as Python does."""
    with Child("interrupts", backend) as child:
        code, _, err = child.end()
    assert code in {130, -SIGINT}
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_signals_are_handled_before_main_runs(backend: str) -> None:
    """From the first step of main on, a signal drains; trio's random order does not matter."""
    for _ in range(6 if backend == "trio" else 1):
        with Child("handlers", backend) as child:
            assert child.end()[:2] == (0, ["[True, True]", "returned None"])


def test_a_terminal_is_told_how_the_drain_goes(backend: str) -> None:
    """On a terminal there is a line a second: how long, how much, and what is still in flight."""
    with Child("overrun", backend, terminal=True) as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        child.stderr.expect(" s left", 2)
        child.send(SIGTERM)
        code, _, err = child.end()
    assert code == 1
    assert "quiesce: 59 s left, 1 in flight: job overrun" in err
    assert "quiesce: 58 s left, 1 in flight: job overrun" in err
    assert "WORK LOST" in err
    assert_quiet(err)


def test_a_signal_while_it_drains_by_itself_counts_as_the_first(backend: str) -> None:
    """After main has ended, the first signal still only drains, and the second cancels."""
    with Child("returns-early", backend) as child:
        child.stdout.expect("main ends")
        child.send(SIGTERM)
        child.stderr.expect("draining")
        child.send(SIGTERM)
        code, out, err = child.end()
    assert (code, out) == (1, ["main ends", "cancelled"])
    assert_quiet(err)


def test_nobody_to_tell_is_no_reason_not_to_drain(backend: str, sent: signal.Signals) -> None:
    """When stderr is gone, as with a pipe to a program that Ctrl-C ended too, all goes on as before."""
    with Child("finish", backend, deaf=True) as child:
        child.stdout.expect("ready")
        child.send(sent)
        code, out, _ = child.end()
    assert (out, code) == (["ready", "finished", WELL], 0)


def test_the_third_signal_needs_nobody_to_tell(backend: str) -> None:
    """Without stderr the second signal still cancels, and the third still leaves."""
    with Child("tells-itself", backend, deaf=True) as child:
        child.stdout.expect("ready")
        child.send(SIGTERM)
        child.stdout.expect("draining")
        child.send(SIGTERM)
        child.stdout.expect("swallowed")
        child.send(SIGTERM)
        code, _, _ = child.end()
    assert code == 128 + SIGTERM


# Misuse, in this process.


async def nothing() -> str:
    """Return a value at once."""
    await anyio.lowlevel.checkpoint()
    return "value"


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None])
def test_the_handlers_of_before_are_back_after_the_run(backend: Any, handler: Any) -> None:
    """A program that goes on after run() has its own signal handlers again, and may run() again."""
    kept = {which: signal.signal(which, handler) for which in (SIGINT, SIGTERM)}
    try:
        assert [quiesce.run(nothing, backend=backend) for _ in range(2)] == ["value", "value"]
        assert [signal.getsignal(which) for which in kept] == [handler, handler]
    finally:
        for which, was in kept.items():
            signal.signal(which, was)


def test_arguments_are_passed_to_main(backend: Any) -> None:
    """Positional arguments are main's."""

    async def add(first: int, second: int) -> int:
        await anyio.lowlevel.checkpoint()
        return first + second

    assert quiesce.run(add, 1, 2, backend=backend) == 3


def test_run_in_another_thread_is_a_clear_error(backend: Any) -> None:
    """Signals are the main thread's, so run() is, too; main is not called."""
    errors: list[BaseException] = []

    def target() -> None:
        with pytest.raises(quiesce.UsageError, match="main thread") as caught:
            quiesce.run(nothing, backend=backend)
        errors.append(caught.value)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize("around", [asyncio.run, uvloop.run, trio.run])
def test_run_inside_an_event_loop_is_a_clear_error(backend: Any, around: Any) -> None:
    """Where a loop runs already, a scope is what is wanted, and the error says so."""

    async def main() -> None:
        with pytest.raises(quiesce.UsageError, match="open a Scope instead"):
            quiesce.run(nothing, backend=backend)

    around(main if around is trio.run else main())


def sync_main() -> int:
    """Return a number; this is no async function."""
    return 7


run: Any = quiesce.run  # whatever it is given


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: run(nothing(), backend="asyncio"), "run\\(nothing, …\\)"),
        (lambda: run(7, backend="asyncio"), "not a function"),
        (lambda: run(sync_main), "async function"),
        (lambda: run(nothing, grace=-1), "grace must be a number of seconds"),
        (lambda: run(nothing, grace=float("nan")), "grace must be a number of seconds"),
        (lambda: run(nothing, cleanup=-1), "cleanup must be a number of seconds"),
        (lambda: run(nothing, cleanup="5"), "cleanup must be a number of seconds"),
        (lambda: run(nothing, backend="curio"), "backend must be one of"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(call: Callable[[], object], words: str) -> None:
    """Each says what to do, before anything is started."""
    with pytest.raises(quiesce.ArgumentError, match=words):
        call()
