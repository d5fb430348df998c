"""Cancellation sweeps: run a scenario, and cancel it at each of its suspensions.

The modules, in reading order:

- `sweep_runs`: the sweep: run after run, in a fixed order.
- `sweep_settings`: what all runs have in common.
- `plan`: which runs there are, and their ids.
- `driver`: how the suspensions of a coroutine are seen.
- `on_asyncio`: one run on asyncio or uvloop.
- `on_trio`: one run on trio.
- `oracle`: what a run has left.
- `record`: what is wrong with one run.
- `result`: what is wrong with all of them.
- `marker`: `@pytest.mark.sweep`.
"""
