"""Any ASGI app, with a shutdown that loses nothing, or says what it lost.

`Quiesce(app, drain=30)` is middleware, and the lifespan around the app's own: every request has a
scope, the app has one, and SIGTERM drains them before the server hears of it. It runs under uvicorn,
hypercorn and granian, on asyncio, uvloop and trio, and needs no package of its own.
"""

from quiesce.integrations.asgi.middleware import Quiesce

__all__ = ["Quiesce"]
