"""The number of control messages, and the time from the end of the work to the verdict, in the simulation.

No faults happen in these worlds. If every message takes the same time, no protocol can know the end earlier
than one message for each level after the last work. That time is the bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks._harness import Result, Samples, progress, row
from tests.simulation.runs import simulate
from tests.simulation.world import Sizes

if TYPE_CHECKING:
    from benchmarks._mesh_sizes import MeshSizes
    from tests.simulation.world import World

_DIGITS = 9  # times are sums of floats, in another order


def over_bound(world: World) -> float:
    """Return the time from the end of the last work to the verdict, divided by the bound."""
    assert world.verdict is not None
    assert world.judge() == []
    last = max(work.end or 0.0 for work in world.works)
    least, took = world.bound() - last, world.verdict.at - last
    return round(took / least, _DIGITS) if least else 1.0 + round(took, _DIGITS)


def control(_: str, sizes: MeshSizes) -> list[Result]:
    """Measure the number of messages, and the time to the verdict."""
    progress(f"control: {2 * sizes.worlds:,} worlds")
    usual = [simulate("nothing", seed).traffic for seed in range(sizes.worlds)]
    steady = [
        simulate("nothing", seed, sizes=Sizes(constant_delay=True)) for seed in range(sizes.worlds)
    ]
    each = Samples(tuple(one.controls / one.messages for one in usual))
    ratios = Samples(tuple(over_bound(world) for world in steady))
    return [
        Result(
            name="control_messages_per_message",
            about=f"calls from node to node, over the agents' own messages; {sizes.worlds} worlds",
            rows=(row("a world", each, "a message"),),
            value=sum(one.controls for one in usual) / sum(one.messages for one in usual),
            limit=1.0,
            notes=("a receipt that is ready by then is on the answer, and costs no message",),
        ),
        Result(
            name="latency_over_bound_simulated",
            about="from the end of the last work to the verdict, over the least that it could be",
            rows=(row("a world", ratios, "of the bound"),),
            value=ratios.worst,
            limit=1.0,
            notes=("every message takes the same time; the figure is that of the worst world",),
        ),
    ]
