"""A cascade, as whoever has begun it sees it: when has it ended, and make it end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import anyio
import pytest

from quiesce import ArgumentError, Scope, UsageError
from quiesce.errors import CascadeCancelled
from quiesce.mesh import Patience, Settled, Unknown
from tests.stress import turns
from tests.unit.mesh.meshing import World, cancel_inside, hangs, here, leaves, nothing

if TYPE_CHECKING:
    from pathlib import Path

    from quiesce.mesh import Cascade, Hop, Settlement


async def test_a_cascade_has_settled_when_all_its_work_has_ended(tmp_path: Path) -> None:
    """Three agents, two of them at work after they have answered."""
    async with World(tmp_path) as world:
        gates = {name: anyio.Event() for name in "bc"}
        for name in "abc":
            await world.add(name)

        async def later(to: str) -> None:
            await gates[to].wait()
            if to == "b":
                await world.hand("c", lambda hop: begin(hop, "c"))

        async def begin(hop: Hop, name: str) -> None:
            hop.spawn(later, name)

        async with world.nodes["a"].cascade("trip") as cascade:
            assert cascade.id
            await world.hand("b", lambda hop: begin(hop, "b"))
        assert isinstance(await cascade.settled(0), Unknown)
        gates["b"].set()
        assert isinstance(await cascade.settled(0.1), Unknown)
        gates["c"].set()
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert found.receipt.hops == 3
        assert {note.name for note in found.receipt.notes} == {"a", "b", "c"}
        assert repr(cascade) == "<Cascade 'trip' settled>"
        assert found.cascade == cascade.id


async def test_a_cascade_is_begun_once() -> None:
    """By its block, and by no other."""
    async with World() as world:
        node = await world.add("a")
        cascade = node.cascade("c")
        assert cascade.id == ""
        assert repr(cascade) == "<Cascade 'c' new>"
        for ask in (cascade.settled, cascade.frontier, cascade.cancel):
            with pytest.raises(UsageError, match="has not begun"):
                await ask()
        async with cascade:
            pass
        with pytest.raises(UsageError, match="begun before"):
            async with cascade:
                pass


@pytest.mark.parametrize("within", [-1.0, float("nan"), "1"])
async def test_how_long_is_a_number_of_seconds(within: float) -> None:
    """What is none is refused, at once."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            with pytest.raises(ArgumentError):
                await cascade.settled(within)
            with pytest.raises(ArgumentError):
                await cascade.settled(require="all")  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ArgumentError, match="every"):  # also if there is nothing to wait for
            await anext(cascade.watch(within))


async def test_a_verdict_may_be_asked_for_inside_of_the_block() -> None:
    """It has not settled there: the block is part of it."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            found = await cascade.settled(0)
            assert isinstance(found, Unknown)
            (missing,) = found.missing
            assert missing.startswith("when a ends its own work on the cascade: cascade c since")
            assert "It was waited for inside of its own block" in missing
            assert "at work" in str(found)
        assert isinstance(await cascade.settled(1), Settled)


async def test_a_wait_for_the_own_block_is_an_error() -> None:
    """The block, and what it has started, are part of what is waited for; a service is not."""
    async with World() as world:
        node = await world.add("a")
        found: list[Settlement] = []

        async def wait() -> None:
            found.append(await cascade.settled())

        async with node.cascade("c") as cascade:
            with anyio.fail_after(1), pytest.raises(UsageError, match="leave the block first"):
                await cascade.settled()
            with anyio.fail_after(1), pytest.raises(UsageError, match="wait for itself"):
                await here().spawn(wait)
            service = here().spawn(wait, service=True)
        await service
        assert isinstance(await cascade.settled(), Settled)
        assert found == [await cascade.settled()]


async def test_a_verdict_is_returned_to_all_callers_and_again_later() -> None:
    """Any number of them; one that gives up has no effect on the others."""
    async with World() as world:
        node, gate = await world.add("a"), anyio.Event()
        found: list[Settlement] = []
        async with node.cascade("c") as cascade:
            here().spawn(gate.wait)

        async def wait() -> None:
            found.append(await cascade.settled())

        async with Scope("waiters") as scope:
            jobs = [scope.spawn(wait) for _ in range(4)]
            await turns(3)
            jobs[1].cancel()
            await turns(3)
            assert found == []
            gate.set()
        assert len(found) == 3
        assert all(isinstance(one, Settled) for one in found)
        assert await cascade.settled(0) == found[0]
        assert cascade.id not in map(str, node.opened.known_cascades)
        assert not node.opened.known_cascades


@pytest.mark.parametrize("how", ["drain", "aclose"])
async def test_a_wait_for_a_verdict_ends_when_its_node_is_closed(how: str) -> None:
    """Then nobody hears of the end any more: it is unknown, and nobody waits for ever."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        found: list[Settlement] = []
        async with node.cascade("c") as cascade:
            await world.hand("b", leaves)

        async def wait() -> None:
            found.append(await cascade.settled())

        async with Scope("waiters") as scope:
            scope.spawn(wait)
            await turns(3)
            await getattr(node, how)(1)
        (verdict,) = found
        assert isinstance(verdict, Unknown)
        assert (
            "it has the message, and has not reported the end of its work yet" in verdict.missing[0]
        )
        assert isinstance(await cascade.settled(), Unknown)
        assert [frontier async for frontier in cascade.watch()] == []


# Cancelling.


async def test_cancelled_inside_of_the_block() -> None:
    """The block ends with `CascadeCancelled`, and all of it with it."""
    async with World() as world:
        node = await world.add("a")
        cascade = node.cascade("c")
        told = ""
        try:
            async with cascade:
                await cascade.cancel()
                await anyio.sleep_forever()
        except CascadeCancelled as error:
            told = str(error)
        assert told == "cascade 'c' was cancelled: its block ends here"
        found = await cascade.settled(1)
        assert isinstance(found, Settled)
        assert found.receipt.cancelled == 1
        assert found.receipt.status == "cancelled"


async def test_a_block_that_was_cancelled_from_outside_passes_it_on() -> None:
    """It is not taken for the cascade's."""
    async with World() as world:
        node = await world.add("a")
        with anyio.CancelScope() as scope:
            async with node.cascade("c") as cascade:
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (await cascade.settled(1)).receipt.cancelled == 1


async def begun(world: World, depth: str) -> Cascade:
    """Begin a cascade along some nodes, the last of which hangs."""

    async def go(_: Hop, rest: str) -> None:
        if rest:
            await world.hand(rest[0], lambda hop: go(hop, rest[1:]))
        else:
            await anyio.sleep_forever()

    async with world.nodes["a"].cascade("c") as cascade:
        here().spawn(go, here(), depth)
        await turns(20)
    return cascade


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelled_after_the_block(times: int, tmp_path: Path) -> None:
    """It travels to every agent that is at it; twice is once."""
    async with World(tmp_path) as world:
        for name in "abcd":
            await world.add(name)
        cascade = await begun(world, "bcd")
        assert len(world.nodes["d"].opened.running_hops) == 1
        for _ in range(times):
            await cascade.cancel()
        found = await cascade.settled(5)
        assert isinstance(found, Settled)
        assert found.receipt.cancelled == found.receipt.hops == 4
        for name in "abcd":
            assert not world.nodes[name].opened.running_hops
        await cascade.cancel()
        assert await cascade.settled(0) == found


async def test_cancelled_before_a_message_was_answered() -> None:
    """The answer says that it works; then its receiver is told to end."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        reached, gate = anyio.Event(), anyio.Event()

        async def handler(hop: Hop) -> None:
            hop.spawn(anyio.sleep_forever)
            reached.set()
            await gate.wait()

        async def stubborn() -> None:
            with anyio.CancelScope(shield=True):
                await world.hand("b", handler)

        async with node.cascade("c") as cascade:
            here().spawn(stubborn)
            await reached.wait()
        await cascade.cancel()
        gate.set()
        found = await cascade.settled(5, require="participants")
        assert isinstance(found, Settled)
        assert found.receipt.cancelled == 2


async def test_cancelled_with_an_agent_that_takes_no_part() -> None:
    """Nobody knows when that has ended; the rest has."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            with here().delegate("http://stranger") as handing:
                handing.answered(None)
            here().spawn(anyio.sleep_forever)
        await cascade.cancel()
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert found.receipt.opaque == 1
        assert isinstance(await cascade.settled(0, require="participants"), Settled)


async def test_cancelled_with_an_agent_that_is_not_reached() -> None:
    """It is unknown when that is given up, not before; and never green."""
    async with World() as world:
        for name in "ab":
            await world.add(name)
        cascade = await begun(world, "b")
        world.lines.cut.add("http://b")
        await cascade.cancel()
        early = await cascade.settled(0.3)
        assert isinstance(early, Unknown)
        assert "has not answered: it is not known whether it has the message" in str(early)
        found = await cascade.settled(10, require="participants")
        assert isinstance(found, Unknown)
        assert found.receipt.unknown == 1
        assert len(world.nodes["b"].opened.running_hops) == 1


async def test_an_agent_that_has_the_message_and_is_at_work_is_named_as_that() -> None:
    """For how long, and what it is at; and so is one below it."""
    async with World() as world:
        for name in "abc":
            await world.add(name)

        async def handler(hop: Hop) -> None:
            await world.hand("c", leaves)
            hop.spawn(anyio.sleep_forever)

        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", handler)
        at_once = await cascade.settled(0)  # nobody is asked
        assert isinstance(at_once, Unknown)
        (missing,) = at_once.missing
        ends = r"when http://b ends its work on message [0-9a-f]{12}: it has the message, and "
        assert re.fullmatch(ends + "has not reported the end of its work yet", missing)
        found = await cascade.settled(1)
        assert isinstance(found, Unknown)
        first, second = found.missing
        assert re.match(ends + r"has been at work for \d+\.\d s: job sleep_forever since ", first)
        assert re.match(
            ends.replace("http://b", "c") + r"has been at work for \d+\.\d s: job ", second
        )
        assert re.search(r"http://b  unknown  \d\.\d\d s  \(has the message, and is at", str(found))


async def test_an_agent_that_waits_for_others_is_not_said_to_be_at_work() -> None:
    """It has ended its own work on the message."""
    async with World() as world:
        for name in "abc":
            await world.add(name)

        async def handler(_: Hop) -> None:
            await world.hand("c", leaves)

        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", handler)
        found = await cascade.settled(1)
        assert isinstance(found, Unknown)
        said = "http://b has ended its own work on it, and waits for the agents that it has sent messages to"
        assert found.missing[0].endswith(said)


async def test_an_agent_that_has_not_answered_may_not_have_the_message() -> None:
    """It is not said to be at work on it."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b"):  # and there is nobody
                pass
        found = await cascade.settled(0)
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        assert re.fullmatch(
            r"whether http://b has message [0-9a-f]{12}: it has not answered", missing
        )
        assert "has not answered: it is not known whether it has the message" in str(found)


async def test_an_agent_that_is_not_reached_is_named_once() -> None:
    """With how many messages it was sent."""
    async with World() as world:
        await world.add("a"), await world.add("b")
        async with world.nodes["a"].cascade("c") as cascade:
            for _ in range(3):
                with here().delegate("http://b"):
                    pass
            with here().delegate("http://d"):
                pass
            world.lines.cut |= {"http://b", "http://d"}
        found = await cascade.settled(0.6)
        assert isinstance(found, Unknown)
        lost = [text.partition(" (")[0] for text in found.missing if "was not reached" in text]
        assert sorted(lost) == [
            "what http://b does with 3 messages: it was not reached",
            "what http://d does: it was not reached",
        ]
        advice = "If it has stopped, start it again with its journal, and await settled() again"
        assert all(text.endswith(advice) for text in found.missing if "was not reached" in text)
        assert f"{found.seconds:.2f} s, 5 hops, 4 unknown" in str(
            found
        )  # that of a, and its messages
        assert "more that went well" not in str(found)


async def test_the_look_at_a_cascade_is_not_work_of_it() -> None:
    """Also if it is asked for inside of its own block."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            found = await cascade.settled(1)
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        assert "cascade c since" in missing
        assert "Cascade._look" not in missing


async def test_an_error_without_a_word_on_the_message_is_in_the_verdict() -> None:
    """It is an answer, and does not say whether the message was taken."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(None, is_error=True, status=503)
        found = await cascade.settled(0)
        assert isinstance(found, Unknown)
        (missing,) = found.missing
        said = r"it answered 503, which does not say whether it took the message"
        assert re.fullmatch(rf"whether http://b has message [0-9a-f]{{12}}: {said}", missing)
        assert "(answered 503, which does not say whether it took the message)" in str(found)


async def test_a_settled_cascade_cannot_be_cancelled() -> None:
    """Nor one whose node is closed."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("c") as cascade:
            pass
        assert (await cascade.settled(1)).ok
        await cascade.cancel()
        assert (await cascade.settled(1)).receipt.cancelled == 0
        await node.drain(1)
        with pytest.raises(UsageError, match="not open"):
            await cascade.cancel()


async def test_two_cascades_know_nothing_of_each_other() -> None:
    """One is cancelled, the other goes on."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        gate = anyio.Event()
        async with node.cascade("one") as one:
            here().spawn(gate.wait)
        async with node.cascade("other") as other:
            here().spawn(hangs, here())
        await other.cancel()
        assert (await other.settled(1)).receipt.cancelled == 1
        assert isinstance(await one.settled(0), Unknown)
        gate.set()
        assert (await one.settled(1)).receipt.cancelled == 0


async def test_a_block_that_failed_has_failed() -> None:
    """What it raised goes on; the cascade says that it failed."""
    async with World() as world:
        node = await world.add("a")
        cascade = node.cascade("c")
        with pytest.raises(LookupError):
            async with cascade:
                raise LookupError
        found = await cascade.settled(1)
        assert isinstance(found, Settled)
        assert found.receipt.failed == 1


async def test_within_a_hop_a_cascade_of_its_own() -> None:
    """It is another one: what is sent inside is part of the inner one."""
    async with World() as world:
        node, _ = await world.add("a"), await world.add("b")
        async with node.cascade("outer") as outer:
            async with node.cascade("inner") as inner:
                await world.hand("b", nothing)
                assert here().cascade == inner.id
            assert here().cascade == outer.id
        assert (await inner.settled(1, require="participants")).receipt.hops == 2
        assert (await outer.settled(1)).receipt.hops == 1


async def test_a_hop_in_a_hop_of_the_same_task_is_cancelled_alone() -> None:
    """The inner cascade is cancelled, the outer one's block goes on."""
    async with World() as world:
        node = await world.add("a")
        async with node.cascade("outer") as outer:
            inner = node.cascade("inner")
            await cancel_inside(inner)
            await turns(2)
        assert (await inner.settled(1)).receipt.cancelled == 1
        assert (await outer.settled(1)).receipt.cancelled == 0


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_agent_that_does_not_answer_is_named(is_cancelled: bool) -> None:  # noqa: FBT001 - a case
    """Not only the nearest one, which waits for it as well."""
    async with World() as world:
        for name in "abc":
            await world.add(name, patience=Patience())

        async def handler(hop: Hop) -> None:
            with hop.delegate("http://c") as handing:
                handing.answered(await world.deliver("c", handing.header, leaves))

        async with world.nodes["a"].cascade("c") as cascade:
            await world.hand("b", handler)
        world.lines.cut.add("http://c")
        if is_cancelled:
            await cascade.cancel()
        found = await cascade.settled(5)
        assert isinstance(found, Unknown)
        assert not found.is_final
        (line,) = (line for line in found.missing if "not reached" in line)
        assert "http://c" in line
        assert ("not told to end" in line) == is_cancelled
        assert "not known yet" in str(found)
        world.lines.cut.clear()
        await cascade.cancel()
