"""The server does what it is asked, but its reply and the connection are lost: at every script."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from mx_rmq import ServerUnavailable
from mx_rmq.storage.connection import Connection
from mx_rmq.storage.store import Store
from tests.faults.arena import TOPIC, Arena
from tests.faults.ending import end
from tests.faults.run import Row, Run
from tests.proxy import Proxy

# At which call at most a script is cut: even a busy queue makes some calls only now and then.
OFTEN, SELDOM, RARELY = 20, 3, 1
SCRIPTS = {
    "produce_one_message": OFTEN,
    "produce_normal_message": SELDOM,
    "produce_delay_message": OFTEN,
    "claim_message": OFTEN,
    "complete_message": OFTEN,
    "retry_message": OFTEN,
    "move_to_dlq": OFTEN,
    "process_delay_message": OFTEN,
    "handle_timeout_message": OFTEN,
    "extend_lease": SELDOM,
    "register_worker": SELDOM,
    "release_message": RARELY,
    "wake_topic": SELDOM,
}
EXPIRING = "expiring"
LEASE = 2.0
RATE = 150.0


async def replies_cut(run: Run) -> Row:
    """All scripts are cut side by side, each at a random one of its next calls, again and again."""
    cuts = run.size(2_000, 60)
    async with Arena.open(run) as arena:
        with Proxy(arena.server) as proxy:
            arena.url = proxy.url
            jobs: tuple[dict[str, Any], ...] = (
                {},
                {"sleep": 0.02},
                {"fail": 1},
                {"dead": "of course"},
                {"sleep": 1.0},
            )
            options: dict[str, Any] = {"lease": LEASE, "crash_limit": 1000, "concurrency": 200}
            arena.worker(**options)
            arena.restless({TOPIC: {}}, 3, 0.8, **options)
            producers = [
                arena.steady(*jobs, rate=RATE),
                arena.steady({}, rate=RATE / 5, topic=EXPIRING, ttl=0.1),  # to be taken over
            ]
            async with waking(arena):
                await cut(run, proxy, cuts, within=run.size(240.0, 60.0))
            arena.worker({EXPIRING: {}}, **options)  # clears the list of what has expired in it
            ending = await end(arena, *producers)
            done = proxy.lost.copy()
    verdict = ending.verdict
    return Row(
        fault=f"connection cut at the reply of the n-th call of each of {len(SCRIPTS)} scripts",
        messages=verdict.acked,
        kills=done.total(),
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure=f"{cuts:,} cuts, 0 lost, 0 stored twice, no error",
        seen=f"{ending}, cuts {dict(done)}",
        ok=ending.ok and done.total() >= cuts and set(done) == set(SCRIPTS),
    )


@asynccontextmanager
async def waking(arena: Arena) -> AsyncIterator[None]:
    """Pass tokens on, which workers do only when one finds them without room: too seldom to wait for."""
    over = False

    async def wake() -> None:
        link = Connection(arena.url, timeout=5.0)
        store = Store(link, arena.keys)
        while not over:
            with suppress(ServerUnavailable):  # a fetcher's next step makes it good
                await store.wake(TOPIC)
            await asyncio.sleep(0.1)
        await link.close()

    waker = asyncio.create_task(wake())
    try:
        yield
    finally:
        over = True
        await waker


async def cut(run: Run, proxy: Proxy, cuts: int, *, within: float) -> None:
    """Cut all scripts equally often; the rare ones at each of their calls, which must suffice."""
    common = [script for script, most in SCRIPTS.items() if most != RARELY]
    least = dict.fromkeys(SCRIPTS, run.size(20, 1)) | dict.fromkeys(common, -(-cuts // len(common)))
    deadline = time.monotonic() + within
    while any(proxy.lost[script] < count for script, count in least.items()):
        assert time.monotonic() < deadline, f"only {dict(proxy.lost)} within {within:g} s"
        for script, most in SCRIPTS.items():
            wanted = most == RARELY or proxy.lost[script] < least[script]
            if wanted and not proxy.losing(script):
                proxy.lose_reply(run.dice.randint(1, most), script=script)
        run.tell(f"cut {proxy.lost.total()} of {cuts}")
        await asyncio.sleep(0.01)
