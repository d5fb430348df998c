"""The known leftovers of a project's tests, in a file. They are tolerated, and may only shrink."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from quiesce.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from quiesce.testing.leaks.findings import Finding

Labels = dict[str, int]
"""How often each label occurs."""

_ABOUT = "What these tests leave behind, known to the quiesce guard. It only shrinks."


class Baseline:
    """A file of known findings. A missing file is written; an existing file never grows."""

    def __init__(self, path: Path) -> None:
        """Read the file if it exists."""
        self.path = path
        self.is_new: bool = not path.exists()
        self._known: dict[str, Labels] = {} if self.is_new else _read(path)
        self._seen: dict[str, Labels] = {}

    def unknown(self, test: str, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings of a test that are not tolerated."""
        known = Counter(self._known.get(test, {}))
        if self.is_new:
            return []
        found = []
        for finding in findings:
            if known[finding.label] > 0:
                known[finding.label] -= 1
            else:
                found.append(finding)
        return found

    def record(self, test: str, findings: Sequence[Finding]) -> None:
        """Record the findings of a test. Called once each time the test has run to its end."""
        labels = Counter(finding.label for finding in findings)
        seen = Counter(self._seen.get(test, {}))
        # A test that runs several times keeps the largest number of any of its runs.
        self._seen[test] = dict(seen | labels)

    def record_late(self, test: str, finding: Finding) -> None:
        """Record a finding that was noticed only after the test was over."""
        seen = Counter(self._seen.get(test, {}))
        seen[finding.label] += 1
        self._seen[test] = dict(seen)

    def seen(self) -> dict[str, Labels]:
        """Return the recorded findings, for another process."""
        return self._seen

    def merge(self, seen: Mapping[str, Labels]) -> None:
        """Add the findings that another process has recorded."""
        for test, labels in seen.items():
            self._seen[test] = dict(Counter(self._seen.get(test, {})) | Counter(labels))

    def write(self) -> str:
        """Write the file; return a sentence about the change."""
        before = sum(map(_count, self._known.values()))
        if self.is_new:
            after = dict(self._seen)
        else:
            after = dict(self._known)
            for test, labels in self._seen.items():
                after[test] = dict(Counter(self._known.get(test, {})) & Counter(labels))
        after = {test: labels for test, labels in sorted(after.items()) if _count(labels)}
        count = sum(map(_count, after.values()))
        if self.is_new or after != self._known:
            text = json.dumps({"about": _ABOUT, "tests": after}, indent=2, sort_keys=True)
            self.path.write_text(text + "\n", encoding="utf-8")
        if self.is_new:
            return f"baseline written: {count} known in {len(after)} tests, in {self.path}"
        return f"baseline: {before - count} of {before} gone, {count} left, in {self.path}"


def _count(labels: Mapping[str, int]) -> int:
    return sum(labels.values())


def _read(path: Path) -> dict[str, Labels]:
    message = f"{path} is not a baseline file: move it away, and a new one is written"
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(test): {str(label): int(count) for label, count in labels.items()}
            for test, labels in data["tests"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(message) from error
