"""Any ASGI app, with a shutdown that loses nothing or reports what it lost.

`Quiesce(app, grace=30)` is middleware with a lifespan around the app's own. Every request has a scope, and
so has the app. On SIGTERM these scopes are drained before the server gets the signal. It works with uvicorn,
hypercorn and granian, on asyncio, uvloop and trio, and needs no other package.

The modules, in reading order:

- `middleware`: `Quiesce`, the public middleware, and how it handles each kind of call.
- `middleware_settings`: checks its options and the app.
- `application`: one run of an app: its scopes, what is open, and how it is stopped.
- `lifespan`: the lifespan of the middleware, around the app's own.
- `request_exchange`: one request or WebSocket: a scope, and the app as a job in it.
- `idle_streams`: recognises requests that are streams without work.
- `drain_parts`: the parts that have joined the drain of the server, such as nodes.
- `held_signal`: SIGTERM, held back from the server until the app is drained.
- `answers`: the responses that the middleware sends itself.
"""

from quiesce.integrations.asgi.middleware import Quiesce

__all__ = ["Quiesce"]
