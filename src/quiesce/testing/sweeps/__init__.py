"""Cancellation sweeps: run a scenario again and again, cancelled each time at another suspension.

The modules, in reading order:

- `sweep_runs`: `sweep()`: the runs, in a fixed order.
- `sweep_settings`: the settings that all runs share.
- `plan`: the list of runs, and their ids.
- `driver`: runs a coroutine and notices its suspensions.
- `on_asyncio`: one run on asyncio or uvloop.
- `on_trio`: one run on trio.
- `oracle`: finds what a run has left behind.
- `record`: the record of one run, and its faults.
- `result`: the result of a whole sweep.
- `marker`: `@pytest.mark.sweep`.
"""
