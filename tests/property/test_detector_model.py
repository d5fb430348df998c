"""Random lives of nodes that hand work to each other, against the truth about that work.

The network does what it is told: it brings messages late, twice, in any order or never. Nodes die
between any two steps, and in the midst of one, after any of the records that it writes; the next process
has what was written, and no more. A verdict is never wrong, an id is run once, receipts count what
happened; and when the world is quiet, every cascade has a verdict. A failure prints the steps, and a
line that replays them. `QUIESCE_MODEL_EXAMPLES=20000` makes it a long run, `QUIESCE_MODEL_SHRINK=1` a failure short (that takes
minutes).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from quiesce.mesh.protocol.receipt import edge_mark
from quiesce.mesh.runtime.delegation import RESULTS
from tests.property.effort import effort
from tests.property.mesh_truth import OPAQUE, Cascade, Crashed, Fact, Message, Node, Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quiesce.mesh.protocol.facts import Answer
    from quiesce.mesh.protocol.receipt import Status
    from quiesce.mesh.protocol.states import Sending

    T = TypeVar("T")

ROUNDS_MAX = 40  # until it is quiet: a few for each level of the deepest cascade
NAMES = ("a", "b", "c")

which = st.integers(0, 63)  # of those that there are: taken modulo their number
names = st.sampled_from(NAMES)
statuses = st.sampled_from(["done", "done", "failed", "cancelled"])


def pick(items: Sequence[T], number: int) -> T:
    """Choose one."""
    return items[number % len(items)]


class Mesh(RuleBasedStateMachine):
    """Three nodes, and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.truth = Truth()
        self.nodes: dict[str, Node] = {}
        self.network: list[Message] = []
        self.history: dict[bytes, Message] = {}
        """A copy of each message that may come again."""
        self.ids = itertools.count(1)

    @initialize(
        forgetful=st.sampled_from(["", "", "", "b", "bc", "a"]), sends=st.lists(names, max_size=3)
    )
    def start(self, forgetful: str, sends: list[str]) -> None:
        """Start the nodes, some of them without a journal, and a cascade."""
        self.truth.forgetful = frozenset(forgetful)
        self.nodes = {name: Node(name, name not in forgetful, self.truth) for name in NAMES}
        self.begin("a")
        for name in sends:
            self.send(0, name, "away", reply=True)

    # What there is to choose from.

    def up(self) -> list[Node]:
        """Return the nodes that are there."""
        return [node for node in self.nodes.values() if node.is_up]

    def each(self, what: str) -> list[tuple[Node, bytes]]:
        """Return the edges that nodes have something to do for, each with its node."""
        return [(node, edge) for node in self.up() for edge in getattr(node, what)]

    def works(self, state: str) -> list[tuple[Node, bytes]]:
        """Return the work that is running, or not answered."""
        if state == "running":
            return [
                (node, edge) for node, edge in self.each("works") if node.works[edge].is_running
            ]
        return [
            (node, edge) for node, edge in self.each("works") if not node.works[edge].is_answered
        ]

    def step(self, act: Callable[..., object], *args: Any) -> None:
        """Do something that a crash may tear."""
        with contextlib.suppress(Crashed):
            act(*args)

    # Work.

    @rule(name=names)
    def begin(self, name: str) -> None:
        """Begin a cascade."""
        node = self.nodes[name]
        if node.is_up:
            self.step(self._begin, node)

    def _begin(self, node: Node) -> None:
        edge, cascade = self.new_id(12), self.new_id(16)
        self.truth.facts[edge] = Fact(edge, cascade, node.name, is_root=True)
        self.truth.cascades[cascade] = Cascade()
        hop = node.detector.begin(edge, cascade)
        node.commit()
        node.run(edge, hop)
        node.works[edge].is_answered = True  # nobody has asked

    def new_id(self, size: int) -> bytes:
        """Return an id that nobody else has."""
        return next(self.ids).to_bytes(size, "big")

    @precondition(lambda self: self.works("running"))
    @rule(number=which, status=statuses, rides=st.booleans())
    def end(self, number: int, status: Status, *, rides: bool) -> None:
        """End the work of a hop; what it is sending is in doubt."""
        self.step(self._end, *pick(self.works("running"), number), status, rides)

    def _end(self, node: Node, edge: bytes, status: Status, rides: bool = False) -> None:  # noqa: FBT001, FBT002 - as `step` gives it
        for sent, hop in list(node.sending.items()):
            if hop == edge:
                self._resolve(node, sent, "is in doubt")
        node.stop_running(edge)
        self.truth.ending = {edge: status}
        try:
            ended = node.works[edge].hop
            if not (rides and status == "done" and node.detector.finish(ended, 0)):
                node.detector.end(ended, status)
            node.commit()
        finally:
            self.truth.ending = {}

    @precondition(lambda self: self.works("running"))
    @rule(number=which)
    def cancel(self, number: int) -> None:
        """Cancel a hop, and all below it."""
        node, edge = pick(self.works("running"), number)
        node.detector.cancel(node.works[edge].hop)
        self.step(node.commit)

    # Messages.

    @precondition(lambda self: self.works("running"))
    @rule(
        number=which, to=names, reply=st.booleans(),
        how=st.sampled_from(["away", "away", "away", "not sent", "opaque"]),
    )  # fmt: skip
    def send(self, number: int, to: str, how: str, *, reply: bool) -> None:
        """Send a message from a hop."""
        self.step(self._send, *pick(self.works("running"), number), to, how, reply)

    def _send(self, node: Node, hop: bytes, to: str, how: str, reply: bool) -> None:  # noqa: FBT001 - it is passed on
        edge = self.new_id(12)
        node.reply = node.name if reply else None
        node.detector.send(node.works[hop].hop, edge, OPAQUE if how == "opaque" else to)
        node.commit()
        node.sending[edge] = hop
        if how == "away":
            self.history[edge] = Message("request", to, edge, node.name, node.life)
            self.network.append(self.history[edge])
        else:
            self._resolve(node, edge, "is opaque" if how == "opaque" else "is not sent")

    def _resolve(self, node: Node, edge: bytes, how: Sending) -> None:
        if node.sending.pop(edge, None) is not None:
            self.truth.facts[edge].known_taken = how == "is taken"
            node.detector.sent(edge, how)
            node.commit()

    @precondition(lambda self: self.each("sending"))
    @rule(number=which, again=st.booleans())
    def wait_no_more(self, number: int, *, again: bool) -> None:
        """Stop waiting for the answer to a message: send it again, or record the doubt."""
        node, edge = pick(self.each("sending"), number)
        if again and edge in self.history:
            self.network.append(replace(self.history[edge], life=node.life))
        else:
            self.step(self._resolve, node, edge, "is in doubt")

    @precondition(lambda self: self.works("not answered"))
    @rule(number=which)
    def answer(self, number: int) -> None:
        """Let a handler return, so that the message is answered."""
        self.step(self._answer, *pick(self.works("not answered"), number))

    def _answer(self, node: Node, edge: bytes) -> None:
        node.works[edge].is_answered = True
        answer = node.detector.ride(edge)
        node.commit()
        self._say("response", self.truth.facts[edge].sender, node, edge, answer)

    def _say(
        self, kind: str, to: str, node: Node, edge: bytes, what: Any, life: int | None = None
    ) -> None:
        now = self.nodes[to].life if life is None else life
        self.network.append(Message(kind, to, edge, node.name, now, what))

    @precondition(lambda self: self.network)
    @rule(number=which, refuse=st.sampled_from([False, False, False, True]))
    def deliver(self, number: int, *, refuse: bool) -> None:
        """Bring a message; a request may be refused."""
        message = self.network.pop(number % len(self.network))
        self.bring(message, refuse=refuse)

    def bring(self, message: Message, *, refuse: bool = False) -> None:
        """Return a message to its node, if it is there."""
        node = self.nodes[message.to]
        if not node.is_up:
            return
        if message.kind == "request":
            self.step(self._request, node, message, refuse)
        elif message.kind in {"ask", "receipt"} or message.life == node.life:
            self.step(getattr(self, f"_{message.kind}"), node, message)

    def _request(self, node: Node, message: Message, refuse: bool) -> None:  # noqa: FBT001 - it is passed on
        edge, fact = message.edge, self.truth.facts[message.edge]
        if refuse:
            answer = node.detector.refuse(edge)
        else:
            answer = node.detector.arrive(edge, fact.cascade, edge_mark(fact.hop), fact.reply)
        node.commit()
        fact.refused = fact.refused or answer.kind in {"never", "not now"}
        if answer.kind == "run":
            node.run(edge, node.detector.known.hop(edge))
        else:
            self._say("response", message.sender, node, edge, answer, message.life)

    def _response(self, node: Node, message: Message) -> None:
        answer: Answer = message.what
        if answer.receipt is not None:
            node.detector.receive(message.edge, answer.receipt)
            node.commit()
        self._resolve(node, message.edge, RESULTS[answer.kind])

    def _ask(self, node: Node, message: Message) -> None:
        edge, fact = message.edge, self.truth.facts[message.edge]
        answer = node.detector.ask(edge, cancel=message.what)
        node.commit()
        if answer.kind in {"unknown", "not now"}:
            assert not node.lasting
            known = edge in node.works and fact.taken_as is None
            assert not known, "what is worked on is not known"
            self.truth.cascades[fact.cascade].may_be_unknown = True
        self._say("told", message.sender, node, edge, answer, message.life)

    def _told(self, node: Node, message: Message) -> None:
        node.detector.told(message.edge, message.what)
        node.commit()

    def _receipt(self, node: Node, message: Message) -> None:
        node.detector.receive(message.edge, message.what)
        node.commit()
        self._say("taken", message.sender, node, message.edge, None, message.life)

    def _taken(self, node: Node, message: Message) -> None:
        node.posts.pop(message.edge, None)
        node.detector.taken(message.edge)
        node.commit()

    @precondition(lambda self: self.network)
    @rule(number=which, lost=st.booleans())
    def lose_or_double(self, number: int, *, lost: bool) -> None:
        """Lose a message, or have it twice."""
        message = pick(self.network, number)
        if lost:
            self.network.remove(message)
        else:
            self.network.append(message)

    # What nodes do by themselves.

    @precondition(lambda self: self.each("watched"))
    @rule(number=which)
    def ask(self, number: int) -> None:
        """Ask how an edge stands."""
        self._ask_for(*pick(self.each("watched"), number))

    def _ask_for(self, node: Node, edge: bytes) -> None:
        to = self.truth.facts[edge].to
        if to == OPAQUE:  # it was sent before a restart; nobody answers
            self._give_up(node, edge)
        else:
            self._say("ask", to, node, edge, node.watched[edge], node.life)

    @precondition(lambda self: self.each("watched"))
    @rule(number=which)
    def give_up(self, number: int) -> None:
        """Hear nothing of a node for too long."""
        self._give_up(*pick(self.each("watched"), number))

    def _give_up(self, node: Node, edge: bytes) -> None:
        self.truth.cascades[self.truth.facts[edge].cascade].may_be_unknown = True
        node.detector.give_up(edge, "")
        self.step(node.commit)

    @precondition(lambda self: self.each("posts"))
    @rule(number=which)
    def post(self, number: int) -> None:
        """Send a receipt."""
        self._post(*pick(self.each("posts"), number))

    def _post(self, node: Node, edge: bytes) -> None:
        to, receipt = node.posts[edge]
        self._say("receipt", to, node, edge, receipt, node.life)

    @precondition(lambda self: self.each("untold"))
    @rule(number=which)
    def tell(self, number: int) -> None:
        """Report the verdict of a cascade to those that wait for it."""
        self._tell(*pick(self.each("untold"), number))

    def _tell(self, node: Node, edge: bytes) -> None:
        node.untold.discard(edge)
        node.detector.taken(edge)
        self.step(node.commit)

    @rule(name=names)
    def compact(self, name: str) -> None:
        """Write anew only what is needed."""
        node = self.nodes[name]
        if node.is_up and node.lasting:
            node.journal = list(node.detector.known.snapshot())

    @rule(name=names)
    def age(self, name: str) -> None:
        """Forget what was over the last time, where no copy and no question comes any more."""
        node = self.nodes[name]
        facts = self.truth.facts
        if not node.is_up or any(facts[edge].taken_as is None for edge in node.aging):
            return
        self.network = [
            one
            for one in self.network
            if one.edge not in node.aging or one.kind not in {"request", "ask"}
        ]
        self.history = {edge: one for edge, one in self.history.items() if edge not in node.aging}
        node.detector.known.age(0.0)
        node.aging = {edge for edge, fact in facts.items() if fact.to == name and not fact.is_root}
        self.step(node.commit)  # every step of a node does: what is known is what is written

    # The end of a process, and the next.

    @precondition(lambda self: self.up())
    @rule(number=which, compacts=st.booleans(), returns=st.booleans())
    def crash(self, number: int, *, compacts: bool, returns: bool) -> None:
        """Die, perhaps just after the journal was compacted, and perhaps be back at once."""
        node = pick(self.up(), number)
        if compacts:
            self.compact(node.name)
        node.crash()
        if returns:
            self.step(node.restart)

    @precondition(lambda self: self.up())
    @rule(number=which, records=st.integers(0, 3))
    def tear(self, number: int, records: int) -> None:
        """Die in the next step that writes, after some records of it."""
        pick(self.up(), number).fuse = records

    @precondition(lambda self: len(self.up()) < len(self.nodes))
    @rule(number=which)
    def restart(self, number: int) -> None:
        """Restart a node that is down."""
        down = [node for node in self.nodes.values() if not node.is_up]
        self.step(pick(down, number).restart)

    # In the end.

    @rule(really=st.sampled_from([False, False, True]))
    def rest(self, *, really: bool) -> None:
        """Come to rest in between, so that what comes later comes after the verdict."""
        if really:
            self.calm()

    def calm(self) -> None:
        """Let everybody come back, and everything arrive: then every cascade has a verdict."""
        for node in self.nodes.values():
            node.fuse = None
            if not node.is_up:
                node.restart()
        for _ in range(ROUNDS_MAX):
            if not self._round():
                break
        else:
            message = "it does not come to rest"
            raise AssertionError(message)
        for fact in self.truth.facts.values():
            cascade = self.truth.cascades[fact.cascade]
            if fact.is_root and fact.begun and not cascade.home_lost:
                assert cascade.verdict is not None, "no verdict"

    def _round(self) -> bool:
        """Do everything that is to be done once; tells whether there was anything."""
        before = len(self.network)
        todo: list[tuple[str, Callable[..., object], tuple[Any, ...]]] = [
            ("sending", self._resolve, ("is in doubt",)),
            ("watched", self._ask_for, ()),
            ("posts", self._post, ()),
            ("untold", self._tell, ()),
        ]
        count = before
        for node, edge in self.works("running"):
            self._end(node, edge, "done")
            count += 1
        for node, edge in self.works("not answered"):
            self._answer(node, edge)
            count += 1
        for what, act, more in todo:
            for node, edge in self.each(what):
                act(node, edge, *more)
                count += 1
        messages, self.network = self.network, []
        for message in messages:
            self.bring(message)
        return bool(count)

    def teardown(self) -> None:
        """Come to rest; and whatever comes again after another restart is not run again."""
        if sys.exc_info()[0] is not None or not self.nodes:
            return
        self.calm()
        for node in self.nodes.values():
            if node.lasting:
                node.crash()
                node.restart()
        for message in list(self.history.values()):
            if self.nodes[message.to].lasting:
                self.bring(message)
        self.calm()


def test_what_was_taken_is_not_undone_by_a_node_without_a_journal() -> None:
    """It runs there, its process dies, and the next one refuses a copy: it may have handed on work."""
    mesh = Mesh()
    mesh.start("b", ["b"])
    mesh.lose_or_double(0, lost=False)
    mesh.deliver(0, refuse=False)
    mesh.answer(0)
    mesh.deliver(1, refuse=False)
    mesh.crash(1, compacts=False, returns=True)
    mesh.deliver(0, refuse=True)
    mesh.teardown()


TestMesh = Mesh.TestCase
TestMesh.settings = effort(examples=150, steps=50)
