"""Async generators that any task may read, leave or close.

In reading order:

- `stream`: `stream()` and the handle that readers use.
- `pump`: the job that steps the generator from its start to its end.
- `sources`: what a stream accepts as its source, and how it closes one.
- `nested_generators`: generators that the generator itself reads, closed in the task that began them.
"""
