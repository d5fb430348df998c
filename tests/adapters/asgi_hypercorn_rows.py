"""What SIGTERM does to an ASGI app under hypercorn."""

from tests.adapters.asgi_scenarios import build

rows = build("hypercorn")
