"""HTTP clients of other libraries: a request that a hop sends to a peer is recorded, or becomes a message of the hop.

In reading order:

- `instrumentation`: wraps the clients while a node is open or instrumented.
- `client_hooks`: wraps functions of HTTP libraries, also of libraries that are imported later.
- `sending`: the edge for one request of such a client, inside a hop, to a known node; each client's module sets the header.
- `httpx_client`: httpx, httpx2 and SDKs on top of them, by httpcore's pools.
- `aiohttp_client`: aiohttp, by a middleware for each request.
- `stdlib_client`: urllib, urllib3 and requests, by `http.client`.
- `raw_sockets`: sockets that the user's code in a hop connects to a peer.
- `departure`: whether a request has left this process, from httpcore's trace.
- `declaring`: calls of an SDK that are not messages, or carry their edge in another way.
- `strays`: requests of a node's own client outside of any hop.
"""
