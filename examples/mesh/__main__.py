"""The command: `python -m examples.mesh`."""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio

try:
    from quiesce.mesh import MeshFrontier, Node

    from .acts import ACTS, Outcome, Scene
    from .agent import PATIENCE
    from .stage import Stage
except ImportError as error:
    sys.exit(f"The demo needs a2a-sdk 1.x, uvicorn and httpx: use `make demo`\n({error})")


class Screen:
    """Draws the live tree, again and again in the same place.

    Without a terminal there is one line for each change, so that the verdicts stand out.
    """

    def __init__(self, *, quiet: bool, color: bool) -> None:
        """Start with an empty screen."""
        self._quiet = quiet
        self._color = color
        self._lines = 0
        self._last = ""

    def say(self, text: str = "") -> None:
        """Print a line."""
        if not self._quiet:
            self._lines = 0
            print(text, flush=True)

    def show(self, frontier: MeshFrontier, seconds: float) -> None:
        """Draw which agents are busy; without a terminal, print them if they have changed."""
        if self._quiet:
            return
        if not self._color:
            self._show_change(frontier, seconds)
            return
        entries = tuple(
            replace(one, what=_kind(one.what)) if one.state == "at work" else one
            for one in frontier.entries
        )
        drawn = str(replace(frontier, entries=entries)).splitlines()[1:]
        lines = [f"  {seconds:4.1f} s  {line}" for line in drawn]
        if self._lines:
            print(f"\x1b[{self._lines}A\x1b[J", end="")
        self._lines = len(lines)
        print("\n".join(lines), flush=True)

    def _show_change(self, frontier: MeshFrontier, seconds: float) -> None:
        states: dict[str, set[str]] = {}
        for entry in frontier.busy:
            states.setdefault(entry.state, set()).add(entry.name)
        told = "; ".join(f"{state}: {', '.join(sorted(who))}" for state, who in states.items())
        if told and told != self._last:
            print(f"  {seconds:4.1f} s  {told}", flush=True)
        self._last = told or self._last


def _kind(what: str) -> str:
    """Leave the ids out of what an agent does: `a2a task 7f3a…` becomes `a2a task`."""
    first = what.partition(",")[0]
    return first.rpartition(" ")[0] or first


async def play(screen: Screen, names: Sequence[str], store: str) -> list[Outcome]:
    """Play the acts, one after the other, with the same five agents."""
    with tempfile.TemporaryDirectory() as folder:
        shared = f"sqlite://{folder}/mesh.db" if store == "sqlite" else store
        return await _play(screen, names, Path(folder), shared)


async def _play(screen: Screen, names: Sequence[str], folder: Path, store: str) -> list[Outcome]:
    outcomes = []
    with Stage(folder, store) as stage:
        screen.say("Five A2A agents, each a process: planner, flights, hotel, bank, and a taxi")
        screen.say("that takes no part. You have no address: your receipts are asked for.\n")
        async with (
            Node("you", store=store or folder / "you.journal", patience=PATIENCE) as node,
            node.client(trust_env=False, timeout=30) as client,
        ):
            for url in stage.urls.values():  # their start is not measured
                (await client.get(f"{url}/.well-known/agent-card.json")).raise_for_status()
            for act in ACTS:
                if names and act.__name__ not in names:
                    continue
                screen.say(f"■ {act.__doc__}")
                outcome = await act(Scene(stage, node, client, screen.show))
                outcomes.append(outcome)
                tell(screen, outcome)
                if not outcome.ok:
                    print(stage.logs(), file=sys.stderr)
    return outcomes


def tell(screen: Screen, outcome: Outcome) -> None:
    """Print the result of an act."""
    screen.say(f"  → {outcome.verdict}, after {outcome.seconds:.1f} s")
    for fact in outcome.facts:
        screen.say(f"    {fact}")
    for fault in outcome.faults:
        screen.say(f"    NOT AS IT IS: {fault}")
    screen.say()


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the demo; return 0 only if every verdict agreed with the truth."""
    options = _parser().parse_args(arguments)
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and not options.json
    screen = Screen(quiet=options.json, color=color)
    for end in (signal.SIGTERM, signal.SIGHUP):  # the agents have sessions of their own
        if signal.getsignal(end) == signal.SIG_DFL:
            signal.signal(end, signal.default_int_handler)
    while True:
        try:
            outcomes = anyio.run(play, screen, options.act, options.store)
        except KeyboardInterrupt:
            print("\nended; the agents have ended, too", file=sys.stderr)
            return 130
        ok = all(outcome.ok for outcome in outcomes)
        if options.json:
            acts = [vars(outcome) | {"ok": outcome.ok} for outcome in outcomes]
            print(json.dumps({"ok": ok, "acts": acts}, indent=2))
        else:
            agreed = sum(outcome.ok for outcome in outcomes)
            screen.say(
                f"{agreed} of {len(outcomes)} verdicts agreed with what the agents wrote down."
            )
        if options.once or not sys.stdin.isatty() or not _wants_more():
            return 0 if ok else 1


def _wants_more() -> bool:
    try:
        return input("Enter plays it again, q ends it: ").strip() == ""
    except (EOFError, KeyboardInterrupt):
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.mesh",
        description="Five A2A agents that hand work to each other, and when all of it has ended.",
        epilog="The exit code is 0 only if every verdict agreed with what the agents wrote down.",
    )
    names = [act.__name__ for act in ACTS]
    parser.add_argument("--once", action="store_true", help="play it once, and ask nothing")
    parser.add_argument("--json", action="store_true", help="print what was seen as JSON")
    parser.add_argument(
        "--store", default="", metavar="STORE",
        help="the store that all agents share: `sqlite` for a file made for the demo, or an address like"
        " postgresql://… or nats://… of a server that runs (default: each agent has a file of its own)",
    )  # fmt: skip
    parser.add_argument(
        "--act", action="append", choices=names, default=[], help="play only this act (repeatable)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
