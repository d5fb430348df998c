"""The mesh over HTTP, for programs that make their own transport or client. Needs httpx or httpx2."""

from quiesce.mesh.transport.http_transport import CascadeTransport, HttpTransport

__all__ = ["CascadeTransport", "HttpTransport"]
