"""One adapter's figures, with the SDK that is on the path: `benchmarks.adapters` starts it."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict


def main() -> None:
    """Measure as the command line says, and print the results as JSON."""
    name, backend, count, rounds = sys.argv[1:]
    module, _, function = name.partition(":")
    measure = getattr(importlib.import_module(f"benchmarks.{module}"), function or "measure")
    results = measure(backend=backend, count=int(count), rounds=int(rounds))
    print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
