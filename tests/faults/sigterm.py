"""Workers are told to stop while their handlers run."""

from __future__ import annotations

import asyncio

from tests.faults.arena import Arena, eventually
from tests.faults.run import Row, Run

WORKERS = 8
CONCURRENCY = 4
HANDLER = 1.0
GRACE = 5.0


async def sigterm(run: Run) -> Row:
    """Eight workers at a time run 1-second handlers; each is told to stop while they run, and replaced."""
    terms = run.size(100, 20)
    waits = [run.dice.uniform(0.0, HANDLER) for _ in range(terms)]
    codes: list[int | None] = []
    took: list[float] = []
    async with Arena.open(run) as arena:
        # Each worker starts its handlers at most twice before it is told to stop; more must be there.
        messages = terms * CONCURRENCY * 2 + WORKERS * CONCURRENCY
        assert await arena.producer("m", ({"sleep": HANDLER}, messages)).ended(60) == 0

        async def stop_one(wait: float) -> None:
            worker = arena.worker(concurrency=CONCURRENCY, stop_grace=GRACE)
            await eventually(lambda: arena.noted(worker, "start"), 30)
            await asyncio.sleep(wait)
            worker.term()
            took.append(await eventually(lambda: not worker.alive, GRACE + 30))
            codes.append(worker.code)

        async def place() -> None:
            while waits:
                await stop_one(waits.pop())
                run.tell(f"{len(codes)} of {terms} have stopped")

        await asyncio.gather(*(place() for _ in range(WORKERS)))
        left = await arena.open_messages()
        running = (await arena.queue.counts()).processing
        arena.worker(concurrency=1000)
        await arena.drained(within=60)
        verdict = await arena.verdict()
    return Row(
        fault=f"SIGTERM with {CONCURRENCY} handlers of {HANDLER:g} s running, grace {GRACE:g} s",
        messages=verdict.acked,
        kills=terms,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        recovery=max(took),
        figure=f"0 lost, 0 duplicates, exit with code 0 within {GRACE + 1:g} s",
        seen=f"{verdict}; codes {set(codes)}; {running} still leased, {left} left at the end",
        ok=verdict.ok
        and verdict.acked == verdict.done == messages
        and verdict.duplicates == running == 0
        and left > 0
        and codes == [0] * terms
        and max(took) <= GRACE + 1,
    )
