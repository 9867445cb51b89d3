"""What is the same for every command: options, errors, exit codes, closed pipes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.cli.conftest import Cli


@ONE_SERVER
async def test_a_server_that_is_down_is_one_sentence_and_exit_3(cli: Cli) -> None:
    ran = await cli("topics", "--url", "redis://127.0.0.1:1")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.count("\n") == 1
    assert "127.0.0.1:1 refused the connection" in ran.err


@ONE_SERVER
async def test_unknown_commands_options_and_urls_are_usage_errors(cli: Cli) -> None:
    for arguments, said in (
        (["topix"], "did you mean 'topic"),
        (["topics", "--urll", "x"], "--url"),
        (["topics", "--url", "http://x"], "url must begin with redis://"),
        (["topic", "pause"], "requires an argument"),
    ):
        ran = await cli(*arguments)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert said in ran.err
        assert ran.err.count("\n") == 1


@ONE_SERVER
async def test_a_misspelt_queue_is_not_found_and_the_right_one_named(
    queue: RedisMessageQueue, cli: Cli
) -> None:
    await queue.produce("orders", 1)
    ran = await cli("topics", "--queue", "qq")
    assert ran.code == 4
    assert "did you mean --queue q?" in ran.err


@ONE_SERVER
async def test_settings_come_from_pyproject_and_options_win(
    queue: RedisMessageQueue, server: EmbeddedServer, cli: Cli
) -> None:
    await queue.produce("orders", 1)
    del cli.env["MX_RMQ_URL"], cli.env["MX_RMQ_QUEUE"]
    table = f'[tool.mx-rmq]\nurl = "{server.url}"\nqueue = "q"\n'
    (cli.directory / "pyproject.toml").write_text(table)
    assert (await cli("topics")).rows[0][0] == "orders"
    assert (await cli("topics", "--url", "redis://127.0.0.1:1")).code == 3
    (cli.directory / "pyproject.toml").write_text(table + 'urll = "x"\n')
    ran = await cli("topics")
    assert ran.code == 2
    assert "there is no setting 'urll'; did you mean 'url'?" in ran.err


@ONE_SERVER
async def test_a_closed_pipe_ends_a_command_without_a_word(queue: RedisMessageQueue, cli: Cli) -> None:
    for n in range(300):
        await queue.produce(f"topic-{n:03}", 1)
    line = f"{sys.executable} -m mx_rmq topics | head -n 1"
    done = await asyncio.to_thread(
        subprocess.run, line, shell=True, env=cli.env, cwd=cli.directory, capture_output=True, text=True
    )
    assert done.stdout.startswith("topic-000\t1")
    assert done.stderr == ""
