"""Benchmarks: run one with ``python -m benchmarks.<name>`` from the project's root."""
