"""What SIGTERM does to an ASGI app under granian."""

from tests.adapters.asgi.known_faults import build

known_fault = build("granian")
