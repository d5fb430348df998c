"""The journal: the records that a node needs after a restart. The node writes each record before it acts on it.

In reading order:

- `journal`: the file, and the draft of a smaller file.
- `record_format`: the format of a record: one line with a checksum and JSON.
- `compaction`: makes a smaller journal in small steps while the node goes on.
- `journal_keeper`: how a node uses its journal, also while the disk is full.
"""
