"""The middleware under granian."""

from tests.adapters.asgi_shared import *  # noqa: F403 - the tests are the same for every server
