"""A message that an agent's server refuses because its node is not open, and what that says to the sender."""

from __future__ import annotations

from quiesce.mesh import Unknown
from tests.unit.mesh.meshing import World, here
from tests.unit.mesh.serving import Exchange, answers


async def test_a_node_that_was_never_opened_refuses_messages() -> None:
    """Its sender is told at once that nothing has taken the message, and does not wait for `give_up`."""
    async with World() as world:
        node, closed = await world.add("a"), world.make("c")
        async with node.cascade("c") as cascade:
            with here().delegate("http://c") as handing:
                header = (b"cascade", handing.header.encode())
                made = Exchange(closed.asgi(answers), "POST", "/", headers=[header])
                await made.run()
                handing.answered(made.told, is_error=True, status=made.status)
        assert (made.status, made.header(b"retry-after")) == (503, "1")
        assert b"was never opened" in made.body
        found = await cascade.settled(5, require="participants")
        assert [note.status for note in found.receipt.notes] == ["done", "refused"]
        full = await cascade.settled(5)
        assert isinstance(full, Unknown)  # when it is opened, a copy would be taken
        assert full.is_final
        assert "or to nodes that were not open or" in str(full)


async def test_a_503_of_something_else_leaves_a_message_in_doubt() -> None:
    """A proxy says so also if the agent behind it has taken the message."""
    async with World() as world:
        node = await world.add("a")
        await world.add("b")
        async with node.cascade("c") as cascade:
            with here().delegate("http://b") as handing:
                handing.answered(None, is_error=True, status=503)
            assert len(here().record.edges) == 1
            found = await cascade.settled(0)
        assert isinstance(found, Unknown)
        assert not found.is_final
        assert "answered 503, which does not say whether it took the message" in str(found)
