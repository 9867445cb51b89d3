"""What commands print while one shard of the queue does not answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ServerUnavailable
from mx_rmq.cli.dlq import ls
from mx_rmq.cli.settings import Common
from mx_rmq.cli.stats import stats
from mx_rmq.cli.topics import purge
from mx_rmq.storage.shard import Shard, shard_number
from tests.cli.test_top import top
from tests.words import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from mx_rmq import RedisMessageQueue
    from tests.proxy import Proxy
    from tests.words import MakeQueue

    Printed = Callable[[Awaitable[Any]], Awaitable[tuple[str, str]]]

JSON = Common(json=True)


@pytest.fixture
def queue(make_queue: MakeQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> RedisMessageQueue:
    """The queue of all commands. It has two shards, and the second is reached through the proxy only."""
    mq = make_queue(shards=2, patience=0.5, socket_timeout=1.0)
    lifecycle: Any = mq._lifecycle
    usual = lifecycle._new_shard
    lifecycle._new_shard = lambda name: Shard(proxy.url, mq.config, name) if name == "1" else usual(name)

    @asynccontextmanager
    async def opened(common: Common, **_: Any) -> AsyncIterator[RedisMessageQueue]:
        yield mq

    for module in ("messages", "topics", "dlq", "stats"):
        monkeypatch.setattr(import_module(f"mx_rmq.cli.{module}"), "opened", opened)
    return mq


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Runs a command; returns what it prints as a result and as remarks."""

    async def run(command: Awaitable[Any]) -> tuple[str, str]:
        capsys.readouterr()
        await command
        return capsys.readouterr()

    return run


async def filled(mq: RedisMessageQueue, proxy: Proxy) -> list[str]:
    """Produce messages to both shards and cut off one; returns the ids on the other."""
    ids = await mq.produce_many("t", range(40))
    proxy.away()
    return [id_ for id_ in ids if shard_number(id_, 2) == 0]


@pytest.mark.parametrize("grep", [None, ""])
async def test_messages_says_which_shard_is_missing(
    queue: RedisMessageQueue, proxy: Proxy, printed: Printed, grep: str | None
) -> None:
    messages = import_module("mx_rmq.cli.messages").messages
    there = await filled(queue, proxy)
    out, err = await printed(messages("t", grep=grep))
    assert [line.split("\t")[0] for line in out.splitlines()] == there
    assert "missing: shard 1 at " in err
    out, _ = await printed(messages("t", grep=grep, common=JSON))
    assert len(json.loads(out)["missing"]) == 1


@pytest.mark.parametrize("name", [None, "kept.jsonl"])
async def test_purging_a_topic_does_nothing_without_a_shard(
    queue: RedisMessageQueue, proxy: Proxy, tmp_path: Path, name: str | None
) -> None:
    """It says so before it asks, and before it acts."""
    there = await filled(queue, proxy)
    file = None if name is None else tmp_path / name
    with pytest.raises(ServerUnavailable, match=r"^nothing was withdrawn: shard 1 at "):
        await purge("t", export_to=None if file is None else str(file), yes=True)
    assert (await queue.counts()).pending == len(there)
    assert file is None or not file.exists()


async def test_dlq_ls_says_which_shard_is_missing(
    queue: RedisMessageQueue, proxy: Proxy, printed: Printed
) -> None:
    await queue.open()
    body = {"topic": "t", "body": '{"payload":1,"created_at":1.0}', "reason": "failed", "error": "E: x"}
    await queue.dlq.restore([body | {"id": f"m{n}", "died_at": 1e9 - n} for n in range(9)])
    proxy.away()
    there = [id_ for n in range(9) if shard_number(id_ := f"m{n}", 2) == 0]
    out, err = await printed(ls())
    assert [line.split("\t")[0] for line in out.splitlines()] == there
    assert "missing: shard 1 at " in err
    out, _ = await printed(ls(common=JSON))
    assert len(json.loads(out)["missing"]) == 1


async def test_stats_say_which_shard_is_missing(
    queue: RedisMessageQueue, proxy: Proxy, printed: Printed
) -> None:
    there = await filled(queue, proxy)
    out, err = await printed(stats())
    assert out.split("\t")[:2] == ["t", str(len(there))]
    assert err.count("missing: shard 1 at ") == 1
    out, _ = await printed(stats(common=JSON))
    (missing,) = json.loads(out)["missing"]
    assert missing.startswith("shard 1 at ")


async def test_a_shard_that_is_back_is_no_rate(
    queue: RedisMessageQueue, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its totals are missing in one look and there in the next, but nothing was produced."""
    there = await filled(queue, proxy)
    watching = asyncio.create_task(stats(watch="0.1", common=JSON))
    looks: list[dict[str, Any]] = []
    errors = ""

    def has(*, missing: int, speed: float | None) -> bool:
        nonlocal errors
        out, err = capsys.readouterr()
        looks.extend(map(json.loads, out.splitlines()))
        errors += err
        assert {look["topics"]["t"]["produced_per_second"] for look in looks} <= {None, 0.0}
        return any(
            (len(look["missing"]), look["topics"]["t"]["produced_per_second"]) == (missing, speed)
            for look in looks
        )

    try:
        await eventually(lambda: has(missing=1, speed=0.0))
        assert looks[-1]["topics"]["t"]["pending"] == len(there)
        proxy.back()
        await eventually(lambda: has(missing=0, speed=None) and has(missing=0, speed=0.0))
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    assert looks[-1]["topics"]["t"]["pending"] == 40
    assert errors.count("missing: shard 1 at ") == 1
    assert "other shards answer than before" in errors


async def test_top_says_which_shard_is_missing_and_shows_no_rate_when_it_is_back(
    queue: RedisMessageQueue, proxy: Proxy
) -> None:
    await queue.produce_many("t", range(4000))
    proxy.away()
    async with top(queue, 200) as shown:
        assert shown.text("status").startswith("missing: shard 1 at ")
        await asyncio.sleep(1.2)  # a second look
        proxy.back()
        await eventually(lambda: not shown.text("status").startswith("missing"))
        assert shown.row("t")["pending"] == "4,000"
        assert float(shown.row("t")["in/s"].replace(",", "")) < 100  # those of the last minute
