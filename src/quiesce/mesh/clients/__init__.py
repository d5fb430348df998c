"""HTTP clients of other libraries inside of hops: what they send to peers is noticed, or becomes a message.

In reading order:

- `instrumentation`: when the clients are wrapped: while a node is open, or instrumented.
- `client_hooks`: functions of HTTP libraries that are wrapped, also of libraries imported later.
- `sending`: one request of such a client, inside of a hop, towards a known node.
- `httpcore_client`: httpx, httpx2 and SDKs on top of them, by httpcore's pools.
- `aiohttp_client`: aiohttp, by a middleware for each request.
- `http_client`: urllib, urllib3 and requests, by `http.client`.
- `raw_sockets`: sockets that code in a hop connects to a peer by itself.
- `departure`: whether a request has left, as httpcore tells it.
- `declaring`: calls of an SDK that are not messages, or carry their edge in another way.
- `strays`: requests of a node's own client outside of any hop.
"""
