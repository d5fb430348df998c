#!/usr/bin/env python3
"""Run the A2A SDK's own tests of its request handler against the adapter.

`python tools/a2a_suite.py --version 1.1.0 SOURCES` reads SOURCES, a checkout of a2a-python, or its git
directory with the tag v1.1.0. Without SOURCES, the tool clones that tag. It runs the tests twice, unchanged
and with the adapter, and lists each difference with its explanation. The exit code is 1 if a difference has
no explanation.

SDK and tests may have different versions: `--sdk 1.3.0` runs the tests of 1.1.0 against the SDK 1.3.0. This
file is also the pytest plugin that replaces the SDK's handler by the adapter.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/a2aproject/a2a-python"
SDKS = ("0.3.22", "0.3.26", "1.0.0", "1.1.0", "1.2.3", "1.3.0")
_MODULE = Path(__file__).stem
_OURS, _OUTCOMES = "QUIESCE_A2A_SUITE_OURS", "QUIESCE_A2A_SUITE_OUTCOMES"
_NAMES = ("DefaultRequestHandler", "DefaultRequestHandlerV2")
_SECONDS_MAX = 600
_ORDERLY = (0, 1, 2)  # exit codes of pytest: all passed, some failed, one could not be imported
_TEST_SECONDS_MAX = 30

_SENDER = (
    "It looks at `_push_sender`, a private name, or at what the SDK does where there is none: the adapter"
    " always gives the SDK a sender, which counts the events."
)
_WRAPPED = (
    "It expects its own executor and store in the handler: the adapter has put its own around them."
)
_INSTANCES = (
    "It mocks the class, which does not have the methods that the adapter passes on to the SDK's handler;"
    " only instances have these."
)
EXPLAINED: dict[str, str] = {
    "*::test_init_default_dependencies": _SENDER,
    "*::test_on_message_send_interrupted_flow": _SENDER,
    "*::test_background_cleanup_task_is_tracked_and_cleared": _SENDER,
    "*::test_on_message_send_stream_client_disconnect_triggers_*": _SENDER,
    "*::test_default_request_handler_with_custom_components": _WRAPPED,
    "*::test_on_*_push_notification": _INSTANCES,
    "*::test_on_*_push_notification_error": _INSTANCES,
    "*::test_on_message_stream_new_message_send_push_notification_success": (
        "It looks for the pushes as soon as the stream has ended: the adapter sends pushes in other tasks."
    ),
    "*::test_disconnect_persists_final_task_to_store": (
        "It waits for a private task of the SDK, `background_consume`, to end, and looks at the store: with"
        " the adapter there is none, and the state is stored some turns of the loop later."
    ),
    "*::test_stream_disconnect_then_resubscribe_receives_future_events": (
        "The task ends in the same turn of the loop in which its client subscribes: the adapter subscribes"
        " two turns later, in a job. (0.3 tells who subscribes nothing of what was before.)"
    ),
    "*::test_on_message_send_stream": "It measures half a second, which a busy machine exceeds.",
    "*::test_input_required_followup_across_per_rpc_event_loops": (
        "Each call has an event loop of its own: a handler of the adapter belongs to one."
    ),
}
"""By pattern of a test's name: why its outcome differs with the adapter."""


# What runs in pytest.


def pytest_configure(config: object) -> None:
    """Replace the SDK's handler by the adapter, before pytest imports a test module."""
    del config
    if not os.environ.get(_OURS):
        return
    import a2a.server.request_handlers as package  # noqa: PLC0415 - of the tests' processes alone

    from quiesce.integrations.a2a import QuiescentRequestHandler  # noqa: PLC0415 - the same

    real = package.DefaultRequestHandler

    class Adapted(QuiescentRequestHandler):
        """The adapter with the private names of the SDK's handler, which the SDK's tests read."""

        def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - the SDK's
            """Take what the SDK's handler takes."""
            super().__init__(*args, handler_class=real, **options)

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the SDK's
            """Return an attribute of the SDK's handler, also a private one."""
            if "_inner" not in self.__dict__:
                raise AttributeError(name)
            return getattr(self.__dict__["_inner"], name)

    for module in (package, sys.modules[real.__module__]):
        for name in _NAMES:
            if getattr(module, name, None) is real:
                setattr(module, name, Adapted)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Set the same longer timeout for all tests: two seconds are too short on a busy machine."""
    for item in items:
        item.own_markers = [marker for marker in item.own_markers if marker.name != "timeout"]


_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:  # noqa: ANN401 - pytest's
    """Record the outcome of a test: the worst outcome of its phases."""
    if report.failed:
        name = "failed" if report.when == "call" else f"error in {report.when}"
        line = str(report.longrepr).strip().splitlines()[-1:]
        _outcomes[report.nodeid] = f"{name}: {''.join(line)[:300]}"
    elif report.skipped or report.when == "call":
        _outcomes.setdefault(report.nodeid, report.outcome)


def pytest_collectreport(report: Any) -> None:  # noqa: ANN401 - pytest's
    """Record that a module could not be imported."""
    if report.failed:
        line = str(report.longrepr).strip().splitlines()[-1:]
        _outcomes[report.nodeid] = f"cannot be imported: {''.join(line)[:300]}"


def pytest_sessionfinish() -> None:
    """Write the outcomes of the tests."""
    if place := os.environ.get(_OUTCOMES):
        Path(place).write_text(json.dumps(_outcomes), encoding="utf-8")


# What runs them.


def modules(sources: Path) -> list[str]:
    """Return the test modules about the default handler, or about the apps that serve it."""
    found = []
    for path in sorted((sources / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        used = any(f"import {name}" in text or f"    {name}," in text for name in _NAMES)
        if used or path.parent.name == "request_handlers":
            found.append(str(path.relative_to(sources)))
    return found


def run(sources: Path, names: list[str], sdk: str, *, ours: bool) -> dict[str, str]:
    """Run the tests, each module in a process of its own; return the outcome of each test."""
    sys.path.insert(0, str(ROOT))
    from tests.integration import subjects  # noqa: PLC0415 - the tests' processes have other `tests`

    paths = [
        *(str(ROOT / "tools"), str(ROOT / "src")),
        *subjects.folders(f"a2a-sdk-{sdk}"),
        *subjects.folders("a2a-sdk-1.3.0"),  # more packages, for gRPC
        *subjects.folders("pytest-asyncio-1.4.1.post1"),
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | ({_OURS: "1"} if ours else {})
    found: dict[str, str] = {}
    for module in dict.fromkeys(name.partition("::")[0] for name in names):
        tests = [name for name in names if name.partition("::")[0] == module]
        found |= _run(sources, module, tests, env)
    return found


def _run(sources: Path, module: str, tests: list[str], env: dict[str, str]) -> dict[str, str]:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", _MODULE, "-p", "no:cacheprovider"),
        *("-p", "no:randomly", "-o", "addopts=", "-o", "asyncio_mode=strict", "-W", "ignore"),
        *("--timeout", str(_TEST_SECONDS_MAX), "--quiesce-guard", "off", *tests),
    ]
    with tempfile.TemporaryDirectory() as place:
        outcomes = Path(place, "outcomes.json")
        try:
            done = subprocess.run(  # noqa: S603 - our own
                command, cwd=sources, env=env | {_OUTCOMES: str(outcomes)}, check=False,
                capture_output=True, text=True, timeout=_SECONDS_MAX,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {module: f"hangs: after {_SECONDS_MAX} s"}
        if done.returncode not in _ORDERLY or not outcomes.exists():
            return {module: f"cannot be run: {done.stdout[-3000:]}{done.stderr[-1000:]}"}
        found: dict[str, str] = json.loads(outcomes.read_text(encoding="utf-8"))
        return found


def unpacked(sources: str | None, version: str, place: Path) -> Path:
    """Return a folder with the sources of a version."""
    tag = f"v{version}" if version[0].isdigit() else version
    if sources is None:
        clone = ["git", "clone", "-q", "--depth", "1", "--branch", tag, REPOSITORY, str(place)]
        subprocess.run(clone, check=True)  # noqa: S603 - git
        return place
    if Path(sources, "tests").is_dir():
        return Path(sources).resolve()
    archive = ["git", "--git-dir", sources, "archive", tag, "tests"]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout  # noqa: S603 - git
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(place, filter="data")
    return place


def explained(test: str) -> str:
    """Return why a test's outcome differs with the adapter; an empty text without an explanation."""
    return next((why for name, why in EXPLAINED.items() if fnmatch.fnmatch(test, name)), "")


def better(before: dict[str, str], again: dict[str, str]) -> dict[str, str]:
    """Return the outcomes, with `passed` for tests that have passed at the second try."""
    return {test: found for test, found in again.items() if found == "passed" != before.get(test)}


def kind(outcome: str) -> str:
    """Return the first word of a test's outcome."""
    return outcome.partition(":")[0]


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")


def main() -> None:
    """Run the tests both ways, and print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="?", help="a checkout, or a git directory")
    parser.add_argument(
        "--version", default="1.1.0", help="the version whose tests are run, or a branch"
    )
    parser.add_argument(
        "--sdk", choices=SDKS, help="the version of the SDK; by default, that of the tests"
    )
    options = parser.parse_args()
    sdk = options.sdk or options.version
    if sdk not in SDKS:
        parser.error(f"the version of the SDK is not known: pass --sdk, one of {', '.join(SDKS)}")
    with tempfile.TemporaryDirectory() as place:
        sources = unpacked(options.sources, options.version, Path(place))
        names = modules(sources)
        bare = run(sources, names, sdk, ours=False)
        ours = run(sources, names, sdk, ours=True)
        doubtful = [test for test in bare if kind(bare[test]) != kind(ours.get(test, ""))]
        if doubtful:  # tests that depend on time get a second try, both ways
            bare |= better(bare, run(sources, doubtful, sdk, ours=False))
            ours |= better(ours, run(sources, doubtful, sdk, ours=True))
    say(f"a2a-sdk {sdk}, {len(bare)} tests of {options.version}, in {len(names)} modules")
    for way, outcomes in (("bare", bare), ("quiesce", ours)):
        counts = Counter(map(kind, outcomes.values()))
        say(f"{way:>8}: {', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}")
    unexplained = 0
    for test in sorted(bare.keys() | ours.keys()):
        before, after = bare.get(test, "not run"), ours.get(test, "not run")
        if kind(before) != kind(after):
            why = explained(test) or ("The adapter passes this test." if after == "passed" else "")
            unexplained += not why
            say(f"\n{test}\n  {before}\n  with quiesce {after}\n  {why or 'NOT EXPLAINED'}")
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
