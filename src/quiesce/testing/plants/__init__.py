"""Planted work: something in flight that a shutdown has to drain or to name.

In reading order:

- `planting`: put something into flight.
- `kinds`: the kinds of things that can be planted.
- `process_kind`: a planted child process.
- `observed_work`: coroutines under observation, and what became of them.
- `shutdown_gate`: plant every kind, and judge a shutdown by what became of each.
"""
