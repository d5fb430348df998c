"""A pool of runners: one for each key, started when first needed, and never lost.

In reading order:

- `pool`: the public pool.
- `program`: a program that a pool may start as a runner, any number of times.
- `lease`: one use of a runner, or the wait for it.
- `slot`: the life of one runner: it waits for room, starts, runs, is stopped, is gone.
- `backoff`: how long to wait before a runner that keeps failing is started again.
- `pool_stats`: what a pool tells of itself.
"""
