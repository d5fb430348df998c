"""What a node knows and decides: pure, without clock, socket, file or event loop.

In reading order; docs/reference/protocol.md describes the protocol for other implementations:

- `receipt`: what became of an edge, with everything that was handed on from it.
- `states`: the states of hops and edges, and the tables of their moves.
- `facts`: what a detector writes, wants done, and answers.
- `knowledge`: the tables of edges, how they age, and how they are restored.
- `detector`: when has a cascade settled?
- `horizon`: how long a message may be under way, and for how long a node remembers it.
- `scheduler`: which receipts and questions go to which node, and when.
- `engine`: detector, horizon and scheduler, put together.
- `codec`: headers and JSON bodies, as they are on the wire.
"""
