"""``check``: exit codes and the line that Nagios reads."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.cli.check import Status, _limits, _whole
from mx_rmq.cli.exits import UsageError
from mx_rmq.cli.words import seconds_of
from tests.words import ONE_SERVER, bury, eventually

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli


async def pretend_worker(redis: Redis, name: str = "w1", **facts: Any) -> None:
    """A worker as it registers itself, without one."""
    now = time.time()
    said = {"topics": ["t"], "concurrency": 8, "version": "2", "started_at": now - 3600} | facts
    await redis.hset("mx-rmq:{q}:workers", name, json.dumps(said))
    await redis.zadd("mx-rmq:{q}:workers_seen", {name: now * 1000})


@ONE_SERVER
async def test_limits_decide_between_ok_warning_and_critical(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await pretend_worker(redis, claimed_at=time.time())
    await queue.produce("t", 1)
    await bury(redis)
    await queue.produce_many("t", range(5))
    fine = await cli("check", "--max-pending", "5", "--max-age", "1h", "--max-dead", "1")
    assert fine.code == 0
    line = r"OK - pending 5, oldest \d+s, dead 1, workers 1 \| "
    line += r"pending=5;;5;0 oldest=\d+s;;3600;0 dead=1;;1;0 workers=1;;;0\n"
    assert re.fullmatch(line, fine.out)
    assert fine.err == ""
    warned = await cli("check", "--max-pending", "3,100", "--json")
    assert (warned.code, warned.json["status"]) == (1, "warning")
    assert warned.json["findings"] == [{"status": "warning", "said": "pending 5 (at most 3)"}]
    assert warned.json["figures"]["pending"] == 5
    critical = await cli("check", "--max-pending", "3,4", "--max-dead", "0,9", "--topic", "t")
    assert critical.code == 2
    assert critical.out.startswith("CRITICAL - pending 5 (at most 4); dead 1 (at most 0) | ")


@ONE_SERVER
async def test_a_topic_without_worker_is_critical_and_a_paused_one_a_warning(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("alone", 1)
    ran = await cli("check")
    assert ran.code == 2
    assert ran.out.startswith("CRITICAL - no live worker serves alone | ")
    await queue.produce("t", 1)
    await pretend_worker(redis, claimed_at=time.time())
    assert (await cli("check", "--topic", "t")).code == 0  # the other topic is not looked at
    await queue.pause("t")
    paused = await cli("check", "--topic", "t")
    assert paused.code == 1
    assert "paused with messages: t" in paused.out


@ONE_SERVER
async def test_a_worker_that_lives_but_does_not_consume_is_critical(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("t", 1)
    await pretend_worker(redis, claimed_at=time.time() - 300)
    ran = await cli("check")
    assert ran.code == 2
    assert (
        "worker w1 does not consume as it should: its last claim was 5m ago while t had messages" in ran.out
    )
    busy = {"t": [8, 0]}
    await pretend_worker(redis, claimed_at=time.time() - 300, load=busy)
    assert (await cli("check")).code == 0  # it has no room
    await pretend_worker(redis, claimed_at=time.time(), problems=["the fetcher has been stuck for 60 s"])
    ran = await cli("check")
    assert ran.code == 2
    assert "the fetcher has been stuck for 60 s" in ran.out


@ONE_SERVER
async def test_what_cannot_be_known_is_unknown(queue: RedisMessageQueue, cli: Cli) -> None:
    await queue.produce("orders", 1)
    for arguments, said in (
        (["--url", "redis://127.0.0.1:1"], "127.0.0.1:1 refused the connection"),
        (["--topic", "ordres"], "did you mean 'orders'?"),
        (["--queue", "qq"], "did you mean --queue q?"),
        (["--max-pending", "many"], "--max-pending must be a whole number"),
    ):
        ran = await cli("check", *arguments)
        assert ran.code == 3, arguments
        assert ran.out.startswith("UNKNOWN - ")
        assert ran.out.count("\n") == 1
        assert said in ran.out
    misspelt = await cli("check", "--max-pendng", "1")
    assert misspelt.code == 3
    assert "--max-pending" in misspelt.err


def test_limits_are_one_number_or_two() -> None:
    assert _limits("--max-age", "1m,1h", seconds_of).judge(61) is Status.WARNING
    assert _limits("--max-age", "1m", seconds_of).judge(61) is Status.CRITICAL
    assert _limits("--max-age", "1m", seconds_of).judge(60) is Status.OK
    assert _limits("--max-age", None, seconds_of).judge(1e9) is Status.OK
    for wrong in ("1,2,3", "9,3", "", "-1", "1.5"):
        with pytest.raises(UsageError):
            _limits("--max-pending", wrong, _whole)


async def test_a_real_worker_is_well(mq: RedisMessageQueue, cli: Cli) -> None:
    gate = asyncio.Event()

    @mq.handler("t")
    async def handle(n: int) -> None:
        await gate.wait()

    await mq.produce("t", 1)
    await mq.start()

    async def runs() -> bool:
        return [worker.running for worker in await mq.workers()] == [1]

    await eventually(runs)
    ran = await cli("check", "--max-pending", "0")
    gate.set()
    assert ran.code == 0, ran.out
    assert "workers 1" in ran.out
