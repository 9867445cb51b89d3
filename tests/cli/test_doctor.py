"""``doctor`` and ``audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.words import ONE_SERVER, bury

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli


async def test_the_doctor_names_what_is_wrong_and_its_remedy(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("orders", 1)
    ran = await cli("doctor")
    assert (ran.code, ran.err) == (1, "")
    found = {row[1]: row for row in ran.rows}
    assert found["persistence"][0] == "problem"
    assert found["persistence"][3] == "set appendonly to yes"
    assert found["unserved"][0] == "problem"
    assert "serves orders" in found["unserved"][2]
    assert {"server", "eviction", "memory", "latency", "clock", "rights", "scripts", "audit"} <= found.keys()
    told = (await cli("doctor", "--json")).json
    assert (told["ok"], told["queue"]) == (False, "q")
    assert {each["what"] for each in told["diagnoses"]} == found.keys()
    shown = await cli.on_terminal("doctor", columns=60)
    assert shown.code == 1
    assert "→ set appendonly to yes" in shown.out
    assert all(len(line) <= 60 for line in shown.out.splitlines())


@ONE_SERVER
async def test_without_a_problem_the_doctor_exits_with_0(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await redis.config_set("appendonly", "yes")
    try:
        ran = await cli("doctor")
    finally:
        await redis.config_set("appendonly", "no")
    assert ran.code == 0
    assert "problem" not in [row[0] for row in ran.rows]


@ONE_SERVER
async def test_an_audit_finds_asks_and_repairs(queue: RedisMessageQueue, redis: Redis, cli: Cli) -> None:
    await queue.produce("orders", 1, message_id="A1")
    clean = await cli("audit")
    assert (clean.code, clean.out) == (0, "")
    assert clean.err == "clean: 1 pending, 0 processing, 0 delayed, 0 dead\n"
    await redis.delete("mx-rmq:{q}:orders:pending")
    found = await cli("audit")
    assert found.code == 1
    assert found.rows == [["body-in-no-place", "A1", "orders", "no", ""]]
    assert "mx-rmq audit --repair puts this right" in found.err
    refused = await cli("audit", "--repair")
    assert (refused.code, refused.out) == (2, "")
    assert "Repair 1 finding in queue 'q' on unix://" in refused.err
    repaired = await cli.on_terminal("audit", "--repair", answers="y\n")
    assert repaired.code == 0
    assert "body-in-no-place" in repaired.out
    again = await cli("audit", "--repair", "--json")  # nothing to ask
    assert (again.code, again.json["clean"]) == (0, True)
    assert (await queue.find("A1")).state == "pending"


@ONE_SERVER
async def test_a_repair_puts_dead_messages_into_their_groups(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("orders", 1, message_id="A1")
    await bury(redis, topic="orders")
    await redis.delete("mx-rmq:{q}:dlq_groups")
    await redis.hdel("mx-rmq:{q}:dlq_payload", "A1:group")
    assert "mx-rmq audit --repair counts them" in (await cli("dlq", "groups")).err
    asked = await cli("audit", "--repair")
    assert (asked.code, asked.out) == (2, "")
    assert "Put 1 dead message into groups in queue 'q' on unix://" in asked.err
    assert (await cli("audit", "--repair", "--yes")).code == 0
    assert [row[0] for row in (await cli("dlq", "groups")).rows] == ["1"]
