"""``mx-rmq demo`` and ``mx-rmq bench``: try the queue out."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

from cyclopts import Parameter
from rich.console import Console

from mx_rmq import demo as the_demo
from mx_rmq.checks import check_whole
from mx_rmq.cli.connecting import opened, place_of
from mx_rmq.cli.exits import Exit, Failure, UsageError
from mx_rmq.cli.output import Output
from mx_rmq.cli.settings import Common

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.queue import RedisMessageQueue

_DEFAULT = Common()
_PREFIX: Final = "bench-"
_MOST: Final = 200_000
"""Messages of a bench: about 100 MB of the server's memory."""
_LONGEST: Final = 120.0
"""Seconds that a bench may take."""
_SINGLES: Final = 200
"""Messages whose latency is measured, one after the other."""
_PORTION: Final = 1000


async def demo(
    *,
    messages: int = 10_000,
    seed: int = 1,
    json: bool = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"))] = False,
) -> int:
    """Send messages of every kind through a queue on a private server, and count what is lost.

    Args:
        messages: how many; 10,000 by default.
        seed: which mixture of delays and failures.
        json: print the result as a JSON document.
        quiet: print the last line only.
    """
    check_whole("--messages", messages, 1)
    logging.getLogger("mx_rmq").setLevel(logging.ERROR)  # the table shows the dead messages
    out = Output(Common(json=json, quiet=quiet))
    found = await the_demo.run(messages, seed, Console(stderr=json or quiet, quiet=json or quiet))
    if json or quiet:
        out.line(str(found), data=asdict(found))
    return Exit.DONE if found.is_good else Exit.FAILED


async def bench(*, messages: int = 10_000, size: int = 100, common: Common = _DEFAULT) -> None:
    """Measure a server with a small load: how fast messages go in and out, and how soon one begins.

    The load has a queue of its own, which is deleted afterwards.

    Args:
        messages: how many; 10,000 by default, 200,000 at most.
        size: bytes of a payload.
    """
    check_whole("--messages", messages, 1, _MOST)
    check_whole("--size", size, 0, 10_000)
    if common.queue is not None and not common.queue.startswith(_PREFIX):
        raise UsageError(
            f"bench deletes its queue afterwards, so --queue must begin with {_PREFIX}, got {common.queue!r}"
        )
    out = Output(common)
    common = replace(common, queue=common.queue or f"{_PREFIX}{uuid4().hex[:12]}")
    async with opened(common, must_exist=False) as queue:
        if queue.config.name in await queue.queues():
            raise UsageError(f"there is a {place_of(queue)} already; bench needs one of its own")
        out.remark(f"{messages:,} messages go through {place_of(queue)}")
        try:
            async with asyncio.timeout(_LONGEST):
                found = await _Load(queue, out).run(messages, "x" * size)
        except TimeoutError:
            raise Failure(f"not done within {_LONGEST:g} s; give fewer --messages") from None
        finally:
            await queue.stop()
            await queue.delete()
    facts: dict[str, Any] = {
        "server": queue.config.shown_url,
        "messages": messages,
        "produced /s": round(found.produced_per_s),
        "handled /s": round(found.handled_per_s),
        **{f"latency ms {name}": value for name, value in found.latency_ms.items()},
    }
    out.facts(facts, data={"server": queue.config.shown_url, "messages": messages, **asdict(found)})


@dataclass(frozen=True, slots=True)
class Measured:
    """What a bench found."""

    produced_per_s: float
    handled_per_s: float
    latency_ms: dict[str, float]


class _Load:
    def __init__(self, queue: RedisMessageQueue, out: Output) -> None:
        self._queue = queue
        self._out = out
        self._handled = 0
        self._begun: asyncio.Future[float] | None = None

    async def run(self, messages: int, payload: str) -> Measured:
        produced = await self._produce(messages, payload)
        handled = await self._handle(messages)
        latencies = await self._latencies(payload)
        return Measured(round(messages / produced, 1), round(messages / handled, 1), latencies)

    async def _produce(self, messages: int, payload: str) -> float:
        started = time.perf_counter()
        with self._out.progress("produce", messages) as show:
            for first in range(0, messages, _PORTION):
                await self._queue.produce_many("load", [payload] * min(_PORTION, messages - first))
                show(first + _PORTION)
        return time.perf_counter() - started

    async def _handle(self, messages: int) -> float:
        over = asyncio.Event()

        @self._queue.handler("load")
        async def handle(payload: str) -> None:
            self._handled += 1
            if self._handled >= messages:
                over.set()

        @self._queue.handler("single")
        async def begin(payload: str) -> None:
            if self._begun is not None and not self._begun.done():
                self._begun.set_result(time.perf_counter())

        started = time.perf_counter()
        await self._queue.start()
        with self._out.progress("handle", messages) as show:
            await self._watch(over, show)
        return time.perf_counter() - started

    async def _watch(self, over: asyncio.Event, show: Callable[[int], None]) -> None:
        waiting = asyncio.ensure_future(over.wait())
        try:
            while not (await asyncio.wait([waiting], timeout=0.1))[0]:
                show(self._handled)
        finally:
            waiting.cancel()

    async def _latencies(self, payload: str) -> dict[str, float]:
        """Milliseconds from the call of produce to the first line of the handler."""
        took = []
        for _ in range(_SINGLES):
            self._begun = asyncio.get_running_loop().create_future()
            started = time.perf_counter()
            await self._queue.produce("single", payload)
            took.append((await self._begun - started) * 1000)
        took.sort()
        return {f"p{part}": round(took[part * len(took) // 100], 2) for part in (50, 95, 99)}
