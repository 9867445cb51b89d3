"""A module-level queue on another server for a while."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, InvalidName, RedisMessageQueue
from tests.words import events, eventually

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "unix:///nowhere/at/all"


def a_queue() -> RedisMessageQueue:
    return RedisMessageQueue(NOWHERE, name="shop", patience=0)


async def test_inside_the_queue_is_on_the_other_server_and_afterwards_as_before() -> None:
    mq = a_queue()
    config, sync = mq.config, mq.sync
    async with mq.override("embedded://"):
        assert (mq.config.url, mq.config.name) == ("embedded://", "shop")
        assert mq.sync is sync
        await mq.produce("t", 1)
        await asyncio.to_thread(mq.sync.produce, "t", 2)
        assert (await mq.counts()).pending == 2
    assert mq.config is config
    with pytest.raises(ConnectionError):
        await mq.produce("t", 3)
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(mq.sync.produce, "t", 4)


async def test_each_block_has_a_server_of_its_own_that_ends_with_it() -> None:
    mq = a_queue()
    pids: set[int] = set()
    for _ in range(2):
        async with mq.override("embedded://"):
            await mq.produce("t", 1)
            assert (await mq.counts()).pending == 1
            server = mq._lifecycle._address._server
            assert server is not None
            pids.add(server.pid)
    assert len(pids) == 2
    await eventually(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_private_server_lives_as_long_as_the_block_though_the_queue_is_closed_in_it() -> None:
    mq = a_queue()
    async with mq.override("embedded://"):
        async with mq:
            await mq.produce("t", 1)
        async with mq:
            assert (await mq.counts()).pending == 1


async def test_the_end_of_a_private_server_is_expected_here(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    mq = a_queue()
    async with mq.override("embedded://"):
        await mq.produce("t", 1)
    assert not events(caplog, "embedded.ended")


def test_code_without_an_event_loop_may_use_it_too() -> None:
    mq = a_queue()
    with mq.override("embedded://"):
        mq.sync.produce("t", 1)
        assert asyncio.run(pending_of(mq)) == 1
    with pytest.raises(ConnectionError):
        mq.sync.produce("t", 2)


async def pending_of(mq: RedisMessageQueue) -> int:
    async with mq:
        return (await mq.counts()).pending


async def test_an_open_queue_is_refused() -> None:
    mq = RedisMessageQueue("embedded://")
    async with mq:
        with pytest.raises(ConfigError, match="needs a queue that is not open"), mq.override("embedded://"):
            pass
        await mq.produce("t", 1)


async def test_a_queue_that_is_left_open_is_named_and_is_itself_again() -> None:
    mq = a_queue()
    with pytest.raises(ConfigError, match="still open at the end of override"), mq.override("embedded://"):
        await mq.open()
    assert mq.config.url == NOWHERE
    async with mq.override("embedded://"):
        await mq.produce("t", 1)


async def test_an_error_in_the_block_comes_out_and_the_queue_is_itself_again() -> None:
    mq = a_queue()

    async def fail() -> None:
        async with mq.override("embedded://"):
            await mq.open()
            raise LookupError

    async def fail_and_leave_it_open() -> None:
        with mq.override("embedded://"):
            await mq.open()
            raise LookupError

    for failing in (fail, fail_and_leave_it_open):
        with pytest.raises(LookupError):
            await failing()
        assert mq.config.url == NOWHERE


def test_a_wrong_url_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    mq = a_queue()
    with pytest.raises(ConfigError, match="url must begin with"), mq.override("amqp://x"):
        pass
    assert mq.config.url == NOWHERE


async def test_the_name_and_the_concurrency_may_be_others_too() -> None:
    mq = RedisMessageQueue("embedded://", name="shop", concurrency=8)
    async with mq:
        await mq.produce("t", 1)
    async with mq.override(name="other", concurrency=3):
        assert (mq.config.url, mq.config.name, mq.config.concurrency) == ("embedded://", "other", 3)
        mq.handler("t")(lambda payload: None)
        await mq.start()
        (worker,) = await eventually(mq.workers)
        assert worker.concurrency == 3
        assert await mq.queues() == ["other"]
    assert (mq.config.name, mq.config.concurrency) == ("shop", 8)


async def test_the_queues_own_server_is_not_expected_to_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with a_queue().override("embedded://"):
        pass
    mq = RedisMessageQueue("embedded://")
    async with mq.override(name="other"):
        await mq.produce("t", 1)
    assert len(events(caplog, "embedded.ended")) == 1


@pytest.mark.parametrize("other", [{"name": "a/b"}, {"concurrency": 0}], ids=str)
def test_wrong_values_are_refused_and_change_nothing(other: dict[str, Any]) -> None:
    mq = a_queue()
    config = mq.config
    with pytest.raises((ConfigError, InvalidName)), mq.override(**other):
        pass
    assert mq.config is config
