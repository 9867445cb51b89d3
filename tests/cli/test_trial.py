"""``mx-rmq demo`` and ``mx-rmq bench``."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from tests.cli.programs import running
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli

pytestmark = ONE_SERVER


async def test_the_demo_loses_nothing_and_says_so(cli: Cli) -> None:
    ran = await cli("demo", "--messages", "200", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = ran.json
    assert (found["sent"], found["lost"], found["clean"]) == (200, 0, True)
    assert found["done"] + found["dead"] == 200
    ran = await cli.on_terminal("demo", "--messages", "200")
    assert ran.code == 0
    assert re.search(r"200 in, \d+ done, \d+ dead, 0 lost; audit clean; [\d.]+ s\n", ran.out)
    ran = await cli("demo", "--messages", "0")
    assert (ran.code, ran.out) == (2, "")


async def test_a_bench_measures_and_leaves_nothing(queue: RedisMessageQueue, redis: Redis, cli: Cli) -> None:
    await queue.produce("orders", 1)
    ran = await cli("bench", "--messages", "300", "--json")
    assert ran.code == 0
    assert re.fullmatch(r"300 messages go through queue 'bench-\w+' on unix://\S+\n", ran.err)
    found = ran.json
    assert found["messages"] == 300
    assert found["produced_per_s"] > 0
    assert found["handled_per_s"] > 0
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["p95"] <= found["latency_ms"]["p99"]
    ran = await cli("bench", "--messages", "10", "--quiet", "--queue", "bench-mine")
    assert (ran.code, ran.err) == (0, "")
    assert [row[0] for row in ran.rows][:4] == ["server", "messages", "produced /s", "handled /s"]
    assert await redis.keys("mx-rmq:{bench-*") == []
    assert (await queue.counts()).pending == 1


async def test_a_bench_refuses_what_is_not_its_own(queue: RedisMessageQueue, cli: Cli) -> None:
    await queue.produce("orders", 1)
    for arguments, said in (
        (["--queue", "q"], "--queue must begin with bench-, got 'q'"),
        (["--messages", "200001"], "--messages must be a whole number from 1 to 200000"),
        (["--size", "-1"], "--size must be"),
    ):
        ran = await cli("bench", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
    assert (await queue.counts()).pending == 1
    assert (await cli("bench", "--url", "redis://127.0.0.1:1")).code == 3


async def test_an_interrupted_bench_leaves_nothing_either(redis: Redis, cli: Cli) -> None:
    async with running(cli, "bench", "--messages", "200000") as program:
        await program.says("messages go through queue")
        program.send(signal.SIGINT)
        assert await program.code() == 130
    assert program.err.splitlines()[-1] == "mx-rmq: interrupted"
    assert await redis.keys("*") == []
