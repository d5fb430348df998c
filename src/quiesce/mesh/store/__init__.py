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
- `postgres_database`: rows in PostgreSQL, for processes of many machines.
- `postgres_link`: its connections: a few, bounded, and no change is written after its call.
- `postgres_changes`: the statement that writes a batch in one round trip.
- `postgres_tables`: its tables, and what `open` looks at.
- `postgres_address`: its address without secrets, and what an error means for its user.
- `nats_database`: rows in a stream of NATS JetStream, for processes of several machines.
- `nats_groups`: several calls in one commit of that stream.
- `nats_changes`: the messages of which a commit consists.
- `nats_stream`: the set-up of the stream, and reading from it.
- `nats_link`: the connection to NATS.
- `nats_subjects`: the names and contents of the messages, and the address.
- `record_rows`: turns the records of a node into rows, and rows back into records.
- `shared_store`: writes the records of a node whose replicas share the store.
- `replica_identity`: who a replica is, and how another process can prove that it has ended.
- `fence`: ends this process by a timer of the kernel, unless the timer is set again in time.
- `replica_watch`: heartbeats, notices, and what a replica inherits from the dead.
"""
