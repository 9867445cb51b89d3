"""Random histories of a queue: what may happen to it, and in what mixtures.

A history is a list of steps over five ids that are used again and again, one or two topics and two workers.
Steps name what they act on by position ("the second delivery in hand"), so that any part of a history is a
history: that is what makes failing ones shrink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hypothesis import strategies as st

from mx_rmq.keys import LANES, Lane
from tests.model.invariants import IDS, TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

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


class Monitor(NamedTuple):
    """Take over what is late."""

    limit: int
    lease: float
    worker: str
    lost: bool


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


class Delete(NamedTuple):
    """Delete dead messages."""

    picks: tuple[int, ...]
    seen: int
    """As above."""


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


class Fill(NamedTuple):
    """The server reaches its maxmemory, or has room again."""

    full: bool


class Again(NamedTuple):
    """Send the n-th call before this one again, with its old arguments."""

    n: int


class Twice(NamedTuple):
    """The reply was lost, the client sends the call again."""

    step: Any


# -- how they are drawn

_times: Final = st.sampled_from((0, *[1] * 15, *[2] * 4))
_limits: Final = st.sampled_from((1, 1, 2, 2, 4, 0, 1000))
_leases: Final = st.sampled_from((5.0, 30.0, 0.001))
_workers: Final = st.sampled_from(("w1", "w2"))
_lost: Final = st.sampled_from((False, False, False, True))


def _some(items: SearchStrategy[Any], most: int) -> SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=1, max_size=most).map(tuple)


_picks: Final = _some(st.sampled_from(range(5)), 3)


def _settle(verb: str) -> SearchStrategy[Settle]:
    aims = ("held",) * 7 + ("old", "old", "doubled", "forged", "astray")
    seconds = st.sampled_from((0.0, 1.0, 5.0, 30.0))
    return st.builds(Settle, st.just(verb), _picks, st.sampled_from(aims), seconds)


def _cancelled_in_the_middle(
    topic: str, other: str, lane: Lane, again: Spec, delayed: bool, finale: str
) -> Sequence[Any]:
    """Of the message that is withdrawn a list keeps an entry, and the id is used again meanwhile."""
    crowd = tuple(Spec(n, lane, None, 0.0) for n in range(4))
    again = again._replace(pick=0)
    return [
        Produce(topic, crowd, False, ""),
        Cancel((0,)),
        Produce(other, (again,), delayed, ""),
        *_finale(finale, topic),
    ]


def _expired_in_the_middle(topic: str, lane: Lane, lease: float, finale: str) -> Sequence[Any]:
    """Of the message that expires a list keeps an entry, while the monitor has it."""
    crowd = tuple(Spec(n, lane, ttl, 0.0) for n, ttl in enumerate((None, 0.0, None)))
    return [Produce(topic, crowd, False, ""), Monitor(1000, lease, "w2", False), *_finale(finale, topic)]


def _finale(finale: str, topic: str) -> Sequence[Any]:
    match finale:
        case "claim":
            return [Take(topic, 1000, 30.0, "w1", False, False)]
        case "purge":
            return [Purge(topic, 1000)]
    return []


def menu(topics: Sequence[str], lanes: Sequence[Lane]) -> list[SearchStrategy[Any]]:
    """The kinds of steps, and of short scenes, the likely ones several times."""
    topic, lane = st.sampled_from(topics), st.sampled_from(lanes)
    ttl = st.sampled_from((None, None, None, 2.0, 20.0, 0.0))
    delay = st.sampled_from((1.0, 5.0, 30.0, 0.0, 0.001))
    spec = st.builds(Spec, st.sampled_from(range(len(IDS))), lane, ttl, delay)
    crowd = st.builds(lambda lane, ttl: tuple(Spec(n, lane, ttl, 0.0) for n in range(len(IDS))), lane, ttl)
    producer = st.sampled_from(("", "p", "r"))
    span = st.sampled_from((1.0, 5.0, 30.0, 0.0005, 61.0, -0.4003))
    other, finale = st.sampled_from(topics[::-1]), st.sampled_from(("", "claim", "purge"))
    few, age, seen = st.sampled_from((None, 1, 0)), st.sampled_from((None, 5.0)), st.sampled_from((0, 1, 2))
    weighted: Sequence[tuple[int, SearchStrategy[Any]]] = (
        (5, st.builds(Produce, topic, _some(spec, 4), st.just(False), producer)),
        (2, st.builds(Produce, topic, crowd, st.just(False), st.just(""))),
        (2, st.builds(_cancelled_in_the_middle, topic, other, lane, spec, st.booleans(), finale)),
        (2, st.builds(_expired_in_the_middle, topic, lane, _leases, finale)),
        (3, st.builds(Produce, topic, _some(spec, 2), st.just(True), producer)),
        (1, st.builds(Refused, topic, spec, st.booleans())),
        (6, st.builds(Take, topic, _limits, _leases, _workers, _lost, st.booleans())),
        (2, _settle("extend")),
        (3, _settle("complete")),
        (3, _settle("retry")),
        (3, _settle("release")),
        (3, _settle("move_to_dlq")),
        (3, st.builds(Monitor, _limits, _leases, _workers, _lost)),
        (3, st.builds(Promote, st.sampled_from((1000, 1, 2)), st.booleans())),
        (1, st.builds(NextDelay, st.booleans())),
        (3, st.builds(Pass, span)),
        (2, st.builds(Reach, st.sampled_from((0, -1)))),
        (4, st.builds(Again, st.sampled_from(range(24)))),
        (3, st.builds(Revive, _picks, lane, ttl, seen, st.booleans())),
        (3, st.builds(Cancel, _picks)),
        (2, st.builds(Delete, _picks, seen)),
        (2, st.builds(Trim, age, few, st.sampled_from((1000, 0, 1)))),
        (2, st.builds(Purge, topic, st.sampled_from((1, 2, 1000)))),
        (1, st.builds(Switch, st.just("pause"), topic)),
        (2, st.builds(Switch, st.just("resume"), topic)),
        (1, st.builds(Switch, st.just("wake"), topic)),
        (2, st.builds(Stir, st.sampled_from((*topics, "")))),
        (1, st.just(Audit())),
        (1, st.just(FlushScripts())),
        (1, st.just(Fill(True))),
        (2, st.just(Fill(False))),
    )
    return [kind for weight, kind in weighted for _ in range(weight)]


MENUS: Final = [menu(topics, lanes) for topics in (TOPICS[:1], TOPICS) for lanes in (LANES[1:2], LANES)]
_menus: Final = st.sampled_from(MENUS)
_muted: Final = st.frozensets(st.sampled_from(range(len(MENUS[0]))), max_size=20)


@st.composite
def histories(draw: DrawFn, steps: int = 40) -> list[Any]:
    """Lists of at most so many steps or scenes.

    Each history has its own mixture: in one topic and one lane messages stand behind each other, and what is
    seldom done, or never, lets the rest go further.
    """
    menu, muted = draw(_menus), draw(_muted)
    kinds = st.sampled_from([kind for n, kind in enumerate(menu) if n not in muted])
    history: list[Any] = []
    for _ in range(steps):
        drawn = draw(draw(kinds))
        for step in drawn if isinstance(drawn, list) else [drawn]:
            # A step that is drawn and left out shrinks better than a list that may be shorter.
            history += ((), (step,), (Twice(step),))[draw(_times)]
    return history
