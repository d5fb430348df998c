"""Any ASGI app, with a shutdown that loses nothing, or says what it lost.

`Quiesce(app, grace=30)` is middleware, and the lifespan around the app's own: every request has a
scope, the app has one, and SIGTERM drains them before the server hears of it. It runs under uvicorn,
hypercorn and granian, on asyncio, uvloop and trio, and needs no package of its own.

The modules, in reading order:

- `middleware`: the public middleware: which call is handled how.
- `middleware_settings`: its options, checked, and the types of ASGI.
- `application`: one run of an app: its scopes, what is open, and how it is stopped.
- `lifespan`: the lifespan around the app's.
- `request_exchange`: one request or WebSocket: a scope, and the app as a job in it.
- `idle_streams`: which requests are streams that carry no work.
- `drain_parts`: what has joined the drain of the server: nodes, and parts that drain themselves.
- `held_signal`: SIGTERM, held back from the server until the app is drained.
- `answers`: what the middleware answers by itself.
"""

from quiesce.integrations.asgi.middleware import Quiesce

__all__ = ["Quiesce"]
