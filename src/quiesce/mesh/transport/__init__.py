"""How messages and calls travel between nodes: HTTP, ASGI, and connections that exist anyway.

In reading order:

- `node_transport`: what a node needs to call others, and a transport in memory.
- `http_transport`: calls and messages over HTTP, with httpx or httpx2.
- `asgi_server`: an agent's HTTP server as part of the mesh: ASGI middleware.
- `call_bodies`: how long a server reads the body of a call.
- `handler_naming`: what a request is called, and where its handler is.
- `asgi_front`: the outermost ASGI app of a server that takes part.
- `asgi_lifespan`: the lifespan of an app whose node is open for as long.
- `links`: calls over a connection that two agents have anyway, like stdio.
- `address_policy`: which addresses a node uses, and how much it takes from each.
"""
