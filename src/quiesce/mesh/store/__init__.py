"""The records that a node needs after a restart. The node writes each record before it acts on it.

In reading order, first the file of one process, then what several processes share:

- `journal`: the file, and the draft of a smaller file.
- `record_format`: the format of a record: one line with a checksum and JSON.
- `compaction`: makes a smaller journal in small steps while the node goes on.
- `journal_keeper`: how a node uses its journal, also while the disk is full.
- `rows`: what replicas keep in a shared store: rows about edges, entries of replicas, notices to each other.
- `database`: what a shared store needs of SQLite, PostgreSQL, NATS, or another place for rows.
- `sqlite_database`: rows in a file of SQLite, for the processes of one machine.
- `nats_database`: rows in a stream of NATS JetStream, for processes of several machines.
- `nats_groups`: several calls in one commit of that stream.
- `nats_changes`: the messages of which a commit consists.
- `nats_stream`: the set-up of the stream, and reading from it.
- `nats_link`: the connection to NATS.
- `nats_subjects`: the names and contents of the messages, and the address.
"""
