"""Several worker processes under one supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import ConfigError, RedisMessageQueue, run_processes
from mx_rmq.finding import find_queue
from tests.words import ONE_SERVER, eventually, in_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mx_rmq.storage.embedded import EmbeddedServer

APP = """
import asyncio, os
from mx_rmq import RedisMessageQueue
from mx_rmq.lifecycle import Stopping

mq = RedisMessageQueue(os.environ["URL"], name="q", server_check="off", stop_grace=15, concurrency=1)
not_a_queue = 42

@mq.handler("t")
async def on_t(payload: float) -> None:
    os.write(1, f"running {os.getpid()}\\n".encode())  # whole, whoever else writes
    while not isinstance(mq._lifecycle.work, Stopping) and payload > 0:
        await asyncio.sleep(0.01)
    await asyncio.sleep(payload)
    os.write(1, b"finished\\n")
"""
SUPERVISOR = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent thinks of it
from mx_rmq import run_processes
if __name__ == "__main__":
    sys.exit(run_processes("supervised_app:mq", int(sys.argv[1])))
"""
IMPATIENT = """
import sys
from mx_rmq import events, processes
processes._MORE = 1.0
events.listen(lambda event, _: print(event.name, event.pid, flush=True), events.ProcessKilled)
if __name__ == "__main__":
    sys.exit(processes.run_processes("supervised_app:mq", int(sys.argv[1])))
"""


class Supervisor:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self) -> list[str]:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), 30)).decode().split()

    async def code(self) -> int:
        return await asyncio.wait_for(self._process.wait(), 30)


@asynccontextmanager
async def supervised(
    server: EmbeddedServer, home: Path, count: int, *, app: str = APP, main: str = SUPERVISOR
) -> AsyncIterator[Supervisor]:
    (home / "supervised_app.py").write_text(app)
    (home / "main.py").write_text(main)
    path = os.pathsep.join([str(home), *sys.path])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(home / "main.py"),
        str(count),
        env={**os.environ, "URL": server.url, "PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a group of its own, as a shell gives to what it starts
    )
    try:
        yield Supervisor(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def pids(mq: RedisMessageQueue) -> set[int]:
    return {worker.pid for worker in await mq.workers()}


async def exactly(mq: RedisMessageQueue, count: int, *, without: int = 0) -> set[int]:
    """The processes, once there are so many and one of them is gone."""

    async def look() -> set[int]:
        found = await pids(mq)
        return found if len(found) == count and without not in found else set()

    found: set[int] = await eventually(look, within=30)
    return found


@ONE_SERVER
async def test_so_many_processes_share_the_work_a_killed_one_is_replaced_and_all_end_well(
    mq: RedisMessageQueue, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with supervised(server, tmp_path, 2) as supervisor:
        first = await exactly(mq, 2)
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        now = await exactly(mq, 2, without=killed)
        assert len(now - first) == 1
        for n in range(2):
            await mq.produce("t", 0.3, message_id=f"A{n}")
        running = {int((await supervisor.says())[1]) for _ in range(2)}
        assert running == now
        os.kill(supervisor.pid, signal.SIGTERM)
        assert [await supervisor.says(), await supervisor.says()] == [["finished"], ["finished"]]
        assert await supervisor.code() == 0
    assert await pids(mq) == set()
    assert [(await mq.find(f"A{n}")).state for n in range(2)] == ["gone", "gone"]


@ONE_SERVER
async def test_a_ctrl_c_that_reaches_all_processes_is_one_signal_to_each(
    mq: RedisMessageQueue, server: EmbeddedServer, tmp_path: Path
) -> None:
    """The terminal sends it to the whole group; the handlers finish within their grace all the same."""
    async with supervised(server, tmp_path, 1) as supervisor:
        await exactly(mq, 1)
        await mq.produce("t", 0.5, message_id="A1")
        assert (await supervisor.says())[0] == "running"
        os.killpg(supervisor.pid, signal.SIGINT)
        assert await supervisor.says() == ["finished"]
        assert await supervisor.code() == 0
    await in_state(mq, "A1", "gone")


@ONE_SERVER
async def test_a_second_signal_does_not_wait_for_handlers(
    mq: RedisMessageQueue, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with supervised(server, tmp_path, 1) as supervisor:
        await exactly(mq, 1)
        await mq.produce("t", 600.0, message_id="A1")
        assert (await supervisor.says())[0] == "running"
        os.kill(supervisor.pid, signal.SIGTERM)
        await asyncio.sleep(0.2)
        os.kill(supervisor.pid, signal.SIGTERM)
        assert await supervisor.code() == 0
    assert (await mq.find("A1")).state == "pending"


@ONE_SERVER
async def test_processes_whose_supervisor_was_killed_end_by_themselves(
    mq: RedisMessageQueue, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with supervised(server, tmp_path, 1) as supervisor:
        await exactly(mq, 1)
        os.kill(supervisor.pid, signal.SIGKILL)
        await eventually(lambda: _none(mq), within=30)


async def _none(mq: RedisMessageQueue) -> bool:
    return not await pids(mq)


BROKEN = """
import os
from mx_rmq import RedisMessageQueue, run_processes
mq = RedisMessageQueue("redis://127.0.0.1:1", patience=0.01)
mq.handler("t")(lambda payload: None)
if __name__ == "__main__":
    os._exit(run_processes("broken:mq", 1))
"""


def test_processes_that_die_at_once_are_given_up_with_their_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    done = subprocess.run(
        [sys.executable, "broken.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    reason = "ServerUnavailable: 127.0.0.1:1 refused the connection: no server listens there; gave up after"
    assert done.stderr.count("process.died: process ") == 3
    last = done.stderr.splitlines()[-1]
    assert f"processes.given_up: the processes died at once 3 times: {reason}" in last


@pytest.mark.parametrize(
    "where",
    [
        "",
        "app",
        ":mq",
        "app:",
        "no_such_module_anywhere:mq",
        ".relative:mq",
        "os:no_such_name",
        "os:path",
        "os.path:sep",
    ],
)
def test_a_name_that_leads_to_no_queue_is_refused_before_anything_starts(where: str) -> None:
    with pytest.raises(ConfigError):
        run_processes(where, 2)


FOUND = """
from mx_rmq import RedisMessageQueue
mq = RedisMessageQueue("redis://127.0.0.1:1")
number = 42
"""


def test_an_error_tells_what_else_could_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in {
        "found_app": FOUND,
        "lacking_app": "import no_such_package",
        "stopping_app": "raise SystemError('no\\nmore')",
        "refused_app": "import mx_rmq\nmx_rmq.RedisMessageQueue('http://x')",
    }.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert find_queue("found_app:mq") is find_queue("found_app:mq")
    for where, said in {
        "found_app": "'found_app' does not name a queue; write it as package.module:name",
        "found_app:number": "'found_app:number' is a int, not a RedisMessageQueue; "
        "did you mean found_app:mq?",
        "found_app:mqq": f"module 'found_app' ({tmp_path}/found_app.py) has no 'mqq'; "
        "did you mean found_app:mq?",
        "found_app.py:mq": f"there is no module 'found_app.py', looked for from {tmp_path}; "
        "did you mean 'found_app:mq'?",
        "./found_app.py:mq": "'./found_app.py:mq' does not name a queue; did you mean 'found_app:mq'?",
        "no_app.here:mq": f"there is no module 'no_app', looked for from {tmp_path}",
        "lacking_app:mq": "importing 'lacking_app' failed: ModuleNotFoundError: No module named "
        f"'no_such_package'\n  File \"{tmp_path}/lacking_app.py\", line 1, in <module>\n"
        "    import no_such_package",
        "refused_app:mq": "url must begin with redis://, rediss://, unix:// or embedded://; "
        "write redis+sentinel:// for Sentinel and redis+cluster:// for a cluster",
    }.items():
        with pytest.raises(ConfigError) as refused:
            find_queue(where)
        assert str(refused.value) == said
    with pytest.raises(ConfigError, match="importing 'stopping_app' failed: SystemError: no") as refused:
        find_queue("stopping_app:mq")
    assert isinstance(refused.value.__cause__, SystemError)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2", None])
def test_a_number_of_processes_that_makes_no_sense_is_refused(count: Any) -> None:
    with pytest.raises(ConfigError, match="processes"):
        run_processes("os:path", count)


@ONE_SERVER
async def test_a_process_that_does_not_stop_is_killed_and_that_is_told(
    server: EmbeddedServer, mq: RedisMessageQueue, tmp_path: Path
) -> None:
    app = APP.replace("stop_grace=15", "stop_grace=0.1, socket_timeout=0.4")
    async with supervised(server, tmp_path, 1, app=app, main=IMPATIENT) as supervisor:
        await mq.produce("t", 0.0)
        running, pid = await supervisor.says()
        assert running == "running"
        assert await supervisor.says() == ["finished"]
        os.kill(int(pid), signal.SIGSTOP)
        os.kill(supervisor.pid, signal.SIGTERM)
        assert await supervisor.says() == ["process.killed", pid]
        assert await supervisor.code() == 1
