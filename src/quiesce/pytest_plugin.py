"""The pytest plugin: a test that leaves something behind fails, with the line that started it.

Settings: `quiesce_guard = error | warn | off` (`--quiesce-guard`), `quiesce_allow` (a list of
patterns such as `thread:*`), and `@pytest.mark.quiesce(guard=…, allow=[…])` for one test.
`quiesce_escapes = error | report | off` (`--quiesce-escapes`) is for tests that run hops: it finds
work that leaves a hop by a way that no verdict waits for.

The guard looks when the test *and its own fixtures* are done, just before pytest tears down
fixtures of a wider scope; what those fixtures start does not belong to the test. Findings are an
error of the test's teardown. If the test itself has failed, they are shown below its failure.
"""

from __future__ import annotations

import gc
from dataclasses import astuple
from typing import TYPE_CHECKING, NamedTuple

import pytest

from quiesce.errors import ArgumentError, UsageError
from quiesce.testing.escaping.escape_report import NO_HOP, Escape, table
from quiesce.testing.leaks.baseline import Baseline
from quiesce.testing.leaks.census import Census
from quiesce.testing.leaks.findings import KINDS, Finding, without_allowed
from quiesce.testing.leaks.finished_tests import FinishedTests
from quiesce.testing.leaks.guard import check_guard
from quiesce.testing.leaks.instrument import watch
from quiesce.testing.sweeps import plan
from quiesce.testing.sweeps.marker import run_marked

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from quiesce.testing.escaping.trails import Trails
    from quiesce.testing.leaks.births import Event

__all__: list[str] = []

MODES = ("error", "warn", "off")
ESCAPES = ("error", "report", "off")
_SETTLE_SECONDS = 0.1
_LABELS_MAX = 3


class LeakWarning(UserWarning):
    """A test has left something behind, and `quiesce_guard` is `warn`."""


class GuardRules(NamedTuple):
    """The guard's settings for one test."""

    mode: str
    allow: list[str]


class GuardedTest(NamedTuple):
    """A test that has run and is about to be judged."""

    item: pytest.Item
    rules: GuardRules
    census: Census


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the settings."""
    group = parser.getgroup("quiesce", "quiesce: what tests leave behind")
    about = "fail (or warn of) tests that leave tasks, processes, threads, files or more behind"
    group.addoption("--quiesce-guard", choices=MODES, default=None, help=about)
    group.addoption(
        "--quiesce-baseline",
        metavar="FILE",
        default=None,
        help="file of known findings: written if missing; else they are tolerated, and may only shrink",
    )
    about_escapes = "fail (or report) tests with a hop that work leaves by an untracked way"
    group.addoption("--quiesce-escapes", choices=ESCAPES, default=None, help=about_escapes)
    about_replay = "repeat only this run of a sweep; the failure names its ID"
    group.addoption("--quiesce-replay", metavar="ID", default=None, help=about_replay)
    parser.addini("quiesce_guard", f"{about}: error, warn or off", default="off")
    parser.addini("quiesce_escapes", f"{about_escapes}: error, report or off", default="off")
    parser.addini("quiesce_allow", "patterns of what tests may leave: thread:*", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and register the guard."""
    config.addinivalue_line(
        "markers",
        "quiesce(guard=None, allow=(), escapes=None): set for this test the guard (error, warn, off),"
        " more patterns of what it may leave behind (thread:*), and what to do with escapes (error,"
        " report, off)",
    )
    config.addinivalue_line(
        "markers",
        "sweep(depth=1, where='task', backend='asyncio', ...): run this async test again and again,"
        " cancelled at each of its suspension points; see quiesce.testing.sweep",
    )
    mode = _setting(config, "quiesce_guard", MODES)
    escapes = _setting(config, "quiesce_escapes", ESCAPES)
    allow = config.getini("quiesce_allow")
    file = config.getoption("quiesce_baseline")
    try:
        check_guard(allow, KINDS, _SETTLE_SECONDS)
        if config.getoption("quiesce_replay") is not None:
            plan.parse(config.getoption("quiesce_replay"))
        baseline = None if file is None else Baseline(config.invocation_params.dir / file)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    guarding = Guarding(config, mode, allow, baseline)
    config.pluginmanager.register(guarding, "quiesce-guard")
    config.pluginmanager.register(Escaping(guarding, escapes), "quiesce-escapes")


def _setting(config: pytest.Config, name: str, modes: Sequence[str]) -> str:
    mode: str = config.getoption(name) or config.getini(name)
    if mode not in modes:
        message = f"{name} must be one of {', '.join(modes)}, not {mode!r}"
        raise pytest.UsageError(message)
    return mode


def _text(found: Sequence[Finding], more: str = "") -> str:
    """Return the findings as text; pytest shows the first line in its summary."""
    labels = [finding.label for finding in found]
    if len(labels) > _LABELS_MAX:
        labels[_LABELS_MAX:] = [f"and {len(labels) - _LABELS_MAX} more"]
    head = "; ".join(filter(None, [f"quiesce guard: left behind: {', '.join(labels)}", more]))
    return "\n  ".join([head, *map(str, found)])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Sweep the tests that have the marker `sweep`.

    This is not done in `pytest_pyfunc_call`: other plugins run async tests there, and the plugin
    registered last comes first. A test could then run only once, and pass.
    """
    marker = item.get_closest_marker("sweep")
    if marker is None or not isinstance(item, pytest.Function):
        return (yield)
    replay = item.config.getoption("quiesce_replay")

    def sweep() -> None:
        try:
            run_marked(item, marker, replay)
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)  # the plugin's own traceback does not help

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item, "runtest", sweep)
        return (yield)


class Guarding:
    """The guard of one test session."""

    def __init__(
        self, config: pytest.Config, mode: str, allow: list[str], baseline: Baseline | None
    ) -> None:
        self.config = config
        self.mode = mode
        self.allow = allow
        self.baseline = baseline
        self.current: pytest.Item | None = None
        self.census: Census | None = None  # of the current test
        self.failed: bool = False  # whether the current test itself has failed
        self.session: Census | None = None  # watches between the tests as well
        self.finished: FinishedTests[GuardRules] = FinishedTests()
        self.rules: GuardRules = GuardRules(mode, allow)
        self.baseline_summary: str | None = None

    # The run as a whole.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Watch while tests run; at the end, report what only a garbage collection shows."""
        if self.mode != "off":
            self._watch()
        try:
            result = yield
            if self.session is not None:
                gc.collect()
                self._report_late_findings()
        finally:
            if self.session is not None:
                self.session.close()
                self.session = None
        return result

    def _watch(self) -> None:
        if self.session is None:
            self.session = Census(kinds=())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write the baseline; a worker of xdist sends it to the controller."""
        if self.baseline is None:
            return
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["quiesce_baseline"] = self.baseline.seen()
        else:
            self.baseline_summary = self.baseline.write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Merge the baseline of a worker of xdist; a crashed worker has sent none."""
        seen = getattr(node, "workeroutput", {}).get("quiesce_baseline")
        if seen is not None and self.baseline is not None:
            self.baseline.merge(seen)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write whether the baseline has changed, and what could not be watched."""
        if self.baseline_summary is not None:
            terminalreporter.write_line(f"quiesce: {self.baseline_summary}")
        if watch.unknown and len(self.finished):
            missing = ", ".join(sorted(watch.unknown))
            terminalreporter.write_line(
                f"quiesce: not watched, because the installed version lacks it: {missing}"
            )

    # One test.

    def _rules(self, item: pytest.Item) -> GuardRules:
        """Return the rules for a test, from the settings and its markers; the nearest marker wins."""
        mode: str | None = None
        allow: list[str] = []
        for marker in item.iter_markers("quiesce"):
            unknown = marker.kwargs.keys() - {"guard", "allow", "escapes"}
            if marker.args or unknown:
                message = f"{item.nodeid}: the marker quiesce takes only guard=, allow= and escapes=, by name"
                raise UsageError(message)
            mode = mode or marker.kwargs.get("guard")
            patterns = marker.kwargs.get("allow", ())
            check_guard(patterns, KINDS, _SETTLE_SECONDS)
            allow += patterns
        if mode is not None and mode not in MODES:
            message = f"{item.nodeid}: guard must be one of {', '.join(MODES)}, not {mode!r}"
            raise ArgumentError(message)
        if mode is None and not allow:
            return self.rules  # one object for all such tests
        return GuardRules(mode or self.mode, [*self.allow, *allow])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Begin with the test's first fixture of function scope, or after all fixtures of wider scope."""
        self.current = item
        self.failed = False
        yield
        self._begin(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Begin with the test's first fixture of function scope; pause during fixtures of wider scope."""
        if request.scope == "function":
            if self.current is not None and request.node is self.current:
                self._begin(self.current)
            return (yield)
        if self.census is None:
            return (yield)
        with self.census.paused():
            return (yield)

    def _begin(self, item: pytest.Item) -> None:
        if self.census is not None:
            return
        try:
            rules = self._rules(item)
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        if rules.mode == "off":
            return
        self._watch()
        census = self.census = Census(allow=rules.allow, settle=_SETTLE_SECONDS)
        # The first finalizer of the test is the last to run.
        item.addfinalizer(lambda: self._end(GuardedTest(item, rules, census)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record whether the test itself has failed, even if that was expected."""
        report = yield
        if call.when != "teardown" and (report.failed or hasattr(report, "wasxfail")):
            self.failed = True
        return report

    def _end(self, guarded: GuardedTest) -> None:
        """Find what the test has left behind, and fail it or warn."""
        self.census = None
        with guarded.census:
            # A full garbage collection after each test would take longer than everything else.
            found = guarded.census.settled(collect=None)
            if found:
                guarded.census.acknowledge()
        found = self._without_temporary(guarded.item, found)
        self.finished.add(guarded.item, guarded.rules, guarded.census)
        self._report_late_findings()
        test = guarded.item.nodeid
        if self.baseline is not None:
            unknown = self.baseline.unknown(test, found)
            if not self.failed:
                self.baseline.record(test, found)
            found = unknown
        if not found:
            return
        text = _text(found)
        if self.failed:
            guarded.item.add_report_section("teardown", "quiesce guard", text)
        elif guarded.rules.mode == "warn":
            guarded.item.warn(LeakWarning(text))
        else:
            pytest.fail(text, pytrace=False)

    @staticmethod
    def _without_temporary(item: pytest.Item, found: list[Finding]) -> list[Finding]:
        """Leave out socket files in pytest's own temporary folders: pytest keeps those on purpose."""
        factory = getattr(item, "funcargs", {}).get("tmp_path_factory")
        if factory is None:
            return found
        folder = f"{factory.getbasetemp()}/"
        return [f for f in found if f.kind != "socket" or not f.details.startswith(folder)]

    # Findings that are noticed after their test.

    def _report_late_findings(self) -> None:
        """Report findings of finished tests that were collected only now."""
        events = list(watch.events)
        watch.events.clear()
        for event in events:
            culprit = self.finished.culprit_of(event)
            if culprit is not None:
                self._report(*culprit, event)

    def _report(self, item: pytest.Item, rules: GuardRules, event: Event) -> None:
        finding = event.finding
        found: Sequence[Finding] = without_allowed([finding], rules.allow)
        if self.baseline is not None and found:
            unknown = self.baseline.unknown(item.nodeid, found)
            self.baseline.record_late(item.nodeid, finding)
            found = unknown
        if not found:
            return
        origin = "from this test or one before it, " if event.born == event.seen else ""
        text = _text(found, f"{origin}noticed when the test was over")
        if rules.mode == "warn":
            item.warn(LeakWarning(text))
            return
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=text,
            when="teardown",
        )
        item.ihook.pytest_runtest_logreport(report=report)


class Escaping:
    """The detector of work that leaves the hops of each test."""

    def __init__(self, guarding: Guarding, mode: str) -> None:
        self.guarding = guarding
        self.mode = mode
        self.trails: Trails | None = None  # of the current test
        self.told: dict[Escape, None] = {}  # escapes of all tests in mode `report`
        self.looked_at: int = 0  # tests
        self.with_hops: int = 0
        self.without: list[str] = []  # of marked tests in which nothing was proved, a line each

    def _mode(self, item: pytest.Item) -> str:
        """Return the mode of the nearest marker, or of the settings; it is not checked yet."""
        for marker in item.iter_markers("quiesce"):
            mode: str | None = marker.kwargs.get("escapes")
            if mode is not None:
                return mode
        return self.mode

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Watch every hop from now on."""
        mode = self._mode(item)
        if mode not in ESCAPES:
            yield  # otherwise the teardown of other plugins fails as well
            message = f"{item.nodeid}: escapes must be one of {', '.join(ESCAPES)}, not {mode!r}"
            pytest.fail(message, pytrace=False)
        if mode != "off":
            from quiesce.testing.escaping.detectors import begin_detecting  # noqa: PLC0415 - most test runs do not need the mesh

            self.trails = begin_detecting()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Report or fail on the escapes, when the test's fixtures are done."""
        try:
            yield
        finally:
            trails, self.trails = self.trails, None
            found = [] if trails is None else list(dict.fromkeys(trails.found()))
            if trails is not None:
                trails.close()
                self._count(item, trails)
        self._judge(item, found)

    def _count(self, item: pytest.Item, trails: Trails) -> None:
        self.looked_at += 1
        self.with_hops += bool(trails.count)
        if not any(one.kwargs.get("escapes") for one in item.iter_markers("quiesce")):
            return
        if not trails.count:
            self.without.append(f"no hop was seen in {item.nodeid}")
        elif 0 < trails.served == trails.errors_count:
            which = "; ".join(trails.errors)
            self.without.append(f"no handler may have run in {item.nodeid}: {which}")

    def _judge(self, item: pytest.Item, found: list[Escape]) -> None:
        if self._mode(item) == "report":
            self.told.update(dict.fromkeys(found))
            return
        bad = [one for one in found if one.fate in {"unseen", "untracked"}]
        if not bad:
            return
        ways = dict.fromkeys(f"{one.route} in {one.function}" for one in bad)
        text = "\n  ".join([f"quiesce escapes: work leaves: {', '.join(ways)}", *map(str, bad)])
        if self.guarding.failed:
            item.add_report_section("teardown", "quiesce escapes", text)
        else:
            pytest.fail(text, pytrace=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Send the escapes from a worker of xdist to the controller."""
        output = getattr(self.guarding.config, "workeroutput", None)
        if output is not None:
            output["quiesce_escapes"] = [astuple(one) for one in self.told]
            output["quiesce_hops"] = self.looked_at, self.with_hops, self.without

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Merge the escapes that a worker of xdist has found."""
        output = getattr(node, "workeroutput", {})
        for one in output.get("quiesce_escapes", ()):
            self.told[Escape(*one)] = None
        looked_at, with_hops, without = output.get("quiesce_hops", (0, 0, ()))
        self.looked_at += looked_at
        self.with_hops += with_hops
        self.without += without

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the escapes of tests in mode `report`, and how many tests had hops."""
        if self.told:
            terminalreporter.section("quiesce escapes")
            terminalreporter.write_line(table(self.told))
        if not self.looked_at:
            return
        tests = f"{self.looked_at} test{'s' * (self.looked_at != 1)}"
        seen = f"hops were seen in {self.with_hops} of {tests}" if self.with_hops else NO_HOP
        terminalreporter.write_line(f"quiesce escapes: {seen}")
        for told in self.without:
            terminalreporter.write_line(f"quiesce escapes: {told}")
