"""Planted work: a task in flight that a shutdown has to drain or to name.

In reading order:

- `planting`: put a task into flight.
- `observed_work`: coroutines under observation, and what became of them.
- `shutdown_gate`: plant every kind of task, and judge a shutdown by what became of each.
"""
