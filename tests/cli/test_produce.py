"""``produce``: one message, and many from standard input."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.words import ONE_SERVER, eventually, in_order

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.cli.conftest import Cli


async def test_a_message_is_stored_with_all_it_was_given(queue: RedisMessageQueue, cli: Cli) -> None:
    options = ["-p", "high", "--delay", "5m", "--ttl", "1h", "--id", "A1", "-H", "a=1", "-H", "b=x=y"]
    ran = await cli("produce", "t", '{"n": 1.0}', *options)
    assert (ran.code, ran.out, ran.err) == (0, "A1\n", "")
    facts = await queue.find("A1")
    assert facts.state == "delayed"
    assert facts.message is not None
    assert (facts.message.priority, facts.message.ttl) == ("high", 3600.0)
    assert facts.message.headers == {"a": "1", "b": "x=y"}
    assert bytes(facts.message.payload) == b'{"n": 1.0}'
    again = await cli("produce", "t", "2", "--id", "A1", "--json")
    assert again.json == {"id": "A1", "topic": "t", "duplicate": True}
    assert "there is a message A1 already" in again.err


@ONE_SERVER
async def test_a_payload_that_is_not_json_is_a_usage_error_with_a_hint(
    queue: RedisMessageQueue, cli: Cli
) -> None:
    ran = await cli("produce", "t", "{id: 7}")
    assert (ran.code, ran.out) == (2, "")
    assert "the payload must be JSON, got '{id: 7}'; in a shell write it in single quotes" in ran.err
    for arguments, said in (
        (["t", "1", "-H", "x"], "-H must be name=value"),
        (["t", "1", "--delay", "soon"], "--delay must be a duration"),
        (["t", "-", "--id", "A1"], "--id is for one message"),
        (["a b", "1"], "a topic must be"),
        (["t", "1", "-p", "urgent"], '"urgent"'),
    ):
        ran = await cli("produce", *arguments)
        assert ran.code == 2, arguments
        assert said in ran.err
    assert await queue.topics() == []


@ONE_SERVER
async def test_a_payload_may_begin_with_a_hyphen(queue: RedisMessageQueue, cli: Cli) -> None:
    id_ = (await cli("produce", "t", "-5")).out.strip()
    assert (await queue.find(id_)).payload == -5


@ONE_SERVER
async def test_lines_become_messages_in_their_order(queue: RedisMessageQueue, redis: Redis, cli: Cli) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(30_000)) + "\n" + '{"n": "last"}'
    ran = await cli("produce", "t", "-", "-H", "a=1", "--json", stdin=lines)
    assert ran.json == {"topic": "t", "stored": 30_001, "lines": 30_002}
    ids = await in_order(redis)
    assert len(ids) == 30_001
    assert (await queue.find(ids[0])).payload == {"n": 0}
    last = await queue.find(ids[-1])
    assert last.payload == {"n": "last"}
    assert last.message is not None
    assert last.message.headers == {"a": "1"}


@ONE_SERVER
async def test_a_bad_line_says_its_number_what_was_stored_and_how_to_go_on(
    queue: RedisMessageQueue, cli: Cli
) -> None:
    ran = await cli("produce", "t", "-", stdin="1\n2\n\nthree\n4\n")
    assert (ran.code, ran.out) == (1, "")
    assert "line 4 is not JSON: 'three'; stored 2 messages in t, from 3 lines before it" in ran.err
    assert "tail -n +4 FILE | mx-rmq produce t -" in ran.err
    assert (await queue.counts()).pending == 2


@ONE_SERVER
async def test_an_interrupted_stream_says_how_far_it_got(queue: RedisMessageQueue, cli: Cli) -> None:
    """What was typed is stored at once, and waiting for more can be interrupted."""
    child = subprocess.Popen(
        [sys.executable, "-m", "mx_rmq", "produce", "t", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.env,
        cwd=cli.directory,
    )
    assert child.stdin is not None
    child.stdin.write(b"1\n2\n")
    child.stdin.flush()

    async def stored() -> bool:
        return (await queue.counts()).pending == 2

    await eventually(stored, 30)
    child.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(child.wait, 20) == 130
    assert child.stderr is not None
    said = child.stderr.read().decode()
    assert said == "stored 2 messages in t, from 2 lines\nmx-rmq: interrupted\n"
    for stream in (child.stdin, child.stdout, child.stderr):
        assert stream is not None
        stream.close()


@ONE_SERVER
async def test_a_file_and_a_bar_on_a_terminal(queue: RedisMessageQueue, cli: Cli) -> None:
    (cli.directory / "lines").write_text("1\n2\n")
    shown = await cli.on_terminal("produce", "t", "-", answers="7\n\x04")
    assert shown.code == 0
    assert "producing to t" in shown.out
    assert "stored 1 message in t, from 1 line" in shown.out
    line = f"{sys.executable} -m mx_rmq produce t - < lines"
    await asyncio.to_thread(subprocess.run, line, shell=True, env=cli.env, cwd=cli.directory, check=True)
    assert (await queue.counts()).pending == 3
