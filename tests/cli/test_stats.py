"""``workers`` and ``stats``."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.words import ONE_SERVER, drained, eventually

if TYPE_CHECKING:
    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli
    from tests.words import MakeQueue


@ONE_SERVER
async def test_workers_tell_what_they_have_and_when_they_were_seen(mq: RedisMessageQueue, cli: Cli) -> None:
    none = await cli("workers")
    assert (none.code, none.out, none.err) == (0, "", "no live worker\n")
    gate = asyncio.Event()

    @mq.handler("orders")
    async def handle(n: int) -> None:
        await gate.wait()

    await mq.produce("orders", 1)
    await mq.start()

    async def registered() -> bool:
        return [worker.running for worker in await mq.workers()] == [1]

    await eventually(registered)
    (row,) = (await cli("workers")).rows
    assert row[0].startswith(f"{mq.config.worker_name}.{os.getpid()}.")
    assert row[2:6] == [str(os.getpid()), "1", "0", "8"]
    assert row[9] == "orders"
    shown = await cli.on_terminal("workers", columns=200)
    assert " ".join(shown.out.split()).startswith("worker host pid running held at once seen claimed lag")
    assert "ago" in shown.out or "now" in shown.out
    (worker,) = (await cli("workers", "--json")).json["workers"]
    assert (worker["running"], worker["topics"], worker["pid"]) == (1, ["orders"], os.getpid())
    gate.set()


@ONE_SERVER
async def test_stats_are_totals_by_topic(mq: RedisMessageQueue, cli: Cli) -> None:
    @mq.handler("orders")
    async def handle(n: int) -> None:
        pass

    await mq.produce_many("orders", range(3))
    await mq.start()
    await drained(mq)
    await mq.produce("mails", 1)
    ran = await cli("stats")
    assert [row[:6] for row in ran.rows] == [
        ["mails", "1", "0", "0", "0", "0"],
        ["orders", "3", "3", "0", "0", "0"],
    ]
    assert all(0.02 < float(rate) < 0.06 for rate in ran.rows[1][6:8])  # three in the last minute
    assert ran.rows[0][7:9] == ["0.0", "0.0"]
    found = (await cli("stats", "--json")).json["topics"]["orders"]
    rates = found.pop("rates")
    assert found == {"produced": 3, "completed": 3, "retried": 0, "recovered": 0, "dead": 0}
    assert 0.02 < rates["completed"] < 0.06
    assert rates["run_p50"] is not None


@ONE_SERVER
async def test_watched_stats_are_rates_in_lines_until_interrupted(queue: RedisMessageQueue, cli: Cli) -> None:
    await queue.produce("orders", 1)
    watching = subprocess.Popen(
        [sys.executable, "-m", "mx_rmq", "stats", "--watch", "0.5", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cli.env,
        cwd=cli.directory,
    )
    assert watching.stdout is not None
    assert watching.stderr is not None
    await asyncio.to_thread(watching.stdout.readline)
    await queue.produce_many("orders", range(100))
    said = await asyncio.to_thread(watching.stdout.readline)
    said += await asyncio.to_thread(watching.stdout.readline)
    watching.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(watching.wait, 20) == 130
    assert watching.stderr.read() == "mx-rmq: interrupted\n"
    watching.stdout.close()
    watching.stderr.close()
    assert '"pending": 101' in said
    rates = [part.split(",")[0] for part in said.split('"produced_per_second": ')[1:]]
    assert max(map(float, rates)) > 10


@ONE_SERVER
async def test_a_topic_that_the_history_does_not_have_has_no_figures(make_queue: MakeQueue, cli: Cli) -> None:
    queue = make_queue(history=False)
    await queue.open()
    await queue.produce("orders", 1)
    ran = await cli("stats")
    assert ran.rows == [["orders", "1", "0", "0", "0", "0", "", "", "", "", ""]]
    assert "not in the history" in ran.err
    assert (await cli("stats", "--json")).json["topics"]["orders"]["rates"] is None


@ONE_SERVER
async def test_an_interval_that_is_too_short_is_refused(queue: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("stats", "--watch", "0")
    assert ran.code == 2
    assert "--watch must be 0.1 seconds or longer" in ran.err
