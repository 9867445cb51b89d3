"""Bad days: no server, no rights, no password, a reader that went away, ten thousand topics."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.harness import command
from tests.words import ONE_SERVER, put_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli

COMMANDS = [
    "topics",
    "messages t",
    "show A1",
    "explain A1",
    "cancel A1 --yes",
    "produce t 1",
    "workers",
    "stats",
    "stats --watch 1",
    "doctor",
    "audit",
]


@ONE_SERVER
@pytest.mark.parametrize("line", COMMANDS)
async def test_a_server_that_is_down_is_one_sentence_and_exit_3(cli: Cli, line: str) -> None:
    ran = await cli(*line.split(), "--url", "redis://127.0.0.1:1")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.count("\n") == 1
    assert "127.0.0.1:1 refused the connection" in ran.err


@ONE_SERVER
@pytest.mark.parametrize("line", ["topics", "produce t 1", "check"])
async def test_a_server_that_does_not_answer_is_given_up_within_5_seconds(cli: Cli, line: str) -> None:
    help_began = time.monotonic()
    await cli("--help")
    start = time.monotonic() - help_began  # what any run costs here
    with socket.create_server(("127.0.0.1", 0)) as door:
        began = time.monotonic()
        ran = await cli(*line.split(), "--url", f"redis://127.0.0.1:{door.getsockname()[1]}")
        took = time.monotonic() - began
    assert ran.code == 3
    assert (ran.err + ran.out).count("\n") == 1
    assert took - 2 * start < 5


@asynccontextmanager
async def user(redis: Redis, cli: Cli, *rules: str) -> AsyncIterator[str]:
    """A URL with a user who has these rights."""
    await command(redis, "ACL", "SETUSER", "limited", "reset", "on", ">geheim", "~*", *rules)
    try:
        yield cli.env["MX_RMQ_URL"].replace("unix://", "unix://limited:geheim@")
    finally:
        await command(redis, "ACL", "DELUSER", "limited")


async def test_a_wrong_password_is_one_sentence_without_it(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    async with user(redis, cli, "+@all") as url:
        ran = await cli("topics", "--url", url.replace("geheim", "falsch"))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "the server refuses the connection" in ran.err
    assert "falsch" not in ran.err


@ONE_SERVER
@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("topics", "smembers"),
        ("messages t", "lrange"),
        ("show A1", "hmget"),
        ("cancel A1 --yes", "evalsha"),
        ("produce t 1", "evalsha"),
        ("workers", "hgetall"),
        ("audit", "scan"),
    ],
)
async def test_the_right_that_a_verb_lacks_is_named(
    queue: RedisMessageQueue, redis: Redis, cli: Cli, line: str, right: str
) -> None:
    await queue.produce("t", 1, message_id="A1")
    async with user(redis, cli, "+@all", f"-{right}") as url:
        ran = await cli(*line.split(), "--url", url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"mx-rmq: the server's user lacks the right +{right}; "
        "mx-rmq doctor tells which rights are missing for what\n"
    )


async def test_the_doctor_says_which_rights_are_missing_for_what(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("t", 1)
    async with user(redis, cli, "+@all", "-blpop", "-lrange", "-client|list") as url:
        told = {row[2]: row for row in (await cli("doctor", "--url", url)).rows if row[1] == "rights"}
    said = "user limited may not produce and work: lacks +blpop"
    assert told[said][0] == "problem"
    assert told[said][3] == "ACL SETUSER limited +blpop"
    assert "user limited may not operate: lacks +lrange" in told
    assert "user limited may not see vanished workers: lacks +client|list" in told


@ONE_SERVER
async def test_a_doctor_without_rights_tells_what_can_be_told(
    queue: RedisMessageQueue, redis: Redis, cli: Cli
) -> None:
    await queue.produce("t", 1)
    rights = "+@read +@write +@scripting +time +ping +hello -script -smembers"
    async with user(redis, cli, *rights.split()) as url:
        refused = await cli("doctor", "--url", url)
    async with user(redis, cli, *rights.split(), "+smembers") as url:
        ran = await cli("doctor", "--url", url)
    assert refused.code == 1  # the queue could not even be looked for
    rows = {row[1]: row for row in ran.rows}
    assert rows["server"][0] == "warning"
    assert "may not run INFO" in rows["server"][2]
    assert rows["rights"][0] == "ok"
    assert "may not ask for its rights" in rows["rights"][2]
    assert rows["audit"][0] == "ok"


@ONE_SERVER
async def test_ten_thousand_topics(queue: RedisMessageQueue, redis: Redis, cli: Cli) -> None:
    await put_bytes(redis, "A1", b"", topic="t")
    names = [f"topic-{n:05}" for n in range(10_000)]
    await redis.sadd("mx-rmq:{q}:topics", *names)
    assert len((await cli("topics")).rows) == 10_001
    ran = await cli("messages", "topic-99999")
    assert ran.code == 4
    assert "did you mean 'topic-0" in ran.err
    assert (await cli("doctor")).code == 1
    assert "no live worker serves t |" in (await cli("check")).out


@ONE_SERVER
@pytest.mark.parametrize("line", ["messages t --limit 1000", "stats --watch 0.1"])
async def test_a_closed_pipe_ends_a_command_without_a_word(
    queue: RedisMessageQueue, cli: Cli, line: str
) -> None:
    await queue.produce_many("t", ["x" * 500] * 1000)
    whole = f"{sys.executable} -m mx_rmq {line} | head -n 1"
    done = await asyncio.to_thread(
        subprocess.run,
        whole,
        shell=True,
        env=cli.env,
        cwd=cli.directory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr
