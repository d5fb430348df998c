"""What SIGTERM does to an ASGI app under uvicorn."""

from tests.adapters.asgi_scenarios import build

rows = build("uvicorn")
