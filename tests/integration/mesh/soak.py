"""A soak of the mesh: real agents, SIGKILL, restarts, partitions; every verdict is held against the truth.

`python -m tests.integration.mesh.soak --cascades 1000 --seed 7`. The exit code is 1 if any verdict was
wrong, or there was none. `--wave 37` runs one wave of a seed again, alone.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tests.integration import subjects
from tests.integration.mesh import plans

if TYPE_CHECKING:
    from tests.integration.mesh.judge import Judgement
    from tests.integration.mesh.truth import Truth

SUBJECT = "a2a-sdk-1.3.0"  # which has uvicorn and httpx
_LINGER_SECONDS = 2.5  # more than the longest delay of a copy


def with_packages() -> None:
    """Begin anew with httpx and uvicorn on the path, if they are not."""
    if importlib.util.find_spec("httpx") is None or importlib.util.find_spec("uvicorn") is None:
        environment = subjects.environment(SUBJECT)
        spec = sys.modules["__main__"].__spec__
        assert spec is not None
        command = [sys.executable, "-m", spec.name, *sys.argv[1:]]
        os.execve(sys.executable, command, environment)  # noqa: S606 - our own


def options(parser: argparse.ArgumentParser) -> None:
    """Describe what a run is made of."""
    parser.add_argument("--cascades", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--width", type=int, default=10, help="cascades at once")
    parser.add_argument("--agents", type=int, default=4, help="that take part")
    parser.add_argument("--kinds", default="http", help="of agents, in turn: http,a2a,a2a-old")
    parser.add_argument("--wave", type=int, help="only this one")
    kinds = ",".join(get_args(plans.FaultKind))
    usual = ",".join(dict.fromkeys(plans.Mix.faults))
    parser.add_argument("--faults", help=f"of {kinds}, with commas; none; all; {usual} by default")
    patterns = ",".join(plans.PATTERNS)
    parser.add_argument("--patterns", default="none", help=f"of {patterns}, with commas; none; all")
    parser.add_argument("--untracked-share", type=float, default=0.03, help="of the messages")
    parser.add_argument("--mutant", default="", help="break the agents: detached or declared")
    parser.add_argument("--fault-share", type=float, default=0.5, help="of the waves")
    parser.add_argument("--long-share", type=float, default=0.12, help="of the faults: they last")
    parser.add_argument("--push-share", type=float, default=0.0, help="of the messages by A2A")
    parser.add_argument("--cancel-share", type=float, default=0.06, help="of the cascades")
    parser.add_argument("--give-up", type=float, default=6.0, help="seconds that nodes wait")
    parser.add_argument("--seconds", type=float, default=3000.0, help="begin no wave after these")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep the log and the journals here")


def mix_of(chosen: argparse.Namespace) -> plans.Mix:
    """Make of the options what waves are made of."""
    mix = plans.Mix(seed=chosen.seed, width=chosen.width, long_share=chosen.long_share)
    mix.fault_share, mix.cancel_share = chosen.fault_share, chosen.cancel_share
    mix.push_share = chosen.push_share
    mix.agents = tuple("abcdefghijklmnopqrstuvwxyz"[: max(2, chosen.agents)])
    mix.untracked_share = chosen.untracked_share
    if chosen.faults == "none":
        mix.fault_share = 0.0
    elif chosen.faults:
        mix.faults = _chosen("faults", chosen.faults, get_args(plans.FaultKind))
    if chosen.patterns != "none":
        mix.patterns = _chosen("patterns", chosen.patterns, plans.PATTERNS)
        if chosen.kinds != "http":
            sys.exit("--patterns are those of agents of --kinds http")
    return mix


def _chosen(what: str, text: str, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what an option names, or end with what it may name."""
    chosen = known if text == "all" else tuple(text.split(","))
    if unknown := set(chosen) - set(known):
        sys.exit(f"--{what} has {', '.join(sorted(unknown))}, and may have {', '.join(known)}")
    return chosen


async def run(chosen: argparse.Namespace, mix: plans.Mix, folder: Path) -> tuple[Truth, Judgement, dict[str, plans.Casc]]:  # fmt: skip
    """Run waves, and judge them."""
    from tests.integration.mesh import judge, rig, truth  # noqa: PLC0415 - they need httpx

    patience = rig.PATIENCE | {"give_up": chosen.give_up}
    mesh = rig.Rig(folder, mix, patience, tuple(chosen.kinds.split(",")), chosen.mutant)
    begin = time.monotonic()
    count = -(-chosen.cascades // mix.width)
    numbers = range(count) if chosen.wave is None else (chosen.wave,)
    async with mesh.running():
        for number in numbers:
            if time.monotonic() - begin > chosen.seconds:
                break
            wave = mix.wave(number)
            await mesh.run(wave)
            progress(f"wave {number + 1}/{count}, {time.monotonic() - begin:.0f} s, {[fault.kind for fault in wave.faults]}")  # fmt: skip
        await asyncio.sleep(_LINGER_SECONDS)
    known = truth.read(mesh.log_path)
    made = judge.judge(known, mesh.cascades, mesh.untold, mesh.patience["give_up"])
    for note in mesh.notes:
        made.findings.append(judge.Finding(note["what"], "", json.dumps(note)))
    return known, made, mesh.cascades


def progress(text: str) -> None:
    """Say how far a run has come."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    else:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def table(made: Judgement) -> str:
    """Format a judgement as text."""
    told = made.to_json()
    findings = told.pop("findings")
    lines = [f"{name.replace('_', ' '):24} {value}" for name, value in told.items()]
    lines += [f"WRONG {one['what']}: {one['cascade']} {one['details']}" for one in findings]
    return "\n".join(lines)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    chosen = parser.parse_args()
    with_packages()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        _, made, _ = asyncio.run(run(chosen, mix_of(chosen), folder))
    sys.stderr.write("\n")
    sys.stdout.write((json.dumps(made.to_json()) if chosen.json else table(made)) + "\n")
    return bool(made.findings)


if __name__ == "__main__":
    sys.exit(main())
