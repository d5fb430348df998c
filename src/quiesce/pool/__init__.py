"""A pool of runners: one runner for each key, started when it is first needed.

In reading order:

- `pool`: `RunnerPool`, with its leases and its limit.
- `program`: `Program`: a program that a pool can start as a runner, any number of times.
- `lease`: one use of a runner, or the wait for it.
- `slot`: the life of one runner: waiting for room, starting, running, stopping.
- `backoff`: how long to wait before restarting a runner that keeps failing.
- `pool_stats`: the figures of a pool.
"""
