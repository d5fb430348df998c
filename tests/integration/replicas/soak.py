"""A soak of replicas: each agent is several processes that share a store, and single ones are killed, stopped and ended.

`python -m tests.integration.replicas.soak --cascades 200 --seed 7 --faults all --store sqlite`. The exit code is 1 if
any verdict was wrong, or there was none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.mesh import plans
from tests.integration.mesh.soak import progress, with_packages

if TYPE_CHECKING:
    from tests.integration.mesh.judge import Judgement

FAULTS: tuple[plans.FaultKind, ...] = (
    "kill", "kill", "term", "stop", "copy", "repeat", "lose", "gateway", "cut", "hang", "slow", "full",
)  # fmt: skip
_LINGER_SECONDS = 2.5  # more than the longest delay of a copy
_LATE_SECONDS = 15.0  # from the true end to the verdict, where no fault was


def options(parser: argparse.ArgumentParser) -> None:
    """Describe what a run is made of."""
    parser.add_argument("--cascades", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--width", type=int, default=20, help="cascades at once")
    parser.add_argument("--agents", type=int, default=3, help="that take part")
    parser.add_argument("--replicas", type=int, default=3, help="of each agent")
    parser.add_argument("--beginners", type=int, default=1, help="replicas that begin cascades")
    parser.add_argument("--lock-seconds", type=float, default=0.0, help="of the store, per wave")
    parser.add_argument("--faults", default="all", help=f"of {','.join(FAULTS)}; none; all")
    parser.add_argument("--fault-share", type=float, default=0.8, help="of the waves")
    parser.add_argument("--faults-most", type=int, default=3, help="in a wave")
    parser.add_argument("--long-share", type=float, default=0.2, help="of the faults: they last")
    parser.add_argument("--cancel-share", type=float, default=0.05, help="of the cascades")
    parser.add_argument(
        "--patterns", default="none", help="of ways to leave work behind; none; all"
    )
    parser.add_argument("--store", default="sqlite", help="sqlite, or an address")
    parser.add_argument("--mutant", default="", help="how the agents are broken: see broken.py")
    parser.add_argument("--verdict-seconds", type=float, default=40.0, help="for each wave")
    parser.add_argument("--seconds", type=float, default=3000.0, help="begin no wave after these")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep the log and the store here")


def mix_of(chosen: argparse.Namespace) -> plans.Mix:
    """Make of the options what waves are made of."""
    mix = plans.Mix(seed=chosen.seed, width=chosen.width, long_share=chosen.long_share, odd=())
    mix.fault_share, mix.cancel_share = chosen.fault_share, chosen.cancel_share
    mix.faults_most = chosen.faults_most
    mix.untracked_share = 0.0
    mix.agents = ("planner", "hotel", "bank", "cinema", "school")[: max(2, chosen.agents)]
    if chosen.faults == "none":
        mix.fault_share = 0.0
    else:
        known = tuple(chosen.faults.split(",")) if chosen.faults != "all" else FAULTS
        if unknown := set(known) - set(FAULTS):
            sys.exit(f"--faults has {', '.join(sorted(unknown))}, and may have {', '.join(FAULTS)}")
        mix.faults = known
    if chosen.patterns != "none":
        names = plans.PATTERNS if chosen.patterns == "all" else chosen.patterns.split(",")
        mix.patterns = tuple(one for one in names if one not in {"deque-send", *plans.UNTRACKED})
    return mix


async def run(chosen: argparse.Namespace, mix: plans.Mix, folder: Path) -> Judgement:
    """Run waves, and judge them."""
    from tests.integration.mesh import judge, truth  # noqa: PLC0415 - they need httpx
    from tests.integration.replicas.rig import ReplicaRig  # noqa: PLC0415 - as above

    mesh = ReplicaRig(folder, mix, chosen.store, chosen.replicas, chosen.mutant)
    mesh.verdict_seconds = chosen.verdict_seconds
    mesh.beginners, mesh.lock_seconds = chosen.beginners, chosen.lock_seconds
    begin = time.monotonic()
    count = -(-chosen.cascades // mix.width)
    async with mesh.running():
        for number in range(count):
            if time.monotonic() - begin > chosen.seconds:
                break
            wave = mix.wave(number)
            await mesh.run(wave)
            progress(f"wave {number + 1}/{count}, {time.monotonic() - begin:.0f} s, {[(one.kind, one.agent) for one in wave.faults]}")  # fmt: skip
        await asyncio.sleep(_LINGER_SECONDS)
    known = truth.read(mesh.log_path)
    made = judge.judge(known, mesh.cascades, mesh.untold, mesh.patience["give_up"])
    late = [seconds for seconds in made.delays if seconds > _LATE_SECONDS]
    made.findings += [judge.Finding("a late verdict", "", f"{seconds:.1f} s") for seconds in late]
    for note in mesh.notes:
        made.findings.append(judge.Finding(note["what"], "", json.dumps(note)))
    return made


def tally(made: Judgement) -> dict[str, Any]:
    """Return what was found, by number."""
    told = made.to_json()
    whats = [finding.what for finding in made.findings]
    told["run_twice"] = sum(what == "a message was worked on twice" for what in whats)
    told["no_verdict"] = sum(what.startswith("no verdict") for what in whats)
    told["left"] = sum(what in {"did not end", "rows are left open"} for what in whats)
    return {name: told[name] for name in (*(one for one in told if one != "findings"), "findings")}


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    options(parser)
    chosen = parser.parse_args()
    with_packages()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        made = asyncio.run(run(chosen, mix_of(chosen), folder))
    told = tally(made)
    if chosen.json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        findings = told.pop("findings")
        lines = [f"{name.replace('_', ' '):24} {value}" for name, value in told.items()]
        lines += [f"WRONG {one['what']}: {one['cascade']} {one['details']}" for one in findings]
        sys.stdout.write("\n".join(["", f"seed {chosen.seed}", *lines]) + "\n")
    return bool(made.findings)


if __name__ == "__main__":
    sys.exit(main())
