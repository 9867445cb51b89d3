from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import RedisMessageQueue, UnsafeServer
from mx_rmq.storage.server_check import check_server
from tests.harness import command
from tests.words import reader_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Events and what they are about."""
    return [
        (getattr(record, "event", ""), getattr(record, "problem", "") or getattr(record, "error", ""))
        for record in caplog.records
        if record.levelno >= logging.WARNING
    ]


@pytest.fixture
async def safe(redis: Redis) -> AsyncIterator[None]:
    """The server keeps everything on disk."""
    await redis.config_set("appendonly", "yes")
    yield
    await redis.config_set("appendonly", "no")


@pytest.fixture
async def evicting(redis: Redis, safe: None) -> AsyncIterator[None]:
    """The server throws keys away when memory is short."""
    await redis.config_set("maxmemory-policy", "allkeys-lru")
    yield
    await redis.config_set("maxmemory-policy", "noeviction")


# -- versions


@pytest.mark.parametrize(
    "info",
    [
        "redis_version:6.0.16 aof_enabled:1",
        "redis_version:5.0.14",
        "redis_version:2.8",
        "redis_version:6.1.240",
        "redis_version:7.2.4 valkey_version:7.1.0",
    ],
)
@pytest.mark.parametrize("mode", ["warn", "refuse"])
async def test_a_server_that_is_too_old_is_refused_in_any_case(info: str, mode: str) -> None:
    """Its scripts would fail in the middle."""
    with pytest.raises(UnsafeServer, match=r"mx-rmq needs (6\.2|7\.2) or later"):
        await check_server(reader_of(info), mode=mode)


@pytest.mark.parametrize(
    "info",
    [
        "redis_version:6.2.0 aof_enabled:1",
        "redis_version:6.2.14 aof_enabled:1",
        "redis_version:7.0.15 aof_enabled:1",
        "redis_version:10.0 aof_enabled:1",
        "redis_version:7.2.4 valkey_version:7.2.5 aof_enabled:1",
        "redis_version:7.2.4 valkey_version:9.1.2 aof_enabled:1",
        "redis_version:255.255.255 aof_enabled:1",
        "redis_version:7.4.0-v1 aof_enabled:1",
    ],
)
async def test_a_server_that_is_new_enough_is_fine(info: str) -> None:
    assert await check_server(reader_of(info), mode="refuse") == []


@pytest.mark.parametrize("info", ["", "redis_version:", "redis_version:unstable", "nonsense"])
async def test_a_server_that_does_not_say_its_version_is_not_refused(
    info: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await check_server(reader_of(info), mode="refuse") == []
    assert warnings_in(caplog) == [("server.not_checked", "the server's version is unknown")]


# -- real servers


async def test_the_servers_at_hand_are_new_enough(
    server: EmbeddedServer, safe: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with RedisMessageQueue(server.url, server_check="refuse") as queue:
        await queue.produce("t", 1)
    assert warnings_in(caplog) == []


@pytest.mark.parametrize(("mode", "outcome"), [("warn", "warned"), ("refuse", "refused"), ("off", "ignored")])
async def test_a_server_that_keeps_nothing_on_disk(
    server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture, mode: Any, outcome: str
) -> None:
    await redis.config_set("appendonly", "no")
    queue = RedisMessageQueue(server.url, server_check=mode)
    problem = "appendonly is off: a restart of the server loses messages; set appendonly to yes"
    if outcome == "refused":
        with pytest.raises(UnsafeServer, match=problem):
            await queue.open()
    else:
        await queue.open()
    await queue.close()
    assert warnings_in(caplog) == ([("server.unsafe", problem)] if outcome == "warned" else [])


@pytest.mark.parametrize(("mode", "outcome"), [("warn", "warned"), ("refuse", "refused"), ("off", "ignored")])
async def test_a_server_that_throws_keys_away(
    server: EmbeddedServer, evicting: None, caplog: pytest.LogCaptureFixture, mode: Any, outcome: str
) -> None:
    queue = RedisMessageQueue(server.url, server_check=mode)
    problem = "maxmemory-policy is allkeys-lru: the server may throw messages away; set it to noeviction"
    if outcome == "refused":
        with pytest.raises(UnsafeServer, match=problem):
            await queue.produce("t", 1)
    else:
        await queue.produce("t", 1)
    await queue.close()
    assert warnings_in(caplog) == ([("server.unsafe", problem)] if outcome == "warned" else [])


async def test_everything_that_is_wrong_is_said_at_once(
    server: EmbeddedServer, redis: Redis, evicting: None
) -> None:
    await redis.config_set("appendonly", "no")
    with pytest.raises(UnsafeServer, match=r"maxmemory-policy.*; appendonly is off"):
        await RedisMessageQueue(server.url, server_check="refuse").open()


async def test_the_warning_comes_once_per_opening(
    server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.config_set("appendonly", "no")
    async with RedisMessageQueue(server.url) as queue:
        for n in range(5):
            await queue.produce("t", n)
        await queue.open()
    assert [event for event, _ in warnings_in(caplog)] == ["server.unsafe"]


async def test_a_private_server_is_in_memory_on_purpose(caplog: pytest.LogCaptureFixture) -> None:
    async with RedisMessageQueue("embedded://", server_check="refuse") as queue:
        await queue.produce("t", 1, message_id="A1")
        await queue.cancel("A1")
    assert warnings_in(caplog) == []


async def test_a_persistent_embedded_server_is_fine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with RedisMessageQueue(f"embedded://{tmp_path}/data", server_check="refuse") as queue:
        await queue.produce("t", 1)
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("mode", ["warn", "refuse"])
async def test_a_user_who_may_not_ask_is_only_warned(
    server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    await command(redis, "ACL", "SETUSER", "limited", "on", ">geheim", "~*", "+@all", "-info")
    try:
        url = server.url.replace("unix://", "unix://limited:geheim@")
        async with RedisMessageQueue(url, name="q", server_check=mode) as queue:
            assert not (await queue.produce("t", 1)).duplicate
    finally:
        await command(redis, "ACL", "DELUSER", "limited")
    said = warnings_in(caplog)
    assert [event for event, _ in said] == ["server.not_checked", "recovery.by_lease"]
    for _, error in said:
        assert "NOPERM" in error
        assert "geheim" not in error


async def test_a_user_with_only_the_rights_of_the_queue_can_produce_and_handle(
    server: EmbeddedServer, redis: Redis
) -> None:
    """No right to load scripts, to read other keys or to administer is needed."""
    rights = "~mx-rmq:{q}:* +@read +@write +@scripting -script +@blocking +time"
    await command(redis, "ACL", "SETUSER", "limited", "on", ">geheim", *rights.split())
    try:
        url = server.url.replace("unix://", "unix://limited:geheim@")
        async with RedisMessageQueue(url, name="q") as queue:
            handled = asyncio.Event()

            @queue.handler("t")
            async def handle(payload: int) -> None:
                handled.set()

            await queue.start()
            await queue.produce("t", 1, delay=0.001)
            async with asyncio.timeout(10):
                await handled.wait()
            await queue.stop()
            assert (await queue.counts()).topics["t"].completed == 1
            assert (await queue.audit())[0].findings == []
    finally:
        await command(redis, "ACL", "DELUSER", "limited")
