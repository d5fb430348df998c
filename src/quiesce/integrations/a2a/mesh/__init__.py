"""A2A messages as edges of a cascade.

In reading order:

- `extension`: the A2A extension that puts the ids of an edge into a message.
- `message_edges`: a client of the SDK whose messages belong to the hop that sends them.
- `message_hops`: which hop the executor works for.
- `push_edges`: pushes as messages of the hop whose work they report.
"""
