"""What SIGTERM does to an ASGI app under uvicorn."""

from tests.adapters.asgi.known_faults import build

known_fault = build("uvicorn")
