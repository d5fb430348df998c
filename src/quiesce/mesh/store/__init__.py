"""The journal: what a node has to know after a restart, written before it is acted upon.

In reading order:

- `journal`: the file, and the draft of a smaller one.
- `record_format`: one record a line: a checksum and JSON.
- `compaction`: a smaller journal, made a little at a time while the node goes on.
- `journal_keeper`: how a node keeps its journal, also while the disk is full.
"""
