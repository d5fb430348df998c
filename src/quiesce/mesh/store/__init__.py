"""The records that a node needs after a restart. The node writes each record before it acts on it.

In reading order, first the file of one process, then what several processes share:

- `journal`: the file, and the draft of a smaller file.
- `record_format`: the format of a record: one line with a checksum and JSON.
- `compaction`: makes a smaller journal in small steps while the node goes on.
- `journal_keeper`: how a node uses its journal, also while the disk is full.
- `store_address`: what the argument `store=` names.
- `rows`: what replicas keep in a shared store: rows about edges, entries of replicas, notices to each other.
- `database`: what a shared store needs of SQLite, PostgreSQL, NATS, or another place for rows.
- `sqlite_database`: rows in a file of SQLite, for the processes of one machine.
- `record_rows`: turns the records of a node into rows, and rows back into records.
- `shared_store`: writes the records of a node whose replicas share the store.
- `replica_identity`: who a replica is, and how another process can prove that it has ended.
- `fence`: ends this process by a timer of the kernel, unless the timer is set again in time.
- `replica_watch`: heartbeats, notices, and what a replica inherits from the dead.
"""
