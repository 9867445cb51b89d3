from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq.cli.output import Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.topics import _export_and_withdraw
from tests.words import claim, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli


@pytest.fixture
async def shop(queue: RedisMessageQueue) -> RedisMessageQueue:
    """A queue with three orders, of which one is delayed, and a paused topic."""
    await queue.produce_many("orders", [1, 2])
    await queue.produce("orders", 3, delay=60)
    await queue.produce("mails", 1)
    await queue.pause("mails")
    return queue


async def test_topics_are_a_table_on_a_terminal(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli.on_terminal("topics")
    assert ran.code == 0
    header, orders, mails = (
        next(line for line in ran.out.splitlines() if line.split()[:1] == [word])
        for word in ("topic", "orders", "mails")
    )
    assert " ".join(header.split()) == "topic pending running held delayed dead completed oldest state"
    assert orders.split()[:7] == ["orders", "2", "0", "0", "1", "0", "0"]
    assert orders.split()[-2:] == ["no", "worker"]
    assert mails.split()[-1] == "paused"


async def test_topics_are_tab_separated_lines_in_a_pipe(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("topics")
    assert (ran.code, ran.err) == (0, "")
    rows = {row[0]: row for row in ran.rows}
    assert rows["orders"][:7] == ["orders", "2", "0", "0", "1", "0", "0"]
    assert rows["mails"][8] == "paused"


async def test_topics_are_one_json_document(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("topics", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["topics"]["orders"]["pending"] == 2
    assert ran.json["topics"]["mails"]["paused"] is True


async def test_a_narrow_terminal_shows_what_matters(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli.on_terminal("topics", columns=60)
    assert all(len(line) <= 60 for line in ran.out.splitlines())
    assert "held" not in ran.out
    assert "pending" in ran.out


async def test_colours_only_for_terminals_that_want_them(shop: RedisMessageQueue, cli: Cli) -> None:
    assert "\x1b" not in (await cli("topics")).out


async def test_a_topic_is_paused_and_resumed(shop: RedisMessageQueue, cli: Cli) -> None:
    assert (await cli("topic", "pause", "orders")).code == 0
    assert (await shop.counts()).topics["orders"].paused
    ran = await cli("topic", "resume", "orders", "--json")
    assert (ran.code, ran.json) == (0, {"resumed": "orders"})
    assert not (await shop.counts()).topics["orders"].paused


async def test_an_unknown_topic_is_not_found(shop: RedisMessageQueue, cli: Cli) -> None:
    ran = await cli("topic", "pause", "ordres")
    assert (ran.code, ran.out) == (4, "")
    assert "did you mean 'orders'?" in ran.err


async def test_a_purge_asks_and_says_how_many_and_where(shop: RedisMessageQueue, cli: Cli) -> None:
    refused = await cli.on_terminal("topic", "purge", "orders", answers="n\n")
    assert refused.code == 1
    assert "Withdraw 3 messages of topic 'orders' from queue 'q' on unix://" in refused.out
    assert (await shop.counts()).topics["orders"].pending == 2
    agreed = await cli.on_terminal("topic", "purge", "orders", answers="y\n")
    assert agreed.code == 0
    assert (await shop.counts()).topics["orders"].pending == 0


async def test_a_purge_without_a_terminal_needs_yes(shop: RedisMessageQueue, cli: Cli) -> None:
    refused = await cli("topic", "purge", "orders")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    assert (await shop.counts()).topics["orders"].pending == 2
    ran = await cli("topic", "purge", "orders", "--yes", "--json")
    assert (ran.code, ran.json) == (0, {"topic": "orders", "purged": 3})


async def test_a_served_topic_is_running(mq: RedisMessageQueue, cli: Cli) -> None:
    gate = asyncio.Event()

    @mq.handler("orders")
    async def handle(payload: int) -> None:
        await gate.wait()

    await mq.produce("orders", 1)
    await mq.start()

    async def runs() -> bool:
        return (await mq.counts()).topics["orders"].running == 1

    await eventually(runs)
    ran = await cli("topics")
    assert ran.rows[0][2] == "1"
    assert ran.rows[0][8] == "running"
    gate.set()


async def test_what_workers_take_meanwhile_is_told_after_an_export(
    queue: RedisMessageQueue,
    redis: Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await queue.produce_many("mails", range(5))
    cancel_many = queue.cancel_many

    async def too_late(ids: Iterable[str]) -> int:
        await claim(redis, "mails", 2)
        return await cancel_many(ids)

    monkeypatch.setattr(queue, "cancel_many", too_late)
    file = str(tmp_path / "mails.jsonl")
    assert await _export_and_withdraw(Output(Common()), queue, "mails", file, 5) == (5, 3)
    assert f"2 messages in {file} not withdrawn: workers had taken them" in capsys.readouterr().err
