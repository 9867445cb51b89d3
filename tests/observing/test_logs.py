from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from mx_rmq import InvalidPayload, MessageTooLarge, RedisMessageQueue, Reject, Retry, RetryLater
from mx_rmq.storage.contract import NewMessage
from tests.words import eventually, store_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.proxy import Proxy

SECRET = "4111-1111-1111-1111"
STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


@dataclass
class Kind:
    kind: Literal["a", "b"]


class Quoting:
    """A model whose errors quote what they were given, as pydantic's do."""

    @classmethod
    def model_validate_json(cls, raw: bytes) -> Quoting:
        raise ValueError(f"Input should be valid [input_value={bytes(raw)!r}]")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as ``extra``."""
    return {name: value for name, value in record.__dict__.items() if name not in STANDARD}


async def a_whole_life(
    queue: RedisMessageQueue, redis: Redis, proxy: Proxy, records: list[logging.LogRecord]
) -> None:
    """Messages that end in every way there is, while the network fails once."""
    payload = {"card": SECRET}
    ended: set[str] = set()

    @queue.handler("good")
    async def good(payload: dict[str, str]) -> None:
        ended.add("good")

    @queue.handler("threaded")
    def threaded(payload: dict[str, str]) -> None:
        ended.add("threaded")

    @queue.handler("failing", retry=Retry(2, backoff=[0.0]))
    async def failing(payload: dict[str, str]) -> None:
        raise ValueError("no")

    @queue.handler("later", retry=Retry(2))
    async def later(payload: dict[str, str]) -> None:
        raise RetryLater(0.001)

    @queue.handler("rejected")
    async def rejected(payload: dict[str, str]) -> None:
        raise Reject("not for us")

    @queue.handler("slow", timeout=0.05, retry=Retry(1))
    async def slow(payload: dict[str, str]) -> None:
        await asyncio.Event().wait()

    @queue.handler("batched", batch=10, retry=Retry(1))
    async def batched(payloads: list[dict[str, str]]) -> None:
        raise ValueError("none of them")

    @queue.handler("typed")
    async def typed(payload: Kind) -> None: ...

    @queue.handler("quoting")
    async def quoting(payload: Quoting) -> None: ...

    await queue.produce("good", payload, ttl=0.001)  # expires
    await queue.produce("failing", payload, message_id="crashing")
    await store_of(redis).claim("failing", 1, lease=0.001, holder="gone")
    await store_of(redis).produce("good", [NewMessage("unparsable", f"\x00{SECRET}".encode())])
    async with RedisMessageQueue(queue.config.url, name="q", server_check="off") as elsewhere:
        for topic in queue._handlers:
            await elsewhere.produce(topic, payload, headers={"card": SECRET}, message_id=f"{topic}-1")
        await elsewhere.produce("typed", {"kind": SECRET})
    await queue.produce_many("batched", [payload] * 5, delay=0.001)
    await asyncio.to_thread(queue.sync.produce, "good", payload)
    with pytest.raises(InvalidPayload):
        await queue.produce("good", {SECRET})
    with pytest.raises(MessageTooLarge):
        await queue.produce("good", {"card": SECRET * 100_000})
    with pytest.raises(InvalidPayload):
        await typed.produce(Kind(SECRET))  # type: ignore[arg-type]
    await queue.start()

    async def all_ended() -> bool:
        counts = await queue.counts()
        live = counts.pending + counts.processing + counts.delayed
        return live == 0 and {"good", "threaded"} <= ended

    await eventually(all_ended, within=15)
    proxy.away()
    call = asyncio.create_task(queue.produce("good", payload))
    await asyncio.wait([call], timeout=0.1)
    proxy.back()
    await call
    await queue.dlq.replay_all(topic="failing")
    await eventually(all_ended, within=15)

    async def outage_is_over() -> bool:
        return any(fields_of(record).get("event") == "server.back" for record in records)

    await eventually(outage_is_over, within=15)
    await queue.stop()


@pytest.fixture
async def records(redis: Redis, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """All that is logged in a whole life."""
    caplog.set_level(logging.DEBUG)
    async with RedisMessageQueue(proxy.url, name="q", crash_limit=1, lease=1.0, poll=0.1) as queue:
        await a_whole_life(queue, redis, proxy, caplog.records)
    return list(caplog.records)


async def test_no_record_shows_a_payload_and_every_event_has_its_fields(
    records: list[logging.LogRecord],
) -> None:
    """One life for both promises, since it takes a second."""
    for record in records:
        shown = f"{logging.Formatter().format(record)} {record.__dict__!r}"
        assert SECRET not in shown
    records = [record for record in records if record.name.partition(".")[0] != "asyncio"]
    wanted = {
        "worker.started": {"worker", "queue", "server", "topics", "concurrency"},
        "worker.stopped": {"worker"},
        "message.retried": {"topic", "id", "attempt", "max_attempts", "seconds", "delay", "error", "place"},
        "message.dead": {"topic", "id", "reason", "error", "attempts", "place"},
        "server.unsafe": {"problem"},
        "server.unavailable": {"server", "error"},
        "server.back": {"server", "seconds"},
    }
    seen = {fields_of(record)["event"] for record in records}
    assert wanted.keys() <= seen
    for record in records:
        fields = fields_of(record)
        assert fields.keys() >= wanted.get(fields["event"], set())
        assert record.name.partition(".")[0] == "mx_rmq"
        assert record.msg == f"{fields['event']}: %s", "tools group records by this"
        json.dumps(fields)
    deaths = {
        (fields["topic"], fields["reason"])
        for record in records
        if fields_of(record)["event"] == "message.dead"
        for fields in [fields_of(record)]
    }
    assert deaths == {
        ("good", "expired"),
        ("good", "unparsable"),
        ("failing", "crashed"),
        ("failing", "failed"),
        ("later", "failed"),
        ("rejected", "rejected"),
        ("slow", "failed"),
        ("batched", "failed"),
        ("typed", "invalid"),
        ("quoting", "invalid"),
    }


async def test_a_quiet_day_is_quiet(queue: RedisMessageQueue, caplog: pytest.LogCaptureFixture) -> None:
    """A message that succeeds is no news, at any level."""
    caplog.set_level(logging.DEBUG)
    done = asyncio.Event()

    @queue.handler("t")
    async def handle(payload: int) -> None:
        if payload == 99:
            done.set()

    await queue.start()
    await queue.produce_many("t", range(100))
    async with asyncio.timeout(10):
        await done.wait()
    await queue.stop()
    events = [fields_of(record)["event"] for record in caplog.records if record.name.startswith("mx_rmq")]
    assert events == ["worker.started", "worker.stopped"]
