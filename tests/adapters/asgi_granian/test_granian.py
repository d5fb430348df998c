"""The middleware under granian."""

from tests.adapters.asgi.every_server import *  # noqa: F403 - the tests are the same for every server
