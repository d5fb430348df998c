"""What a finding is known by."""

from __future__ import annotations

import pytest

from quiesce.testing import Finding


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("producer:d63aaa41-0b1c-4f6e-9d2a-6a1f0c9be412", "task:producer:*"),
        ("<Handler object at 0x7f3a5c0b>", "task:<Handler object at *>"),
        ("session-0123456789abcdef0123", "task:session-*"),
        ("worker 48213", "task:worker *"),
        ("Task-7", "task:Task-7"),
        ("feed", "task:feed"),
    ],
)
def test_what_changes_from_run_to_run_is_not_in_a_label(name: str, label: str) -> None:
    """Or no baseline could know it again."""
    assert Finding("task", name).label == label
    assert repr(name) in str(Finding("task", name))
