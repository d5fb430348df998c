"""The protocol's logic: a node's knowledge and decisions, without clock, socket, file or event loop.

In reading order; docs/reference/protocol.md describes the protocol for other implementations:

- `receipt`: the final result of an edge, including all work that was handed on from it.
- `states`: the state tables of hops and edges.
- `facts`: the detector's records, effects and answers.
- `knowledge`: the tables of edges: how entries age, and how they are restored.
- `detector`: opens and closes edges, adds up their receipts, and decides when a cascade has settled.
- `horizon`: how long a message may be under way, and how long a node remembers it.
- `scheduler`: which receipts and questions go to which node, and when.
- `engine`: combines detector, horizon and scheduler.
- `codec`: writes and parses the headers and JSON bodies.
"""
