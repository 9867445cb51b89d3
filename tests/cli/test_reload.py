"""``mx-rmq run --reload``: the worker starts again when the code changes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from mx_rmq.cli.watching import Watched
from tests.cli.programs import running
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from pathlib import Path

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.cli.conftest import Cli

SHOP = """
import asyncio
from pathlib import Path
from mx_rmq import RedisMessageQueue
from mx_rmq.lifecycle import Stopping

mq = RedisMessageQueue(name="q", server_check="off", stop_grace=20)

@mq.handler("orders")
async def on_order(waits: bool) -> None:
    print("begun VERSION", flush=True)
    while waits and not (isinstance(mq._lifecycle.work, Stopping) and Path("may-end").exists()):
        await asyncio.sleep(0.01)
    print("done VERSION", flush=True)
"""


@ONE_SERVER
async def test_a_change_restarts_the_worker_and_an_error_waits_for_the_next(
    queue: RedisMessageQueue, cli: Cli
) -> None:
    """Running handlers finish first, and Ctrl-C ends both processes."""
    shop = cli.directory / "shop.py"
    shop.write_text(SHOP.replace("VERSION", "1"))
    async with running(cli, "run", "shop:mq", "--reload") as program:
        await program.says("worker.started")
        await queue.produce("orders", True)
        await program.says("begun 1", on="out")
        for version in ("2", "3"):  # a second change while the handler runs does not end it either
            shop.write_text(SHOP.replace("VERSION", version))  # as long as the one before
            assert (await program.says("code.changed")).endswith("shop.py; the worker starts again")
        (cli.directory / "may-end").touch()
        await program.says("done 1", on="out")
        await program.says("worker.started")
        await queue.produce("orders", False)
        await program.says("done 3", on="out")

        shop.write_text("x = = 1\n")
        assert "importing 'shop' failed: SyntaxError" in await program.says("worker.ended")
        await program.says("    x = = 1")
        await program.says("waiting for a change of the code")
        shop.write_text(SHOP.replace("VERSION", "4"))
        await program.says("worker.started")
        await queue.produce("orders", True)
        await program.says("begun 4", on="out")
        program.send(signal.SIGINT, to_all=True)
        assert await program.code() == 0
    assert program.out.endswith("begun 4\ndone 4\n")
    assert "Traceback" not in program.err
    assert await queue.workers() == []


@ONE_SERVER
async def test_ctrl_c_ends_it_while_it_waits_for_a_change(server: EmbeddedServer, cli: Cli) -> None:
    code = cli.directory / "code"
    code.mkdir()
    (cli.directory / "shop.py").write_text("1 / 0\n")
    async with running(cli, "run", "shop:mq", "--reload-dir", "code", "--log", "json") as program:
        assert '"event": "worker.ended"' in await program.says("ZeroDivisionError")
        (code / "other.py").write_text("")
        await program.says("code/other.py; the worker starts again")
        await program.says("ZeroDivisionError")
        program.send(signal.SIGINT)
        assert await program.code() == 0


def test_written_added_and_removed_files_have_changed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.py", "b.py", "sub/c.py"):
        (tmp_path / name).write_text("1")
    watched = Watched([tmp_path])
    assert watched.changed() == []
    (tmp_path / "a.py").write_text("22")
    (tmp_path / "b.py").unlink()
    (tmp_path / "sub" / "d.py").write_text("1")
    assert watched.changed() == [str(tmp_path / name) for name in ("a.py", "b.py", "sub/d.py")]
    assert watched.changed() == []


def test_other_files_environments_and_hidden_directories_are_not_watched(tmp_path: Path) -> None:
    for name in (".git", "venv", "__pycache__", "node_modules"):
        (tmp_path / name).mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    watched = Watched([tmp_path, tmp_path / "not-there"])
    for name in ("a.txt", ".git/a.py", "venv/a.py", "__pycache__/a.py", "node_modules/a.py"):
        (tmp_path / name).write_text("1")
    assert watched.changed() == []
