"""How messages and calls travel between nodes: by HTTP, ASGI, and connections that two agents already have.

In reading order:

- `node_transport`: the interface by which a node calls other nodes, and a transport in memory.
- `http_transport`: calls and messages over HTTP, with httpx or httpx2.
- `asgi_server`: ASGI middleware that makes an agent's HTTP server part of the mesh.
- `asgi_connections`: closes a server's connections after it was told to end.
- `call_bodies`: reads the body of a call, within a time limit.
- `asgi_front`: the outermost ASGI app of a server that takes part in the mesh.
- `refused_posts`: JSON-RPC messages in requests that a draining server has refused.
- `asgi_lifespan`: the lifespan of an app, during which its node is open.
- `links`: calls over a connection that two agents already have, like stdio.
- `address_policy`: which addresses a node may use, and how many messages it accepts from each.
"""
