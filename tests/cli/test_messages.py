"""``messages``, ``show``, ``explain``, ``run-now`` and ``cancel``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from mx_rmq.message import Death
from tests.cli.terminal import on_terminal
from tests.words import ONE_SERVER, bury, claim, eventually, put_bytes

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli


async def test_messages_are_listed_by_state_and_page_by_page(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce_many("t", [{"n": n} for n in range(5)])
    await queue.produce("t", "later", delay=7200, message_id="later")
    first = await cli("messages", "t", "--limit", "3")
    assert first.code == 0
    assert [row[-1] for row in first.rows] == ['{"n":0}', '{"n":1}', '{"n":2}']
    cursor = first.err.removeprefix("there is more: --after ").strip()
    second = await cli("messages", "t", "--limit", "3", "--after", cursor, "--json")
    assert [each["payload"] for each in second.json["messages"]] == [{"n": 3}, {"n": 4}]
    assert (second.json["next"], second.err) == (None, "")
    (delayed,) = (await cli("messages", "t", "--state", "delayed")).rows
    assert delayed[:2] == ["later", "delayed"]
    shown = await cli.on_terminal("messages", "t", "--state", "delayed", columns=60)
    assert "later" in shown.out
    assert "in 1h" in shown.out
    assert all(len(line) <= 60 for line in shown.out.splitlines())


@ONE_SERVER
async def test_processing_is_running_and_held(mq: RedisMessageQueue, cli: Cli) -> None:
    gate = asyncio.Event()

    @mq.handler("t", concurrency=1)
    async def handle(n: int) -> None:
        await gate.wait()

    await mq.produce_many("t", range(3))
    await mq.start()

    async def busy() -> bool:
        of = (await mq.counts()).topics["t"]
        return of.running == 1 and of.processing + of.pending == 3

    await eventually(busy)
    ran = await cli("messages", "t", "--state", "processing")
    processing = (await mq.counts()).topics["t"].processing
    states = [row[1] for row in ran.rows]
    gate.set()
    assert "running" in states
    assert set(states) <= {"running", "held"}
    assert len(states) in (processing, 3)  # what waits too long is given back


@ONE_SERVER
async def test_a_search_says_how_far_it_looked_and_goes_on_from_there(
    queue: RedisMessageQueue, cli: Cli
) -> None:
    await queue.produce_many("t", [{"order": n} for n in range(250)])
    ran = await cli("messages", "t", "--grep", '"order":7', "--limit", "3", "--json")
    assert [each["payload"]["order"] for each in ran.json["messages"]] == [7, 70, 71]
    assert ran.json["looked_at"] == 72
    assert "looked at 72 messages" in ran.err
    rest = await cli("messages", "t", "--grep", '"order":7', "--after", ran.json["next"])
    assert [row[-1] for row in rest.rows] == [f'{{"order":{n}}}' for n in range(72, 80)]
    assert "looked at 178 messages" in rest.err
    none = await cli("messages", "t", "--grep", "ORDER")
    assert (none.code, none.out) == (0, "")
    assert "nothing found" in none.err


@ONE_SERVER
async def test_a_misspelt_topic_is_not_found_and_a_limit_is_checked(
    queue: RedisMessageQueue, cli: Cli
) -> None:
    await queue.produce("orders", 1)
    ran = await cli("messages", "ordres")
    assert (ran.code, ran.out) == (4, "")
    assert "did you mean 'orders'?" in ran.err
    ran = await cli("messages", "orders", "--limit", "5000", "--grep", "x")
    assert ran.code == 2
    assert "limit must be a whole number from 1 to 1000" in ran.err


@ONE_SERVER
async def test_a_topic_may_be_called_help(queue: RedisMessageQueue, cli: Cli) -> None:
    await queue.produce("--help", "called so")
    assert (await cli("messages", "--", "--help")).rows[0][-1] == '"called so"'
    assert (await cli("topic", "pause", "--", "--help")).code == 0


async def test_show_tells_facts_payload_headers_and_attempts(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("t", {"ä": [1, "\x1b[31m"]}, message_id="A1", headers={"tenant": "7"})
    await bury(redis, Death(reason="failed", error="ValueError: no", kind="ValueError"))
    shown = await cli.on_terminal("show", "A1")
    assert shown.code == 0
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert {"state dead", "topic t", "reason failed", "last error ValueError: no", "tenant 7"} <= set(lines)
    assert '"ä": [' in shown.out
    assert r"\u001b[31m" in shown.out  # what a payload says to a terminal is not said
    assert any("w1" in line and line.endswith("ValueError: no") for line in lines)
    piped = dict(row[:2] for row in (await cli("show", "A1")).rows)
    assert piped["payload"] == '{"ä": [1, "\\u001b[31m"]}'
    assert piped["state"] == "dead"
    found = (await cli("show", "A1", "--json")).json
    assert found["headers"] == {"tenant": "7"}
    assert [each["error"] for each in found["history"]] == ["ValueError: no"]
    gone = await cli("show", "A2")
    assert (gone.code, gone.out) == (4, "")
    assert "there is no message A2" in gone.err


async def test_bytes_that_cannot_be_read_are_shown_as_hex_with_the_reason(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await put_bytes(redis, "odd", b"\xffnot a message")
    shown = await cli.on_terminal("show", "odd")
    assert "ff 6e 6f 74 20 61 20 6d" in shown.out
    assert ".not a message" in shown.out
    assert "stored bytes are not a message" in shown.out
    found = (await cli("show", "odd", "--json")).json
    assert bytes.fromhex(found["body"]) == b"\xffnot a message"
    assert "stored bytes are not a message" in found["unreadable"]
    (row,) = (await cli("messages", "t")).rows
    assert "stored bytes are not a message" in row[-2]


@ONE_SERVER
async def test_explain_says_why_and_what_to_type(queue: RedisMessageQueue, redis: Redis, cli: Cli) -> None:
    await queue.produce("t", 1, message_id="A1")
    await queue.pause("t")
    ran = await cli("explain", "A1")
    assert ran.out == "message A1 of topic 't' is pending: the topic is paused\n"
    assert ran.err == "mx-rmq topic resume t\n"
    await queue.resume("t")
    await bury(redis)
    dead = await cli("explain", "A1", "--json")
    assert dead.json["state"] == "dead"
    assert dead.err == "mx-rmq dlq replay A1\n"
    assert (await cli("explain", "A2")).code == 4


@ONE_SERVER
async def test_cancel_asks_and_withdraws_only_what_has_not_started(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("t", 1, message_id="A1")
    refused = await cli("cancel", "A1")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    declined = await cli.on_terminal("cancel", "A1", answers="n\n")
    assert declined.code == 1
    assert "Withdraw the pending message A1 of topic 't' from queue 'q' on unix://" in declined.out
    assert (await queue.find("A1")).state == "pending"
    ran = await cli("cancel", "A1", "--yes", "--json")
    assert (ran.code, ran.json) == (0, {"id": "A1", "topic": "t", "cancelled": True})
    assert (await cli("cancel", "A1", "--yes")).code == 4
    await queue.produce("t", 1, message_id="A2")
    await claim(redis)
    running = await cli("cancel", "A2", "--yes")
    assert running.code == 1
    assert "message A2 is with w1" in running.err


@ONE_SERVER
async def test_a_delayed_message_is_run_now(queue: RedisMessageQueue, cli: Cli) -> None:
    await queue.produce("t", 1, message_id="A1", delay=3600)
    await queue.produce("t", 1, message_id="A2")
    ran = await cli("run-now", "A1", "--json")
    assert (ran.code, ran.json) == (0, {"id": "A1", "topic": "t", "due": True})
    due_at = (await queue.find("A1")).due_at
    assert due_at is not None
    assert due_at < time.time() + 60
    pending = await cli("run-now", "A2")
    assert pending.code == 1
    assert "only a delayed message is made due: message A2 of topic 't' is pending" in pending.err
    assert (await cli("run-now", "nobody")).code == 4


@ONE_SERVER
async def test_what_a_message_says_cannot_steer_the_terminal(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J"
    await queue.produce("t", {"name": evil}, message_id="A1", headers={f"h{evil}": evil})
    await bury(redis, Death(reason="failed", error=f"ValueError: {evil}", kind="ValueError"), "t")
    for command in (
        ["explain", "A1"],
        ["show", "A1"],
        ["dlq", "show", "A1"],
        ["dlq", "ls"],
        ["cancel", "A1"],
    ):
        async with on_terminal(cli, *command) as terminal:
            await terminal.ended()
            assert "owned" in terminal.raw or command[0] == "cancel", command
            assert "\x1b]0;" not in terminal.raw, command
            assert "\x1b[2J" not in terminal.raw, command
