"""``mx-rmq dev``: a server, a worker that reloads and a table of the topics."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from mx_rmq import RedisMessageQueue
from tests.cli.programs import running
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytestmark = ONE_SERVER

SHOP = """
from mx_rmq import RedisMessageQueue

mq = RedisMessageQueue("redis://127.0.0.1:1", name="shop")

@mq.handler("orders")
async def on_order(number: int) -> None:
    print(f"order {number}")
"""


def producer(url: str) -> RedisMessageQueue:
    return RedisMessageQueue(url, name="shop", server_check="off")


async def test_in_a_pipe_it_logs_and_keeps_its_data(cli: Cli) -> None:
    (cli.directory / "shop.py").write_text(SHOP)
    async with running(cli, "dev", "shop:mq") as program:
        url = (await program.says("MX_RMQ_URL=", on="out")).partition("=")[2]
        await program.says("INFO    worker.started: shop at unix://")
        async with producer(url) as queue:
            await queue.produce("orders", 1, delay=3600)
        (cli.directory / "shop.py").write_text(SHOP.replace("order {", "order number {"))
        await program.says("code.changed")
        await program.says("worker.started")
        program.send(signal.SIGINT, to_all=True)
        assert await program.code() == 0
    assert (cli.directory / ".mx-rmq" / ".gitignore").read_text() == "*\n"
    async with producer(f"embedded://{cli.directory}/.mx-rmq") as queue:
        assert (await queue.counts()).delayed == 1


async def test_on_a_terminal_a_table_stays_below_the_lines(cli: Cli) -> None:
    (cli.directory / "shop.py").write_text(SHOP)
    async with running(cli, "dev", "shop:mq", "--fresh", terminal=True) as program:
        url = (await program.says("MX_RMQ_URL=", on="out")).partition("=")[2]
        await program.says("no topic yet", on="out")
        await program.says("worker.started\x1b[0m shop at unix://", on="out")
        async with producer(url) as queue:
            await queue.produce("orders", 7)
        await program.says("order 7", on="out")
        assert "pending" in await program.says("done/s", on="out")
        assert (await program.says("orders ", on="out")).split()[1:3] == ["0", "0"]
        program.send(signal.SIGINT, to_all=True)
        assert await program.code() == 0
    assert "Traceback" not in program.out
    assert not (cli.directory / ".mx-rmq").exists()
