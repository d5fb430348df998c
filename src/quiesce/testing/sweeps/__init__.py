"""Cancellation sweeps: run a scenario, and cancel it at each of its suspensions.

- `plan`: which runs there are, and their ids
- `driver`: how the suspensions of a coroutine are seen
- `on_asyncio`, `on_trio`: one run
- `oracle`: what a run has left
- `record`, `result`: what is wrong with a run, and with all of them
- `sweeping`: run after run
- `marker`: `@pytest.mark.sweep`
"""
