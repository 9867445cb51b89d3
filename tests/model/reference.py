"""The queue as it should be: the same verbs as the store, in plain Python, without a server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from mx_rmq.fingerprint import Group, group_of
from mx_rmq.message import LANES, Lane, decode_death
from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import (
    Cancelled,
    Cause,
    Claim,
    Delivery,
    Examined,
    Hastened,
    Kept,
    NewMessage,
    NextDelay,
    Overdue,
    Promotion,
    Replay,
    Replayed,
    Restore,
    Restored,
    Settled,
    Suspect,
    Takeover,
    Want,
)
from mx_rmq.storage.keys import HELD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HISTORY: Final = ("produced", "delivered", "completed", "retried", "put_off", "lapsed", "dead")
"""The events that the history counts, in the order of its sheets; all deaths here have its first reason."""


class Violation(AssertionError):
    """The server broke a promise; *check* names which."""

    def __init__(self, check: str, what: str) -> None:
        super().__init__(f"{check}: {what}")
        self.check = check


@dataclass(slots=True)
class Life:
    """A live message; *deadline* is when its lease ends (processing) or when it is due (delayed)."""

    topic: str
    lane: Lane
    body: bytes
    expires: float
    place: Literal["pending", "processing", "delayed"] = "pending"
    leased: int = 0
    token: str = ""
    holder: str = "-"
    cause: str = ""
    deadline: float = inf
    odd_count: str = ""
    """What another program wrote in place of the count of leases, until the next lease."""
    odd_expiry: str = ""
    """The same for the expiry, until that is written anew."""

    texted: bool = False
    """Text is kept of it though it was never leased, because the count in it was odd when it fell due."""

    def told(self) -> tuple[str, str]:
        """The count of leases and the expiry as they stand in the text that is kept."""
        return self.odd_count or str(self.leased), self.odd_expiry or digits(self.expires)


@dataclass(slots=True)
class Remains:
    """A dead message."""

    topic: str
    body: bytes
    error: bytes
    died: int

    @property
    def group(self) -> Group:
        return group_of(self.topic, decode_death(self.error))


@dataclass(slots=True)
class Crowd:
    """A group of dead messages; its first and last death are those since it began."""

    label: str
    first: int
    last: int
    count: int = 0


class Reference:
    """What the server must hold and answer.

    Every verb takes what the method of the same name of the store takes, and returns what it must return.
    Times are in ms. *lists* is what the server's lists hold, stale hints included, head first: those are the
    server's own business, so they are read from it, and *order* is the order in which pending messages must
    stand in there. So is when a completed id is forgotten after the end of its memory, but a take-over leaves
    none of those.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.live: dict[str, Life] = {}
        self.dead: dict[str, Remains] = {}
        self.groups: dict[str, Crowd] = {}
        self.done: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.calls: dict[str, tuple[str, list[Stored]]] = {}
        self.topics: set[str] = set()
        self.idle: dict[str, tuple[int, int]] = {}
        """Per topic: how many events it had, and since when a look has found that number."""
        self.paused: set[str] = set()
        self.sealed = False
        self.counters: Counter[str] = Counter()
        self.noted: dict[str, bytearray] = {}
        """The sheets of the history, by key."""
        self.lists: dict[tuple[str, Lane], list[str]] = {}
        self.order: dict[tuple[str, Lane], list[str]] = {}
        self.fence = 0
        self.wakes: set[str] = set()
        self.delay_wake = False
        # Who is about to look: a worker or scheduler that took a token and has not come back yet.
        self.stirred: set[str] = set()
        self.scheduler_stirred = False
        self.scheduler_waits_for = inf
        # About the last verb: did it change anything, and of which ids may list entries have gone?
        self.changed = False
        self.unlisted: set[str] = set()

    @property
    def now(self) -> int:
        return self.now_us // 1000

    def at(self, now_us: int) -> None:
        """Start a verb at this time."""
        self.now_us, self.changed, self.unlisted = now_us, False, set()
        self._fenced = False

    # -- a message's life

    def produce(
        self, topic: str, messages: Sequence[NewMessage], *, producer: str = "", call: str = ""
    ) -> list[Stored]:
        return self._produce(topic, messages, producer, call, delayed=False)

    def produce_delayed(
        self, topic: str, messages: Sequence[NewMessage], *, producer: str = "", call: str = ""
    ) -> list[Stored]:
        return self._produce(topic, messages, producer, call, delayed=True)

    def is_belated(self, options: Mapping[str, Any]) -> bool:
        """Whether a call with these options is a producer's that has made a later one."""
        last, _ = self.calls.get(options.get("producer", ""), ("0", []))
        return "call" in options and int(options["call"]) < int(last)

    def is_refused(self, verb: str, options: Mapping[str, Any]) -> bool:
        """Whether the shard takes no such call because it is sealed; one that was stored is answered."""
        stored, _ = self.calls.get(options.get("producer", ""), ("", []))
        known = "call" in options and options["call"] == stored
        return self.sealed and verb in ("produce", "produce_delayed", "restore") and not known

    def seal(self) -> bool:
        self.changed = not self.sealed
        self.sealed = True
        return self.changed

    def taken(self, ids: Sequence[str]) -> list[Stored]:
        return [self._admit(id_) for id_ in ids]

    def carry(self, done: Sequence[tuple[str, int]]) -> int:
        carried = [(id_, until) for id_, until in done if self.done.get(id_, 0) < until]
        self.changed = bool(carried)
        self.done.update(carried)
        return len(carried)

    def hold(self, topic: str) -> bool:
        return self.pause(HELD + topic)

    def let_go(self, topic: str) -> bool:
        self.changed = HELD + topic in self.paused
        if self.changed:
            self.paused.discard(HELD + topic)
            self.wakes.add(topic)
        return self.changed

    def _produce(
        self, topic: str, messages: Sequence[NewMessage], producer: str, call: str, *, delayed: bool
    ) -> list[Stored]:
        if call and producer in self.calls and self.calls[producer][0] == call:
            return self.calls[producer][1]
        answer, earliest = [], self.earliest()
        for message in messages:
            status = self._admit(message.id)
            answer.append(status)
            if status is not Stored.STORED:
                continue
            self._count(topic, "produced")
            self.topics.add(topic)
            ttl = inf if message.ttl is None else round(message.ttl * 1000)
            due = self.now + round(message.delay * 1000) if delayed else self.now
            life = Life(topic, message.lane, message.body, due + ttl)
            self.live[message.id] = life
            if delayed:
                self._delay(message.id, life, due)
            else:
                self._queue(message.id, life)
        self._wake_scheduler(earliest)
        if call:
            self.changed = True
            self.calls[producer] = (call, answer)
        return answer

    def _admit(self, id_: str) -> Stored:
        if id_ in self.live:
            return Stored.LIVE
        if id_ in self.dead:
            return Stored.DEAD
        return Stored.DONE if self.done.get(id_, 0) > self.now else Stored.STORED

    def claim(self, topic: str, limit: int, *, lease: float, holder: str) -> Claim:
        if {topic, HELD + topic} & self.paused:
            self.stirred.discard(topic)
            return Claim(self.now_us / 1e6, [], 0, paused=True)
        self.changed = True
        deliveries: list[Delivery] = []
        for lane in LANES:
            entries = self.lists.get((topic, lane), [])
            while entries and len(deliveries) < limit:
                id_ = entries.pop(0)
                life = self.live.get(id_)
                if life and (life.place, life.topic) == ("pending", topic):
                    deliveries.append(self._lease(id_, life, lane, lease, holder, "run"))
                    self._note(topic, "delivered")
        left = sum(len(self.lists.get((topic, lane), [])) for lane in LANES)
        self.stirred.discard(topic)
        (self.wakes.add if left else self.wakes.discard)(topic)
        return Claim(self.now_us / 1e6, deliveries, left, paused=False)

    def claim_some(self, wants: Sequence[Want], *, runs: int, lease: float, holder: str) -> list[Claim]:
        claims = []
        for topic, limit, batch in wants:
            claims.append(self.claim(topic, min(limit, runs * batch), lease=lease, holder=holder))
            runs -= -(-len(claims[-1].deliveries) // batch)
        return claims

    def start(self, topic: str, deliveries: Sequence[Delivery]) -> list[Settled]:
        answer = self._held(topic, deliveries)
        for delivery, status in zip(deliveries, answer, strict=True):
            life = self.live.get(delivery.id)
            if status is Settled.DONE and life is not None and life.cause == "run":
                self.changed = True
                life.cause = "started"
        return answer

    def extend(self, topic: str, deliveries: Sequence[Delivery], *, lease: float) -> list[Settled]:
        answer = self._held(topic, deliveries)
        for delivery, status in zip(deliveries, answer, strict=True):
            if status is Settled.DONE:
                self.changed = True
                self.live[delivery.id].deadline = self.now + round(lease * 1000)
        return answer

    def complete(
        self, topic: str, finished: Sequence[tuple[Delivery, Kept]], times: Sequence[tuple[int, int]]
    ) -> list[Settled]:
        answer = self._held(topic, [delivery for delivery, _ in finished])
        if Settled.DONE in answer:
            for bucket, amount in times:
                self._note_time(topic, bucket, amount)
        for (delivery, kept), status in zip(finished, answer, strict=True):
            if status is Settled.DONE:
                del self.live[delivery.id]
                self._count(topic, "completed")
                if kept.dedup_for > 0:
                    self.done[delivery.id] = self.now + round(kept.dedup_for * 1000)
                self._end(delivery.id, "done", topic, kept)
        return answer

    def retry(self, topic: str, failed: Sequence[tuple[Delivery, float, bytes]]) -> list[Settled]:
        return self._put_back(topic, failed, "retried")

    def put_off(self, topic: str, rows: Sequence[tuple[Delivery, float, bytes]]) -> list[Settled]:
        return self._put_back(topic, rows, "put_off")

    def _put_back(
        self, topic: str, failed: Sequence[tuple[Delivery, float, bytes]], event: str
    ) -> list[Settled]:
        answer, earliest = self._held(topic, [delivery for delivery, _, _ in failed]), self.earliest()
        for (delivery, delay, body), status in zip(failed, answer, strict=True):
            if status is Settled.DONE:
                life = self.live[delivery.id]
                life.body, life.odd_expiry = body, ""
                self._delay(delivery.id, life, self.now + round(delay * 1000))
                self._count(topic, event)
        self._wake_scheduler(earliest)
        return answer

    def release(
        self, topic: str, deliveries: Sequence[Delivery], *, bodies: Sequence[bytes] = ()
    ) -> list[Settled]:
        answer = self._held(topic, deliveries)
        given = bodies or [b""] * len(deliveries)
        for delivery, body, status in reversed(list(zip(deliveries, given, answer, strict=True))):
            if status is Settled.DONE:
                life = self.live[delivery.id]
                life.body, life.odd_expiry = body or life.body, ""
                self._queue(delivery.id, life, head=True)
                self._count(topic, "released")
        return answer

    def move_to_dlq(
        self, topic: str, dead: Sequence[tuple[Delivery, bytes, bytes]], *, kept: Sequence[Kept]
    ) -> list[Settled]:
        answer = self._held(topic, [delivery for delivery, _, _ in dead])
        for (delivery, body, error), wish, status in zip(dead, kept, answer, strict=True):
            if status is Settled.DONE:
                life = self.live.pop(delivery.id)
                self._die(delivery.id, Remains(topic, body or life.body, error, self.now))
                self._count(topic, "dead")
                self._end(delivery.id, "dead", topic, wish)
        return answer

    def take_over(self, limit: int, *, lease: float, holder: str, before: float | None = None) -> Overdue:
        if before is not None and self.now_us > round(before * 1e6):
            return Overdue(self.now_us / 1e6, [], [], [], belated=True)
        for id_ in [id_ for id_, until in self.done.items() if until <= self.now]:
            del self.done[id_]
            self.changed = True
        deadlines = [
            (moment, id_)
            for (id_, life), moment in zip(self.live.items(), self.moments(), strict=True)
            if life.place != "delayed"
        ]
        taken = []
        for _, id_ in sorted(entry for entry in deadlines if entry[0] <= self.now)[:limit]:
            life = self.live[id_]
            cause: Cause = "lapsed"
            previous, lane = life.holder, life.lane
            if life.place == "pending":
                previous, cause = "-", "expired"
                # Before its first lease only the list it stands in says its lane. Nobody runs it again.
                lane = life.lane if life.leased or life.texted else "normal"
                self.unlisted.add(id_)
            elif life.cause in ("expired", "started"):
                cause = cast("Cause", life.cause)
            taken.append(Takeover(self._lease(id_, life, lane, lease, holder, cause), cause, previous))
            self._count(life.topic, "expired" if cause == "expired" else "lapsed")
        return Overdue(self.now_us / 1e6, taken, [], [])

    def next_delay(self) -> NextDelay:
        dues = self._dues()
        self._scheduler_looked()
        if not dues:
            return NextDelay("NO_TASK", 0.0, "")
        due, id_ = dues[0]
        if due > self.now:
            return NextDelay("WAITING", (due - self.now) / 1000, id_)
        return NextDelay("EXPIRED", (self.now - due) / 1000, id_)

    def promote(self, limit: int) -> Promotion:
        promoted = [id_ for due, id_ in self._dues() if due <= self.now][:limit]
        for id_ in promoted:
            life = self.live[id_]
            if not life.leased and not life.odd_count:  # the text is not needed any more
                life.odd_expiry, life.texted = "", False
            self._queue(id_, life)
            self._count(life.topic, "promoted")
        if not self._dues():
            self.changed = self.changed or self.delay_wake
            self.delay_wake = False
        self._scheduler_looked()
        wait = None if self.earliest() == inf else max(0.0, self.earliest() - self.now) / 1000
        return Promotion(wait, promoted, [], [])

    # -- operators' verbs

    def replay(self, replays: Sequence[Replay]) -> list[Replayed]:
        answer = []
        for replay in replays:
            remains = self.dead.get(replay.id)
            if not remains:
                answer.append(Replayed.GONE)
            elif replay.died_at is not None and round(replay.died_at * 1000) != remains.died:
                answer.append(Replayed.CHANGED)
            else:
                answer.append(Replayed.REPLAYED)
                self._leave(replay.id)
                ttl = inf if replay.ttl is None else round(replay.ttl * 1000)
                life = Life(remains.topic, replay.lane, replay.body or remains.body, self.now + ttl)
                self.live[replay.id] = life
                self._queue(replay.id, life)
                self._count(life.topic, "replayed")
        return answer

    def delete_dead(self, ids: Sequence[str], died_at: Sequence[float] = ()) -> int:
        deleted = 0
        for n, id_ in enumerate(ids):
            remains = self.dead.get(id_)
            if remains and (not died_at or round(died_at[n] * 1000) == remains.died):
                self._leave(id_)
                self._count(remains.topic, "deleted")
                deleted += 1
        return deleted

    def trim_dead(self, *, max_age: float | None, max_count: int | None, limit: int) -> int:
        oldest = sorted(self.dead, key=lambda id_: (self.dead[id_].died, id_))
        old = [
            id_
            for n, id_ in enumerate(oldest)
            if (max_count is not None and n < len(oldest) - max_count)
            or (max_age is not None and self.dead[id_].died < self.now - round(max_age * 1000))
        ]
        return self.delete_dead(old[:limit])

    def restore(self, dead: Sequence[Restore]) -> list[Restored]:
        answer = []
        for row in dead:
            if row.id in self.live:
                answer.append(Restored.LIVE)
            elif row.id in self.dead:
                answer.append(Restored.DEAD)
            else:
                answer.append(Restored.RESTORED)
                self._die(row.id, Remains(row.topic, row.body, row.error, round(row.died_at * 1000)))
                self.topics.add(row.topic)
                self._count(row.topic, "restored")
        return answer

    def cancel(self, ids: Sequence[str]) -> list[Cancelled]:
        answer = []
        for id_ in ids:
            life = self.live.get(id_)
            if not life:
                answer.append(Cancelled.DEAD if id_ in self.dead else Cancelled.GONE)
            elif life.place == "processing":
                answer.append(Cancelled.RUNNING)
            else:
                answer.append(Cancelled.CANCELLED)
                self._withdraw(id_)
                self.unlisted.add(id_)
        return answer

    def hasten(self, ids: Sequence[str]) -> list[Hastened]:
        answer, earliest = [], self.earliest()
        for id_ in ids:
            life = self.live.get(id_)
            if not life:
                answer.append(Hastened.DEAD if id_ in self.dead else Hastened.GONE)
            elif life.place != "delayed":
                answer.append(Hastened.NOT_DELAYED)
            elif life.deadline <= self.now:
                answer.append(Hastened.DUE)
            else:
                answer.append(Hastened.HASTENED)
                life.deadline, self.changed = self.now, True
        self._wake_scheduler(earliest)
        return answer

    def purge(self, topic: str, limit: int) -> tuple[int, int]:
        withdrawn = looked = left = 0
        for lane in LANES:
            entries = self.lists.get((topic, lane), [])
            while entries and looked < limit:
                id_ = entries.pop(0)
                looked, self.changed = looked + 1, True
                life = self.live.get(id_)
                if life and (life.place, life.topic) == ("pending", topic):
                    self._withdraw(id_)
                    withdrawn += 1
            left += len(entries)
        if not left:
            self.changed = self.changed or topic in self.wakes
            self.wakes.discard(topic)
        return withdrawn, left

    def pause(self, topic: str) -> bool:
        self.changed = topic not in self.paused
        self.paused.add(topic)
        return self.changed

    def resume(self, topic: str) -> bool:
        self.changed = topic in self.paused
        if self.changed:
            self.paused.discard(topic)
            self.wakes.add(topic)
        return self.changed

    def wake(self, topic: str) -> None:
        self.changed = topic not in self.wakes
        self.wakes.add(topic)

    def forget(self, topics: Sequence[str], *, idle: float) -> list[str]:
        forgotten = []
        for topic in topics:
            listed = any(self.lists.get((topic, lane)) for lane in LANES)
            held = any((life.topic, life.place) == (topic, "processing") for life in self.live.values())
            if topic not in self.topics or topic in self.paused or listed or held:
                continue
            total = sum(n for event, n in self.counters.items() if event.startswith(f"{topic}:"))
            seen, since = self.idle.get(topic, (-1, 0))
            places: list[Life | Remains] = [*self.live.values(), *self.dead.values()]
            used = any(each.topic == topic for each in places)
            if seen != total or since > self.now:
                self.idle[topic], self.changed = (total, self.now), True
            elif not used and self.now - since >= round(idle * 1000):
                forgotten.append(topic)
                self.changed = True
                del self.idle[topic]
                self.topics.discard(topic)
                for event in [event for event in self.counters if event.startswith(f"{topic}:")]:
                    del self.counters[event]
        return forgotten

    def examine(self, suspects: Iterable[Suspect], *, mend: bool) -> list[Examined]:
        """Only what another program wrote is to be mended."""
        verdicts = []
        for suspect in suspects:
            assert isinstance(suspect.id, str)
            place, topic, deadline = "none", "", inf
            findings: tuple[str, ...] = ()
            if life := self.live.get(suspect.id):
                place, topic = life.place, life.topic
                deadline = life.deadline if place == "processing" else life.expires
                if place != "processing" and (life.odd_count or life.odd_expiry):
                    findings, self.changed = ("strange-keep",), True
                    life.odd_count = life.odd_expiry = ""
            elif remains := self.dead.get(suspect.id):
                place, topic = "dead", remains.topic
            shown = digits(deadline) if place in ("pending", "processing") else ""
            verdicts.append(Examined(place, topic, shown, findings))
        return verdicts

    def deface(self, id_: str, what: str, text: str) -> str:
        """What is kept of a delayed or leased message, with nonsense in it, which counts as none."""
        life = self.live[id_]
        self.changed = True
        if what == "count" and life.place == "delayed":
            life.odd_count, life.leased, life.texted = text, 0, True
        else:
            life.odd_expiry, life.expires = text, inf
        count, expiry = life.told()
        if life.place == "delayed":
            return f"{count} {life.lane} {expiry}"
        return f"{life.token} {life.lane} {expiry} {life.holder} {life.cause}"

    # -- who waits for what

    def take_token(self, topic: str) -> None:
        """A worker that waits for the topic gets its token."""
        if topic in self.wakes:
            self.wakes.discard(topic)
            self.stirred.add(topic)
            self.changed = True

    def take_delay_token(self) -> None:
        """The scheduler gets its token."""
        if self.delay_wake:
            self.delay_wake, self.scheduler_stirred, self.changed = False, True, True

    def moments(self) -> list[float]:
        """When something is due, lapses or expires."""
        return [life.expires if life.place == "pending" else life.deadline for life in self.live.values()]

    def earliest(self) -> float:
        """When the first delayed message is due."""
        return self._dues()[0][0] if self._dues() else inf

    def _scheduler_looked(self) -> None:
        self.scheduler_stirred, self.scheduler_waits_for = False, self.earliest()

    def _wake_scheduler(self, earliest_before: float) -> None:
        self.delay_wake = self.delay_wake or self.earliest() < earliest_before

    # -- steps of the verbs

    def _held(self, topic: str, deliveries: Sequence[Delivery]) -> list[Settled]:
        answer, seen = [], set()
        for delivery in deliveries:
            id_, life = delivery.id, self.live.get(delivery.id)
            if not life:
                answer.append(Settled.GONE)
            elif (life.place, life.topic, life.token) == (
                "processing",
                topic,
                delivery.token,
            ) and id_ not in seen:
                answer.append(Settled.DONE)
                seen.add(id_)
            else:
                answer.append(Settled.STALE)
        return answer

    def _lease(self, id_: str, life: Life, lane: Lane, lease: float, holder: str, cause: str) -> Delivery:
        if not self._fenced:  # once per call
            self.fence, self._fenced = max(self.now_us, self.fence + 1), True
        if life.place == "pending":
            self.order[life.topic, life.lane].remove(id_)
        # Not its own lane if an entry of an earlier life of the id, cancelled or expired, was found first.
        life.lane = lane
        life.leased += 1
        life.odd_count = life.odd_expiry = ""
        life.place, life.holder, life.cause = "processing", holder, cause
        life.deadline = self.now + round(lease * 1000)
        life.token = f"{life.leased}@{self.fence}"
        self.changed = True
        return Delivery(id_, life.topic, life.token, life.body, life.expires / 1000)

    def _queue(self, id_: str, life: Life, *, head: bool = False) -> None:
        life.place, life.deadline, life.token, life.holder, life.cause = "pending", inf, "", "-", ""
        for lists in (self.lists, self.order):
            entries = lists.setdefault((life.topic, life.lane), [])
            entries.insert(0 if head else len(entries), id_)
        self.wakes.add(life.topic)
        self.changed = True

    def _delay(self, id_: str, life: Life, due: int) -> None:
        life.place, life.deadline, life.token, life.holder, life.cause = "delayed", due, "", "-", ""
        self.changed = True

    def _withdraw(self, id_: str) -> None:
        life = self.live.pop(id_)
        if life.place == "pending":
            self.order[life.topic, life.lane].remove(id_)
        self._count(life.topic, "cancelled")

    def _end(self, id_: str, how: str, topic: str, kept: Kept) -> None:
        """Remember what became of a message; the server's own clock makes it forget, after the history."""
        if kept.remember_for:
            self.ended[id_] = f"{how} {self.now} {round(kept.took * 1000)} {topic}"

    def _die(self, id_: str, remains: Remains) -> None:
        self.dead[id_] = remains
        group, died = remains.group, remains.died
        crowd = self.groups.setdefault(group.id, Crowd(group.label.decode(), died, died))
        crowd.count += 1
        crowd.first, crowd.last = min(crowd.first, died), max(crowd.last, died)

    def _leave(self, id_: str) -> None:
        """A message is not dead any more; a group that it was the last of is gone."""
        group = self.dead.pop(id_).group.id
        self.groups[group].count -= 1
        if not self.groups[group].count:
            del self.groups[group]

    def _dues(self) -> list[tuple[float, str]]:
        return sorted((life.deadline, id_) for id_, life in self.live.items() if life.place == "delayed")

    def _count(self, topic: str, event: str) -> None:
        self.counters[f"{topic}:{event}"] += 1
        self.changed = True
        if event in HISTORY:
            self._note(topic, event)

    def _note(self, topic: str, event: str) -> None:
        number, within = divmod(self.now_us // 60_000_000, 20)
        self._add(f"history={number}={topic}", 948, 56 + within * 13 + HISTORY.index(event), 1)

    def _note_time(self, topic: str, bucket: int, amount: int) -> None:
        number, within = divmod(self.now_us // 60_000_000, 20)
        self._add(f"history={number}={topic}", 948, bucket, amount)
        self._add(f"recent={number}={topic}", 3360, within * 56 + bucket, amount)

    def _add(self, key: str, size: int, place: int, amount: int) -> None:
        sheet = self.noted.setdefault(key, bytearray(size))
        at = slice(3 * place, 3 * place + 3)
        sheet[at] = (int.from_bytes(sheet[at]) + amount).to_bytes(3)

    def sheets(self) -> dict[str, Any]:
        """The history as the server has it: sheets, and sets of the topics that have some."""
        found: dict[str, Any] = {}
        for key, sheet in self.noted.items():
            kind, number, topic = key.split("=")
            found[key] = sheet.decode("latin-1")
            if kind == "history":
                found.setdefault(f"history={number}", set()).add(topic)
        return found


def digits(ms: float) -> str:
    """An instant as the server writes it."""
    return "inf" if ms == inf else str(int(ms))
