"""Commands for the operator of a mesh with a shared store: `python -m quiesce.mesh COMMAND STORE`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quiesce.errors import QuiesceError
from quiesce.mesh.ledger import Ledger
from quiesce.mesh.runtime.settlement import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quiesce.mesh.runtime.settlement import Settlement

__all__: list[str] = []

OK, NOT_OK, FAILED, NOT_YET = 0, 1, 2, 3
"""Exit codes: all is well; the verdict is not ok; the command could not be carried out; the verdict is not known yet."""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _show(found: Any, text: str, *, as_json: bool) -> None:
    _say(json.dumps(found, indent=1) if as_json else text)


async def _init(options: argparse.Namespace) -> int:
    async with Ledger(options.store, makes=True) as ledger:
        _say(f"{ledger.label}: ready")
    return OK


async def _list(options: argparse.Namespace) -> int:
    found = await Ledger(options.store).cascades(options.most)
    text = "\n".join(map(str, found)) or "no cascades"
    _show([asdict(one) for one in found], text, as_json=options.json)
    return OK


async def _replicas(options: argparse.Namespace) -> int:
    found = await Ledger(options.store).replicas()
    lines = [
        f"{one.incarnation}  {one.state:5}  {one.agent}  {one.name}  heard of {one.age:.0f} s ago"
        + (f"  ({one.why})" if one.why else "")
        for one in found
    ]
    _show([asdict(one) for one in found], "\n".join(lines) or "no replicas", as_json=options.json)
    return OK


async def _settled(options: argparse.Namespace) -> int:
    verdict = await Ledger(options.store).settled(
        options.cascade, options.within, require=options.require
    )
    _show(verdict.to_json(), str(verdict), as_json=options.json)
    return _code_of(verdict)


def _code_of(verdict: Settlement) -> int:
    if isinstance(verdict, Unknown) and not verdict.is_final:
        return NOT_YET
    return OK if verdict.ok else NOT_OK


async def _frontier(options: argparse.Namespace) -> int:
    found = await Ledger(options.store).frontier(options.cascade)
    _show(found.to_json(), str(found), as_json=options.json)
    return OK


async def _bury(options: argparse.Namespace) -> int:
    ledger = Ledger(options.store)
    if await ledger.bury(options.incarnation, options.why, force=options.force):
        _say(
            f"{options.incarnation} is declared dead: a replica of its agent takes over, as soon as one runs"
        )
        return OK
    sys.stderr.write(
        f"{options.incarnation} is not alive in the store: `replicas` lists the incarnations and their states\n"
    )
    return FAILED


async def _prune(options: argparse.Namespace) -> int:
    _say(f"{await Ledger(options.store).prune()} rows removed")
    return OK


async def _doctor(options: argparse.Namespace) -> int:
    """Print what is wrong with a store and its replicas, and what to do."""
    ledger = Ledger(options.store)
    found = await ledger.complaints()
    _show(found, "\n".join(found) or f"{ledger.label}: nothing is wrong", as_json=options.json)
    return NOT_OK if found else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m quiesce.mesh",
        description="Look at the shared store of a mesh: sqlite:///path, postgresql://… or nats://…",
        epilog="Exit codes: 0 all is well, 1 the verdict is not ok (or `doctor` has found something), 2 the command failed,"
        " 3 the verdict is not known yet.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, fn: Callable[[argparse.Namespace], Coroutine[Any, Any, int]], text: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument(
            "store", metavar="STORE", help="the address that the nodes have as store="
        )
        made.add_argument("--json", action="store_true", help="print JSON")
        made.set_defaults(run=fn)
        return made

    add("init", _init, "Make the tables of a store, or check that they are right")
    add("list", _list, "List the newest cascades").add_argument(
        "--most", type=int, default=100, help="how many (100)"
    )
    settled = add("settled", _settled, "Wait for the verdict on a cascade")
    settled.add_argument("cascade", help="the id of the cascade")
    settled.add_argument("--within", type=float, default=None, help="seconds to wait (for ever)")
    settled.add_argument("--require", choices=("full", "participants"), default="full")
    add("frontier", _frontier, "List the hops of a cascade that have not ended").add_argument(
        "cascade"
    )
    add("replicas", _replicas, "List the replicas of all agents")
    bury = add("bury", _bury, "Declare a replica dead, because you know that its process has ended")
    bury.add_argument("incarnation", help="as `replicas` lists it")
    bury.add_argument("--why", required=True, help="how you know it; it is kept in the store")
    bury.add_argument("--force", action="store_true", help="also if it was heard of in its lease")
    add("prune", _prune, "Remove rows that are not needed any more (nodes do this, too)")
    add("doctor", _doctor, "Say what is wrong with the store and its replicas, and what to do")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = asyncio.run(options.run(options))
    except QuiesceError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
