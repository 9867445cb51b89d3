"""Where a message is, and why it has not run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, TypeVar

from mx_rmq.checks import check_id
from mx_rmq.operating.letters import letter_of
from mx_rmq.operating.messages import MessageFacts, ended_facts, live_facts
from mx_rmq.storage.contract import Lease
from mx_rmq.storage.facts import Counts, WorkerFacts, Workers
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shards import ask_those_there, find_first
from mx_rmq.tables import utc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

R = TypeVar("R")


class Inspector:
    """Answers questions about a queue."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def find(self, id_: str) -> MessageFacts:
        """Everything known about a message; its state is ``gone`` if it does not exist.

        It is ``done``, or ``dead`` though no longer in the DLQ, as long as that is remembered.
        """
        id_ = check_id(id_)
        found = await find_first(await self._shards.now(), id_, partial(self._find, id_))
        return MessageFacts(id_, "gone") if found is None else found

    async def _find(self, id_: str, shard: Shard) -> MessageFacts | None:
        queries = Queries(shard.operating)
        live = await queries.message(id_)
        if live is not None:
            lease = Lease.parse(live.lease or "")
            held = lease is not None and await queries.is_held(id_, live.topic, lease)
            return live_facts(id_, live, held=held)
        _, dead = await shard.operating.read_dead([id_.encode()])
        if dead:
            return letter_of(dead[0]).facts
        ended = await queries.ended(id_)
        return None if ended is None else ended_facts(id_, ended)

    async def counts(self) -> Counts:
        """The queue's counts, by topic; of the shards that answer."""
        counts, missing = await ask_those_there(
            await self._shards.now(), lambda shard: Queries(shard.operating).counts()
        )
        whole = reduce(add, counts)
        return replace(whole, missing=missing) if missing else whole

    async def workers(self) -> Workers:
        """The live workers: those that registered recently, on a shard that answers."""
        looks, missing = await ask_those_there(
            await self._shards.now(), lambda shard: Queries(shard.operating).workers()
        )
        found: dict[str, WorkerFacts] = {}
        for worker in (worker for here in looks for worker in here):
            found[worker.name] = found[worker.name] + worker if worker.name in found else worker
        read_at = max(here.read_at for here in looks)
        return Workers((found[name] for name in sorted(found)), read_at, missing=missing)

    async def explain(self, id_: str) -> str:
        """Why a message has not run, in a sentence."""
        facts = await self.find(id_)
        said = await self._explain(id_, facts)
        put_off = facts.message.put_off if facts.message else 0
        times = f"{put_off} time{'' if put_off == 1 else 's'}"
        return f"{said}; put off {times} by its handler" if put_off else said

    async def _explain(self, id_: str, facts: MessageFacts) -> str:
        name = f"message {id_} of topic {facts.topic!r}"
        match facts.state:
            case "gone":
                return f"there is no message {id_}: it was completed, cancelled, deleted or never produced"
            case "done":
                took = "less than 1 ms" if not facts.took else f"{facts.took:.3g} s"
                return f"{name} was done at {utc(facts.ended_at)}; its handler ran for {took}"
            case "dead" if facts.ended_at is not None:
                return f"{name} died at {utc(facts.ended_at)} and is not in the DLQ any more"
            case "dead":
                why = f"{facts.reason}: {facts.error}" if facts.error else facts.reason
                dead = f"{name} has been dead since {utc(facts.died_at)}"
                return f"{dead}, {why}; it may be replayed"
            case "running" | "held":
                if facts.state == "held":
                    leased = f"{name} is held ready by {facts.holder}, it has not begun"
                else:
                    since = "" if facts.claimed_at is None else f" since {utc(facts.claimed_at)}"
                    leased = f"{name} has been running on {facts.holder}{since}"
                if await self._is_over(facts.lease_until):
                    return f"{leased}; the lease ran out at {utc(facts.lease_until)}: {await self._mover()}"
                return f"{leased}; unless extended, the lease ends at {utc(facts.lease_until)}"
            case "delayed":
                failed = facts.message.attempts + facts.message.crashes if facts.message else 0
                why = f"after {failed} failed attempt{'s' if failed > 1 else ''} " if failed else ""
                if await self._is_over(facts.due_at):
                    return f"{name} was delayed {why}until {utc(facts.due_at)}: {await self._mover()}"
                return f"{name} is delayed {why}until {utc(facts.due_at)}"
            case "pending":
                return f"{name} is pending: {await self._why_pending(facts)}"

    async def _why_pending(self, facts: MessageFacts) -> str:
        if await self._is_over(facts.expires_at):
            return f"its lifetime ended at {utc(facts.expires_at)}; {await self._mover()}"
        if any(await self._ask(lambda queries: queries.paused(facts.topic))):
            return "the topic is paused"
        if any(facts.topic in held for held in await self._ask(lambda queries: queries.held())):
            return (
                "the queue is being resharded, and the topic waits on the new shards until its messages on "
                "the older ones are done; `mx-rmq shards` shows what they have left"
            )
        workers = await self.workers()
        serving = [worker for worker in workers if facts.topic in worker.topics]
        if not serving:
            others = f"; {_workers(workers)} for other topics" if workers else ""
            return f"no live worker has a handler for the topic{others}"
        topic = reduce(add, await self._ask(lambda queries: queries.topic_counts(facts.topic)))
        return (
            f"the topic is served by {_workers(serving)}, "
            f"with {topic.running} running, {topic.held} held ready and {topic.pending} waiting"
        )

    async def _is_over(self, instant: float | None) -> bool:
        """Whether an instant has passed by the server's clock."""
        return instant is not None and instant <= max(await self._ask(lambda queries: queries.time()))

    async def _ask(self, ask: Callable[[Queries], Awaitable[R]]) -> list[R]:
        """What the shards say that answer."""
        said, _ = await ask_those_there(self._shards, lambda shard: ask(Queries(shard.operating)))
        return said

    async def _mover(self) -> str:
        """Say whether a worker will move an overdue message. Any worker does, whatever topics it serves."""
        workers = await self.workers()
        return (
            f"{_workers(workers)} will move it shortly" if workers else "no live worker is there to move it"
        )


def _workers(workers: Sequence[WorkerFacts]) -> str:
    return f"{len(workers)} worker{'' if len(workers) == 1 else 's'}"
