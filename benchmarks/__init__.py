"""Benchmarks: `python -m benchmarks` from the project's root, or one with `python -m benchmarks.<name>`."""
