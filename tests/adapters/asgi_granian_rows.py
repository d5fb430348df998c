"""What SIGTERM does to an ASGI app under granian."""

from tests.adapters.asgi_scenarios import build

rows = build("granian")
