"""``mx-rmq run``: a module's queue as a program."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.programs import running
from tests.harness import free_port
from tests.words import ONE_SERVER, eventually

if TYPE_CHECKING:
    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.cli.conftest import Cli

pytestmark = ONE_SERVER

SHOP = """
import asyncio, logging
from mx_rmq import RedisMessageQueue, Retry
from mx_rmq.lifecycle import Stopping

mq = RedisMessageQueue("redis://127.0.0.1:1", name="elsewhere", server_check="off", stop_grace=20)
nothing = RedisMessageQueue("redis://127.0.0.1:1")

@mq.handler("orders")
async def on_order(seconds: float) -> None:
    print("begun", flush=True)
    if seconds > 60:
        while not isinstance(mq._lifecycle.work, Stopping):
            await asyncio.sleep(0.01)
        print("stopping", flush=True)
    logging.getLogger("shop").warning("order taken")
    await asyncio.sleep(seconds)
    print("done", flush=True)

@mq.handler("mails", retry=Retry(1))
async def on_mail(text: str) -> None:
    raise ValueError("bad \\x1b[2J address")
"""


@pytest.fixture(autouse=True)
def shop(cli: Cli) -> Path:
    (cli.directory / "shop.py").write_text(SHOP)
    return cli.directory


async def test_options_override_the_queue_and_sigterm_ends_it_well(
    queue: RedisMessageQueue, server: EmbeddedServer, cli: Cli
) -> None:
    await queue.produce("mails", "x")
    options = ["--url", server.url, "--queue", "q", "-c", "3", "--topics", "orders"]
    async with running(cli, "run", "shop:mq", *options) as program:
        started = await program.says("worker.started")
        assert started.endswith(f"q at {server.url}, topics orders; 3 at once")
        await queue.produce("orders", 0.3)
        await program.says("begun", on="out")
        program.send(signal.SIGTERM)
        assert await program.code() == 0
    assert program.out == "begun\ndone\n"
    assert "WARNING shop: order taken" in program.err
    assert "worker.stopped" in program.err
    assert (await queue.counts()).topics["mails"].pending == 1


async def test_ctrl_c_lets_handlers_finish_and_a_second_one_does_not(
    queue: RedisMessageQueue, server: EmbeddedServer, cli: Cli
) -> None:
    async with running(cli, "run", "shop:mq", "--url", server.url, "--queue", "q") as program:
        await queue.produce("orders", 600, message_id="A1")
        await program.says("begun", on="out")
        program.send(signal.SIGINT)
        await program.says("stopping", on="out")
        program.send(signal.SIGINT)
        assert await program.code() == 0
    assert program.out == "begun\nstopping\n"
    assert (await queue.find("A1")).state == "pending"


async def test_a_burst_ends_by_itself_and_logs_json_without_payload_and_password(
    queue: RedisMessageQueue, cli: Cli, tcp: str
) -> None:
    await queue.produce("orders", 0.01)
    await queue.produce("mails", "4111-1111")
    url = tcp.replace("redis://", "redis://default:s3cret@")
    ran = await asyncio.wait_for(
        _in_pipe(cli, "run", "shop:mq", "--burst", "--url", url, "--queue", "q", "--log", "json"), 60
    )
    assert (ran[0], ran[1]) == (0, "begun\ndone\n")
    records = [json.loads(line) for line in ran[2].splitlines()]
    events = [record.get("event") for record in records]
    assert {"worker.started", "message.dead", "worker.stopped"} <= set(events)
    assert [record["text"] for record in records if record["logger"] == "shop"] == ["order taken"]
    assert "s3cret" not in ran[2]
    assert "4111" not in ran[2]
    assert (await queue.counts()).dead == 1


async def _in_pipe(cli: Cli, *arguments: str) -> tuple[int, str, str]:
    """As ``cli()``, but a traceback of a handler may be in the log."""
    async with running(cli, *arguments) as program:
        code = await program.code()
    return code, program.out, program.err


async def test_a_terminal_has_colours_unless_they_are_not_wanted(
    queue: RedisMessageQueue, server: EmbeddedServer, cli: Cli
) -> None:
    await queue.produce("mails", "x")
    arguments = ["run", "shop:mq", "--burst", "--url", server.url, "--queue", "q"]
    async with running(cli, *arguments, terminal=True) as program:
        assert await program.code() == 0
    assert "\x1b[32mINFO   \x1b[0m \x1b[1mworker.started\x1b[0m q at " in program.out
    assert "bad ?[2J address" in program.out  # no text of a message steers the terminal
    assert "\x1b[2J" not in program.out
    async with running(cli, *arguments, terminal=True, env={"NO_COLOR": "1"}) as program:
        assert await program.code() == 0
    assert "INFO    worker.started: q at " in program.out
    assert "\x1b" not in program.out


async def test_what_cannot_run_is_a_clear_error(cli: Cli, shop: Path, server: EmbeddedServer) -> None:
    (shop / "broken.py").write_text("import shop\n\ndef deep():\n    return 1 / 0\n\ndeep()\n")
    (shop / "unwritten.py").write_text("import shop\nx = = 1\n")
    for arguments, code, said in (
        ([], 2, "which queue? give it as package.module:name, or set app in [tool.mx-rmq]"),
        (["shops:mq"], 2, f"there is no module 'shops', looked for from {shop}"),
        (["shop:nothing"], 2, "'shop:nothing' has no handler; name a module that registers them"),
        (["shop:mq", "--topics", "order"], 4, "no handler for the topic 'order'; did you mean 'orders'?"),
        (["shop:mq", "-c", "0"], 2, "concurrency must be a whole number >= 1, got 0"),
        (["shop:mq", "--reload", "--burst"], 2, "give one of them"),
        (["shop:mq", "--url", "embedded://", "--processes", "2"], 2, "use embedded:///path"),
    ):
        ran = await cli("run", *arguments)
        assert (ran.code, ran.out) == (code, ""), arguments
        assert said in ran.err
        assert ran.err.count("\n") == 1
    ran = await cli("run", "broken:mq")
    assert ran.code == 1
    assert ran.err.startswith("mx-rmq: importing 'broken' failed: ZeroDivisionError: division by zero\n")
    assert [line for line in ran.err.splitlines() if "File" in line] == [
        f'  File "{shop}/broken.py", line 6, in <module>',
        f'  File "{shop}/broken.py", line 4, in deep',
    ]
    ran = await cli("run", "unwritten:mq")
    assert ran.code == 1
    assert f'  File "{shop}/unwritten.py", line 2\n    x = = 1\n' in ran.err


async def test_a_server_that_is_down_is_exit_3(cli: Cli, shop: Path) -> None:
    (shop / "away.py").write_text(SHOP.replace('server_check="off"', "patience=0.1"))
    ran = await cli("run", "away:mq")
    assert (ran.code, ran.out) == (3, "")
    assert "127.0.0.1:1 refused the connection" in ran.err.splitlines()[-1]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_several_processes_get_the_options_and_end_together(
    queue: RedisMessageQueue, server: EmbeddedServer, cli: Cli
) -> None:
    port = free_port()
    options = ["--url", f"{server.url}?health_check_interval=0", "--queue", "q", "-c", "2"]
    async with running(
        cli, "run", "shop:mq", "--processes", "2", "--metrics-port", str(port), *options
    ) as program:

        async def both() -> list[int]:
            pids = sorted(worker.pid for worker in await queue.workers())
            return pids if len(pids) == 2 else []

        pids = await eventually(both, 60)
        assert {worker.concurrency for worker in await queue.workers()} == {2}
        assert program.pid not in pids
        for pid in pids:  # a password in a URL must not be seen by other users
            assert b"health_check_interval" not in command_line(pid)
        for each in (port, port + 1):
            with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{each}/metrics") as page:
                assert b'mx_rmq_workers{queue="q"} 2.0' in page.read()
        program.send(signal.SIGINT, to_all=True)
        assert await program.code() == 0
    assert await queue.workers() == []
    await queue.produce("orders", 0.01)
    done = await _in_pipe(cli, "run", "shop:mq", "--processes", "2", "--burst", *options)
    assert done[:2] == (0, "begun\ndone\n")
    assert "process.died" not in done[2]


async def test_the_app_and_the_server_may_be_named_in_pyproject(
    queue: RedisMessageQueue, server: EmbeddedServer, cli: Cli, shop: Path
) -> None:
    """The server for a queue that names none itself."""
    del cli.env["MX_RMQ_URL"]
    (shop / "shop.py").write_text(SHOP.replace('"redis://127.0.0.1:1", name="elsewhere"', 'name="q"'))
    (shop / "pyproject.toml").write_text(f'[tool.mx-rmq]\napp = "shop:mq"\nurl = "{server.url}"\n')
    await queue.produce("orders", 0.01)
    code, out, err = await _in_pipe(cli, "run", "--burst", "--quiet")
    assert (code, out) == (0, "begun\ndone\n")
    assert "worker.started" not in err
    assert "WARNING shop: order taken" in err


LOGGING = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="mine %(message)s", level=logging.INFO)
"""


async def test_what_the_module_has_configured_stays_unless_a_style_is_given(
    queue: RedisMessageQueue, server: EmbeddedServer, cli: Cli, shop: Path
) -> None:
    (shop / "shop.py").write_text(LOGGING + SHOP)
    arguments = ["run", "shop:mq", "--burst", "--url", server.url, "--queue", "q"]
    ran = await cli(*arguments)
    assert (ran.code, ran.err) == (0, "")
    assert "mine worker.started: q at " in ran.out
    ran = await cli(*arguments, "--log", "plain")
    assert (ran.code, ran.out) == (0, "")
    assert "INFO    worker.started: q at " in ran.err
