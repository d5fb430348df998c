"""What goes wrong with the server alone, and does not with the middleware: see known_faults.py."""

from tests.adapters.fault_tests import *  # noqa: F403 - the tests are the same for every adapter
