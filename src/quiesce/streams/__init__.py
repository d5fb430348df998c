"""Async generators that any task may read, leave or close.

In reading order:

- `stream`: the reader's side.
- `pump`: the owner's side: one job that steps the generator from its start to its end.
- `sources`: what a stream can read.
- `nested_generators`: generators inside a generator, closed where they were begun.
"""
