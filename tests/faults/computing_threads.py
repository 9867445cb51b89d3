"""Plain handlers that compute, and leave the thread that keeps the leases little of the interpreter."""

from __future__ import annotations

from tests.faults.arena import Arena
from tests.faults.run import Row, Run


async def computing_threads(run: Run) -> Row:
    """All runners compute, over many topics; a second worker would take over what lapses."""
    topics = 16
    threads, lease = run.size((64, 15.0), (24, 6.0))
    async with Arena.open(run) as arena:
        names = [f"t{n}" for n in range(topics)]
        busy = arena.worker({name: {"computes": True} for name in names}, lease=lease, concurrency=threads)
        seconds = run.size(2.5, 1.7) * lease
        for n in range(threads):
            id_ = f"c-{n}"
            arena.ledger.write("tried", id_)
            await arena.queue.produce(names[n % topics], {"compute": seconds}, message_id=id_)
            arena.ledger.write("acked", id_)
        await arena.busy(busy)
        arena.worker({"other": {}}, lease=lease)
        await arena.drained(within=20 * lease)
        lost = arena.log_text().count("lease.lost") + arena.log_text().count("messages.recovered")
        verdict = await arena.verdict()
    return Row(
        fault=f"{threads} plain handlers that compute on {topics} topics, lease {lease:g} s",
        messages=verdict.acked,
        lost=len(verdict.lost),
        duplicates=verdict.duplicates,
        figure="0 leases lost, 1 run each",
        seen=f"{verdict}; {lost} leases lost",
        ok=verdict.ok and lost == 0 and verdict.duplicates == 0 and verdict.done == threads,
    )
