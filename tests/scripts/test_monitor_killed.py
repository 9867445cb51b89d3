"""A monitor is killed between taking messages over and deciding their fate: none of them is lost.

Run as a program, this file is that monitor: ``test_monitor_killed SOCKET NOW_US LIMIT ROUNDS``. In each
round it takes over up to LIMIT messages, says so on its output, waits for a line, and retries them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from mx_rmq.receipt import Stored
from mx_rmq.storage.contract import NewMessage, Settled
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import Clock
from tests.scripts.states import everything

if TYPE_CHECKING:
    from mx_rmq.storage.embedded import EmbeddedServer

LEASE = 15.0
ROOT = Path(__file__).parents[2]


class Monitor:
    """The child process, driven line by line."""

    def __init__(self, process: Process) -> None:
        assert process.stdin
        assert process.stdout
        self.process, self._in, self._out = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, server: EmbeddedServer, clock: Clock, limit: int, rounds: int) -> Monitor:
        arguments = map(str, (server.socket, clock(), limit, rounds))
        path = os.pathsep.join(filter(None, sys.path))
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.scripts.test_monitor_killed", *arguments),
                stdin=PIPE,
                stdout=PIPE,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
            )
        )

    async def says(self) -> list[str]:
        return (await self._out.readline()).decode().split()

    async def go_on(self) -> None:
        self._in.write(b"go\n")
        await self._in.drain()

    async def kill(self) -> None:
        """SIGKILL: no handler, no clean-up, no goodbye."""
        self.process.kill()
        assert (await self.process.communicate())[0] == b""
        assert self.process.returncode == -9


async def test_killing_the_monitor_in_between_loses_none_of_a_thousand(
    store: Store, redis: Redis, server: EmbeddedServer, clock: Clock
) -> None:
    """The message is under the dead monitor's own lease; the next one takes over from it, as from any worker.

    Removing it first and deciding afterwards lost 896 of 1,000 here.
    """
    ids = {f"m{n}" for n in range(1000)}
    assert await store.produce("t", [NewMessage(id_, b"fresh") for id_ in ids]) == [Stored.STORED] * 1000
    assert len((await store.claim("t", 1000, lease=LEASE, holder="worker")).deliveries) == 1000

    retried = taken_by_the_dead = 0
    # (messages at a time, rounds that it finishes before it is killed in the next)
    for limit, finished in [(1, 0), (1000, 0), (37, 2), (250, 1)]:
        clock.advance(LEASE)
        monitor = await Monitor.start(server, clock, limit, finished + 1)
        for _ in range(finished):
            assert await monitor.says() == ["taken", str(limit)]
            await monitor.go_on()
            assert await monitor.says() == ["retried", str(limit)]
            retried += limit
        assert await monitor.says() == ["taken", str(min(limit, 1000 - retried))]
        taken_by_the_dead += min(limit, 1000 - retried)
        await monitor.kill()
        state = await everything(redis)
        assert len(state["t:processing"]) == len(state["all_expire_monitor"]) == 1000 - retried
        assert len(state.get("delay_tasks", {})) == retried

    clock.advance(LEASE)
    rest = 1000 - retried
    assert 0 < rest < 1000
    survivor = await Monitor.start(server, clock, 1000, 1)
    assert await survivor.says() == ["taken", str(rest)]
    await survivor.go_on()
    assert await survivor.says() == ["retried", str(rest)]
    assert await survivor.process.wait() == 0

    state = await everything(redis)
    assert state.keys() & {"t:processing", "all_expire_monitor", "t:pending"} == set()
    assert state["delay_tasks"].keys() == ids
    assert {state["payload"][id_] for id_ in ids} == {"fresh, lapsed"}
    assert state["counters"] == {
        "t:produced": "1000",
        "t:lapsed": str(1000 + taken_by_the_dead),
        "t:retried": "1000",
    }

    clock.advance(1)
    assert set((await store.promote()).promoted) == ids
    second = (await store.claim("t", 1000, lease=LEASE, holder="worker")).deliveries
    assert await store.complete("t", [(each, 0.0) for each in second]) == [Settled.DONE] * 1000
    assert {each.id for each in second} == ids
    assert (
        not {"payload", "t:processing", "all_expire_monitor", "delay_tasks"}
        & (await everything(redis)).keys()
    )


async def main(socket: str, now_us: str, limit: str, rounds: str) -> None:
    clock = Clock()
    clock.us = int(now_us)
    async with Redis(unix_socket_path=socket) as redis:
        store = Store(redis, Keys("q"), now=clock)
        for _ in range(int(rounds)):
            taken = (await store.take_over(int(limit), lease=LEASE, holder="monitor")).taken
            print("taken", len(taken), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            answers = await store.retry(
                "t", [(row.delivery, 1.0, row.delivery.body + f", {row.cause}".encode()) for row in taken]
            )
            print("retried", answers.count(Settled.DONE), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
