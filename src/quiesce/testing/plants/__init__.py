"""Planted work: tasks in flight that a shutdown has to drain or to name in its report.

In reading order:

- `planting`: `plant()` puts one task into a system under test.
- `observed_work`: a coroutine that records how it ended.
- `shutdown_gate`: `assert_gate()` plants every kind of task, and judges a shutdown by their fates.
"""
