"""``mx-rmq shards``, ``mx-rmq reshard``, and other commands on a queue with several shards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.words import ONE_SERVER, eventually

if TYPE_CHECKING:
    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli
    from tests.words import MakeQueue

pytestmark = ONE_SERVER


@pytest.fixture(autouse=True)
async def four(make_queue: MakeQueue) -> None:
    mq = make_queue(shards=4)
    await mq.produce_many("orders", range(40))
    await mq.produce_many("orders", range(8), delay=60)


async def test_shards_are_shown_with_what_they_have(cli: Cli) -> None:
    ran = await cli("shards", "--json")
    assert ran.code == 0
    shards = ran.json["shards"]
    assert [shard["name"] for shard in shards] == ["0", "1", "2", "3"]
    assert {shard["state"] for shard in shards} == {"serving"}
    assert sum(shard["pending"] for shard in shards) == 40
    assert sum(shard["delayed"] for shard in shards) == 8
    rows = (await cli("shards")).rows
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]


async def test_a_message_is_produced_with_a_key_and_found_by_its_id(cli: Cli) -> None:
    id_ = (await cli("produce", "orders", "1", "--key", "customer-7")).out.strip()
    shown = await cli("show", id_, "--json")
    assert shown.json["key"] == "customer-7"
    assert (await cli("cancel", id_, "--yes")).code == 0
    assert (await cli("show", id_)).code != 0


async def test_every_look_is_over_all_shards(cli: Cli) -> None:
    assert (await cli("topics")).rows[0][:2] == ["orders", "40"]
    assert (await cli("stats")).rows[0][:2] == ["orders", "48"]
    assert len((await cli("messages", "orders", "--limit", "100", "--json")).json["messages"]) == 40
    audit = await cli("audit")
    lines = (audit.out + audit.err).splitlines()
    assert [line.partition(": clean")[0] for line in lines] == [f"shard {n}" for n in range(4)]
    assert (await cli("topic", "pause", "orders")).code == 0
    assert (await cli("topics")).rows[0][-1] == "paused"
    assert "withdrew 48 messages" in (await cli("topic", "purge", "orders", "--yes")).out


async def test_resharding_is_asked_for_watched_and_goes_on(cli: Cli, make_queue: MakeQueue) -> None:
    mq = make_queue()
    done: list[int] = []

    @mq.handler("orders")
    async def handle(n: int) -> None:
        done.append(n)

    await mq.open()
    delayed = await mq.list("orders", state="delayed", limit=100)
    assert await mq.cancel_many([facts.id for facts in delayed.messages]) == 8
    refused = await cli("reshard", "6")
    assert refused.code != 0
    await mq.start()
    ran = await asyncio.wait_for(cli("reshard", "6", "--yes"), 30)
    assert ran.code == 0, ran.err
    assert "has 6 shards now" in ran.out
    assert "has 6 shards already" in (await cli("reshard", "6", "--yes")).out
    assert sorted(done) == list(range(40))


async def test_a_reshard_says_that_no_worker_drains_the_older_shards(cli: Cli, make_queue: MakeQueue) -> None:
    """It waits for them all the same: a worker may start."""
    mq = make_queue()
    await mq.open()
    command = asyncio.create_task(cli("reshard", "2", "--yes"))
    await eventually(lambda: is_draining(mq), 20)
    await mq.purge("orders")
    ran = await asyncio.wait_for(command, 30)
    assert ran.code == 0
    assert "no worker is live: the messages of the older shards wait until one runs" in ran.err


async def is_draining(mq: RedisMessageQueue) -> bool:
    return any(shard.state == "draining" for shard in await mq.shards())


async def test_a_number_that_cannot_be_is_refused(cli: Cli) -> None:
    ran = await cli("reshard", "0", "--yes")
    assert ran.code == 2
    assert "shards must be a whole number from 1 to 1024" in ran.err
