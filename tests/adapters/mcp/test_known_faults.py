"""What goes wrong with the SDK alone, and does not with the adapter: see known_faults.py."""

from tests.adapters.fault_tests import *  # noqa: F403 - the tests are the same for every adapter
