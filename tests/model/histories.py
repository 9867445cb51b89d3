"""Random histories of a queue: what may happen to it, and in what mixtures.

A history is a list of steps over five ids that are used again and again, one or two topics and two workers.
Steps name what they act on by position ("the second delivery in hand"), so that any part of a history is a
history: that is what makes failing ones shrink.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from hypothesis import strategies as st

from mx_rmq.message import LANES, Lane
from mx_rmq.storage.contract import Want
from tests.model.invariants import IDS, TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hypothesis.strategies import DrawFn

T = TypeVar("T")

# -- the steps


class Spec(NamedTuple):
    """A message to produce, under a free id (small picks) or one that is taken."""

    pick: int
    lane: Lane
    ttl: float | None
    delay: float


class Produce(NamedTuple):
    topic: str
    specs: tuple[Spec, ...]
    delayed: bool
    producer: str
    """Empty for a call that is not remembered."""


class Refused(NamedTuple):
    """Produce a good message together with one the script must refuse."""

    topic: str
    spec: Spec
    delayed: bool


class Take(NamedTuple):
    """Claim."""

    topic: str
    limit: int
    lease: float
    worker: str
    lost: bool
    """Its reply never arrives: nobody knows the tokens."""
    woken: bool
    """By the wake token, which is taken."""


class TakeSome(NamedTuple):
    """Claim from some topics in one call, as a worker does that has nothing to do."""

    wants: tuple[Want, ...]
    runs: int
    lease: float
    worker: str
    lost: bool
    woken: bool

    @property
    def topic(self) -> str:
        """The topic of the wake token."""
        return self.wants[0].topic


class Monitor(NamedTuple):
    """Take over what is late."""

    limit: int
    lease: float
    worker: str
    lost: bool
    patience: float | None
    """How many seconds later the call still counts; sent again later it changes nothing."""


class Settle(NamedTuple):
    verb: str
    picks: tuple[int, ...]
    aim: str
    """held: at leases that are current; doubled: so, perhaps at one of them twice; old: at any ever held;
    forged: at tokens never given; astray: at another topic."""
    seconds: float


class Promote(NamedTuple):
    limit: int
    woken: bool


class NextDelay(NamedTuple):
    woken: bool


class Revive(NamedTuple):
    """Replay."""

    picks: tuple[int, ...]
    lane: Lane
    ttl: float | None
    seen: int
    """Which of its deaths the operator has looked at: 0 none, 1 the last, 2 an earlier one."""
    rewrite: bool


class Cancel(NamedTuple):
    picks: tuple[int, ...]


class Hasten(NamedTuple):
    """Make delayed messages due now."""

    picks: tuple[int, ...]


class Delete(NamedTuple):
    """Delete dead messages."""

    picks: tuple[int, ...]
    seen: int
    """As above."""


class Restore(NamedTuple):
    """Put messages of an export back into the DLQ, under ids that are free (small picks) or taken."""

    topic: str
    picks: tuple[int, ...]
    age: float
    error: int


class Audit(NamedTuple):
    """Examine everything and mend what is wrong with it: nothing is."""


class Trim(NamedTuple):
    max_age: float | None
    max_count: int | None
    limit: int


class Purge(NamedTuple):
    topic: str
    limit: int


class Switch(NamedTuple):
    """Pause or resume a topic, or give back a token that one cannot use."""

    verb: str
    topic: str


class Seal(NamedTuple):
    """The queue gets other shards: this one takes no new messages."""


class Taken(NamedTuple):
    """Ask which ids are taken, as a producer does that stores on a new shard."""


class Carry(NamedTuple):
    """Keep ids taken that were done on an older shard."""

    picks: tuple[int, ...]
    seconds: float


class Forget(NamedTuple):
    """Look which topics have been unused, and forget those."""

    topics: tuple[str, ...]
    idle: float


class Pass(NamedTuple):
    """Let time pass, or step the server's clock back."""

    seconds: float


class Reach(NamedTuple):
    """Let time pass until so many ms after the next due time or deadline."""

    ms: int


class Stir(NamedTuple):
    """Somebody who waited takes a wake token: a worker of a topic, or the scheduler."""

    topic: str


class FlushScripts(NamedTuple):
    pass


class Deface(NamedTuple):
    """Another program writes a number of 400 digits where a message's count or expiry is kept."""

    pick: int
    what: str
    """The part of the text: ``count`` or ``expiry``."""


class Fill(NamedTuple):
    """The server reaches its maxmemory, or has room again."""

    full: bool


class Again(NamedTuple):
    """Send the n-th call before this one again, with its old arguments."""

    n: int


class Twice(NamedTuple):
    """The reply was lost, the client sends the call again."""

    step: Any


# -- how they are mixed


class Choose(Protocol):
    """Picks one of several; the first is the simplest."""

    def __call__(self, options: Sequence[T], /) -> T: ...


class Mixer:
    """Makes histories out of choices, wherever those come from.

    Each history has its own mixture: in one topic and one lane messages stand behind each other, and what is
    left out lets the rest go further.
    """

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.topics = choose((TOPICS[:1], TOPICS))
        self.lanes = choose((("normal",), LANES))
        self.menu = [kind for kind in MENU if choose((True, True, True, False))] or MENU

    def history(self, steps: int) -> list[Any]:
        """At most so many steps or scenes."""
        history: list[Any] = []
        for _ in range(steps):
            for step in self.choose(self.menu)(self):
                # A step that is made and left out shrinks better than a list that may be shorter.
                history += ((), (step,), (Twice(step),))[self.choose(TIMES)]
        return history

    # -- arguments

    def topic(self) -> str:
        return self.choose(self.topics)

    def lane(self) -> Lane:
        return self.choose(self.lanes)

    def ttl(self) -> float | None:
        return self.choose((None, None, None, 2.0, 20.0, 0.0))

    def lease(self) -> float:
        return self.choose((5.0, 30.0, 0.001))

    def limit(self) -> int:
        return self.choose((1, 1, 2, 2, 4, 0, 1000))

    def worker(self) -> str:
        return self.choose(("w1", "w2"))

    def producer(self) -> str:
        return self.choose(("", "p", "r"))

    def maybe(self) -> bool:
        return self.choose((False, True))

    def seldom(self) -> bool:
        return self.choose((False, False, False, True))

    def seen(self) -> int:
        return self.choose((0, 1, 2))

    def picks(self) -> tuple[int, ...]:
        return tuple(self.choose(range(5)) for _ in range(self.choose((1, 1, 2, 3))))

    def spec(self) -> Spec:
        delay = self.choose((1.0, 5.0, 30.0, 0.0, 0.001))
        return Spec(self.choose(range(len(IDS))), self.lane(), self.ttl(), delay)

    def crowd(self, size: int) -> tuple[Spec, ...]:
        lane, ttl = self.lane(), self.ttl()
        return tuple(Spec(n, lane, ttl, 0.0) for n in range(size))

    # -- kinds of steps, and short scenes

    def produce(self) -> Iterable[Any]:
        specs = tuple(self.spec() for _ in range(self.choose((1, 2, 3, 4))))
        yield Produce(self.topic(), specs, False, self.producer())

    def produce_many(self) -> Iterable[Any]:
        yield Produce(self.topic(), self.crowd(len(IDS)), False, "")

    def produce_delayed(self) -> Iterable[Any]:
        specs = tuple(self.spec() for _ in range(self.choose((1, 2))))
        yield Produce(self.topic(), specs, True, self.producer())

    def refused(self) -> Iterable[Any]:
        yield Refused(self.topic(), self.spec(), self.maybe())

    def take(self) -> Iterable[Any]:
        yield Take(self.topic(), self.limit(), self.lease(), self.worker(), self.seldom(), self.maybe())

    def take_some(self) -> Iterable[Any]:
        topics = self.choose((self.topics, self.topics[::-1]))
        wants = tuple(Want(topic, self.limit(), self.choose((1, 2))) for topic in topics)
        runs = self.choose((1, 1, 2, 3, 0, 1000))
        yield TakeSome(wants, runs, self.lease(), self.worker(), self.seldom(), self.maybe())

    def monitor(self) -> Iterable[Any]:
        patience = self.choose((None, None, 1.0, 0.0, -0.001))
        yield Monitor(self.limit(), self.lease(), self.worker(), self.seldom(), patience)

    def settle(self, verb: str) -> Iterable[Any]:
        aim = self.choose((*["held"] * 7, "old", "old", "doubled", "forged", "astray"))
        yield Settle(verb, self.picks(), aim, self.choose((0.0, 1.0, 5.0, 30.0)))

    def promote(self) -> Iterable[Any]:
        yield Promote(self.choose((1000, 1, 2)), self.maybe())

    def next_delay(self) -> Iterable[Any]:
        yield NextDelay(self.maybe())

    def pass_time(self) -> Iterable[Any]:
        yield Pass(self.choose((1.0, 5.0, 30.0, 0.0005, 61.0, -0.4, -0.000002, -40.0)))

    def reach(self) -> Iterable[Any]:
        yield Reach(self.choose((0, -1)))

    def again(self) -> Iterable[Any]:
        yield Again(self.choose(range(24)))

    def revive(self) -> Iterable[Any]:
        yield Revive(self.picks(), self.lane(), self.ttl(), self.seen(), self.maybe())

    def cancel(self) -> Iterable[Any]:
        yield Cancel(self.picks())

    def hasten(self) -> Iterable[Any]:
        yield Hasten(self.picks())

    def delete(self) -> Iterable[Any]:
        yield Delete(self.picks(), self.seen())

    def restore(self) -> Iterable[Any]:
        yield Restore(self.topic(), self.picks(), self.choose((0.0, 5.0, 300.0)), self.choose((0, 1)))

    def trim(self) -> Iterable[Any]:
        yield Trim(self.choose((None, 5.0)), self.choose((None, 1, 0)), self.choose((1000, 0, 1)))

    def purge(self) -> Iterable[Any]:
        yield Purge(self.topic(), self.choose((1, 2, 1000)))

    def switch(self, verb: str) -> Iterable[Any]:
        yield Switch(verb, self.topic())

    def seal(self) -> Iterable[Any]:
        """Seldom, since little happens after it; what was produced before is sent again."""
        if self.seldom():
            yield Produce(self.topic(), self.choose(((self.spec(),), self.crowd(2))), self.maybe(), "p")
            yield Seal()
            yield Again(1)
            yield self.choose((Again(2), Restore(self.topic(), self.picks(), 5.0, 0)))

    def taken(self) -> Iterable[Any]:
        yield Taken()

    def carry(self) -> Iterable[Any]:
        yield Carry(self.picks(), self.choose((5.0, 30.0, 0.0)))

    def forget(self) -> Iterable[Any]:
        """Two looks with some time in between, as a day; or one, which forgets what another has noted."""
        topics, idle = self.topics[: self.choose((1, 2))], self.choose((0.0, 5.0, 30.0))
        for _ in range(self.choose((1, 2))):
            yield Forget(topics, idle)
            yield Pass(self.choose((0.0, 5.0, 30.0)))

    def emptied_and_forgotten(self) -> Iterable[Any]:
        """The last message of a topic goes in some way, and the topic is looked at twice."""
        topic = self.topic()
        yield self.choose(
            (
                Purge(topic, 1000),
                Take(topic, 1000, 30.0, "w1", False, False),
                Promote(1000, False),
                Trim(None, 0, 1000),
                Switch("pause", topic),
            )
        )
        yield Settle(self.choose(("complete", "retry", "move_to_dlq")), (0, 1, 2, 3, 4), "held", 0.0)
        yield Forget((topic,), 5.0)
        yield Pass(5.0)
        yield Forget((topic,), 5.0)

    def stir(self) -> Iterable[Any]:
        yield Stir(self.choose((*self.topics, "")))

    def audit(self) -> Iterable[Any]:
        yield Audit()

    def flush_scripts(self) -> Iterable[Any]:
        yield FlushScripts()

    def fill(self) -> Iterable[Any]:
        yield Fill(self.seldom())

    def deface(self) -> Iterable[Any]:
        yield Deface(self.choose(range(5)), self.choose(("expiry", "count")))

    def cancelled_in_the_middle(self) -> Iterable[Any]:
        """Of the message that is withdrawn a list keeps an entry, and the id is used again meanwhile."""
        topic = self.topic()
        yield Produce(topic, self.crowd(4), False, "")
        yield Cancel((0,))
        yield Produce(self.topic(), (self.spec()._replace(pick=0),), self.maybe(), "")
        yield from self.found(topic)

    def expired_in_the_middle(self) -> Iterable[Any]:
        """Of the message that expires a list keeps an entry, while the monitor has it."""
        topic, lane = self.topic(), self.lane()
        crowd = tuple(Spec(n, lane, ttl, 0.0) for n, ttl in enumerate((None, 0.0, None)))
        yield Produce(topic, crowd, False, "")
        yield Monitor(1000, self.lease(), "w2", False, None)
        yield from self.found(topic)

    def done_and_produced_alone(self) -> Iterable[Any]:
        """Ids of done messages are produced again one by one, while they are remembered or just after."""
        topic = self.topic()
        yield Take(topic, 1000, 30.0, "w1", False, False)
        yield Settle("complete", (0, 1, 2, 3, 4), "held", 5.0)
        yield Pass(self.choose((0.0, 5.0)))
        for pick in range(len(IDS)):
            yield Produce(topic, (self.spec()._replace(pick=pick),), False, "")

    def woken_for_all(self) -> Iterable[Any]:
        """A worker that was woken for each topic claims from all at once, and leaves a message in each."""
        lane = self.lane()
        for n, topic in enumerate(self.topics):
            yield Produce(topic, tuple(Spec(2 * n + k, lane, None, 0.0) for k in (0, 1)), False, "")
            yield Stir(topic)
        wants = tuple(Want(topic, 1, 1) for topic in self.topics)
        yield TakeSome(wants, self.choose((2, 1)), self.lease(), self.worker(), False, self.maybe())

    def found(self, topic: str) -> Iterable[Any]:
        """What looks at every entry, or nothing yet."""
        match self.choose(("", "claim", "purge")):
            case "claim":
                yield Take(topic, 1000, 30.0, "w1", False, False)
            case "purge":
                yield Purge(topic, 1000)


Kind = Callable[[Mixer], "Iterable[Any]"]

WEIGHTS: Final[dict[Kind, int]] = {
    Mixer.produce: 5,
    Mixer.produce_many: 2,
    Mixer.produce_delayed: 3,
    Mixer.refused: 1,
    Mixer.take: 4,
    Mixer.take_some: 4,
    Mixer.monitor: 3,
    partial(Mixer.settle, verb="start"): 2,
    partial(Mixer.settle, verb="extend"): 2,
    partial(Mixer.settle, verb="complete"): 3,
    partial(Mixer.settle, verb="retry"): 3,
    partial(Mixer.settle, verb="put_off"): 1,
    partial(Mixer.settle, verb="release"): 3,
    partial(Mixer.settle, verb="recover"): 2,
    partial(Mixer.settle, verb="move_to_dlq"): 3,
    Mixer.promote: 3,
    Mixer.next_delay: 1,
    Mixer.pass_time: 3,
    Mixer.reach: 2,
    Mixer.again: 4,
    Mixer.revive: 3,
    Mixer.cancel: 3,
    Mixer.hasten: 2,
    Mixer.delete: 2,
    Mixer.restore: 1,
    Mixer.trim: 2,
    Mixer.purge: 2,
    partial(Mixer.switch, verb="pause"): 1,
    partial(Mixer.switch, verb="resume"): 2,
    partial(Mixer.switch, verb="wake"): 1,
    partial(Mixer.switch, verb="hold"): 1,
    partial(Mixer.switch, verb="let_go"): 2,
    Mixer.seal: 1,
    Mixer.taken: 1,
    Mixer.carry: 1,
    Mixer.stir: 2,
    Mixer.forget: 2,
    Mixer.emptied_and_forgotten: 2,
    Mixer.audit: 1,
    Mixer.flush_scripts: 1,
    Mixer.fill: 3,
    Mixer.deface: 2,
    Mixer.cancelled_in_the_middle: 2,
    Mixer.expired_in_the_middle: 2,
    Mixer.done_and_produced_alone: 1,
    Mixer.woken_for_all: 1,
}
MENU: Final = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
TIMES: Final = (0, *[1] * 15, *[2] * 4)
STEPS: Final = 40


@st.composite
def histories(draw: DrawFn) -> list[Any]:
    """Histories that hypothesis can shrink."""
    return Mixer(lambda options: draw(st.sampled_from(options))).history(STEPS)


def random_histories(seed: int) -> Iterator[list[Any]]:
    """Histories without end, the same ones for the same seed."""
    dice = random.Random(seed)
    while True:
        yield Mixer(dice.choice).history(STEPS)
