from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mx_rmq import RedisMessageQueue, Reject
from mx_rmq.worker import sharing
from tests.cli.terminal import on_terminal
from tests.words import ONE_SERVER, eventually

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from tests.cli.conftest import Cli


def shares() -> bool:
    """Whether a worker of this process shares its events."""
    return any(each._wants for each in sharing._sharing.values())


@asynccontextmanager
async def tailing(cli: Cli, *arguments: str) -> AsyncIterator[Process]:
    """Run ``mx-rmq tail`` in a pipe until the block ends; yields once a worker of this process shares."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mx_rmq", "tail", *arguments),
        cwd=cli.directory,
        env=cli.env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await eventually(shares, 30)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def work(mq: RedisMessageQueue) -> None:
    @mq.handler("orders")
    async def on_order(n: int) -> None:
        if n:
            raise Reject(f"no order {n}")

    await mq.start()


@ONE_SERVER
async def test_lines_in_a_pipe_and_ctrl_c_is_130(mq: RedisMessageQueue, cli: Cli) -> None:
    await work(mq)
    async with tailing(cli, "--event", "dead,completed", "--event", "retried") as process:
        await mq.produce("orders", 0, message_id="good")
        await mq.produce("orders", 1, message_id="bad")
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        rest, said = await process.communicate()
    cells = sorted((line.decode().rstrip("\n").split("\t") for line in lines), key=lambda row: row[1])
    assert [row[1] for row in cells] == ["message.completed", "message.dead"]
    assert cells[0][0].endswith("+00:00")
    assert cells[0][2].startswith(mq.config.worker_name)
    assert cells[1][3].startswith("orders bad is dead (rejected)")
    assert process.returncode == 130
    assert rest == b""
    assert said.decode().startswith("1 live worker of queue 'q' on unix://")
    assert "Traceback" not in said.decode()


@ONE_SERVER
async def test_json_lines_and_a_closed_pipe(mq: RedisMessageQueue, cli: Cli) -> None:
    await work(mq)
    async with tailing(cli, "orders", "--json", "--quiet", "-e", "dead") as process:
        await mq.produce_many("orders", [0, 7])
        assert process.stdout is not None
        record = json.loads(await process.stdout.readline())
        assert (record["event"], record["topic"], record["reason"]) == ("message.dead", "orders", "rejected")
        assert "no order 7" in record["error"]
        assert "payload" not in record
        process.stdout._transport.close()  # type: ignore[attr-defined]
        await mq.produce("orders", 8)
        assert await asyncio.wait_for(process.wait(), 15) == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""


@ONE_SERVER
async def test_unknown_events_are_usage_errors_and_unknown_topics_not_found(
    queue: RedisMessageQueue, cli: Cli
) -> None:
    await queue.produce("orders", 1)
    ran = await cli("tail", "--event", "deads")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no event 'deads'; did you mean 'dead'?" in ran.err
    ran = await cli("tail", "ordres", "--quiet")
    assert (ran.code, ran.out) == (4, "")
    assert "did you mean 'orders'?" in ran.err


@ONE_SERVER
async def test_a_terminal_shows_local_time_event_and_facts(mq: RedisMessageQueue, cli: Cli) -> None:
    await work(mq)
    async with on_terminal(cli, "tail", "-e", "dead") as terminal:
        await eventually(shares, 30)
        await mq.produce("orders", 1, message_id="bad")
        await terminal.shows("is dead (rejected)")
        terminal.type("\x03")
        assert await terminal.ended() == 130
    (line,) = [line for line in terminal.text.splitlines() if "is dead" in line]
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}  message\.dead +orders bad is dead", line)
    assert "\x1b[33mmessage.dead" in terminal.raw
    assert "Traceback" not in terminal.text
