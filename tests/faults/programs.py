"""What the processes under test run: a worker that does what its messages say, and a producer."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from mx_rmq import Context, MxRmqError, RedisMessageQueue, Reject, Retry
from mx_rmq.producing.ids import new_id
from mx_rmq.storage.contract import Delivery, Overdue, Promotion, Settled
from mx_rmq.storage.store import Store
from tests.faults.ledger import Ledger

QUEUE = "faults"
PR_SET_PDEATHSIG = 1
"""Of Linux: which signal a process gets when its parent ends."""


def begin(folder: str, log: str) -> Ledger:
    """What every process does first: live no longer than its fork server, and log into a file."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    file = os.open(Path(log) / f"{os.getpid()}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    logging.basicConfig(format="%(created).3f %(message)s %(extra)s", handlers=[_Extras()])
    logging.getLogger("mx_rmq").setLevel(logging.INFO)
    return Ledger(Path(folder))


class _Extras(logging.StreamHandler[Any]):
    """Shows an event's fields too."""

    _usual = frozenset(vars(logging.makeLogRecord({})))

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        record.extra = {name: value for name, value in vars(record).items() if name not in self._usual}
        super().emit(record)


# -- a worker


def worker(
    folder: str, log: str, url: str, topics: dict[str, dict[str, Any]], options: dict[str, Any]
) -> None:
    """Run until told to stop; *topics* are the options of each topic's handler.

    With the option ``computes`` it is a plain function that keeps the interpreter busy.
    """
    ledger = begin(folder, log)
    shift_clock(options.pop("clock_ahead", 0.0))
    note_settlements(ledger)
    note_recovery(ledger)
    asyncio.run(serving(ledger, url, topics, options).run())


def serving(
    ledger: Ledger, url: str, topics: dict[str, dict[str, Any]], options: dict[str, Any]
) -> RedisMessageQueue:
    """A queue with a handler for each topic that does what its messages say."""
    mq = RedisMessageQueue(url, name=QUEUE, server_check="off", **options)

    async def handle(payload: dict[str, Any], ctx: Context) -> None:
        ledger.write("start", ctx.message_id, token=ctx.token)
        if ctx.attempt > 1:
            ledger.write("blamed", ctx.message_id, token=str(ctx.attempt))
        if "vitals" in payload:
            ledger.write("vitals", ctx.message_id, token=vitals())
        try:
            await obey(payload, ctx)
        except ValueError:
            ledger.write("failed", ctx.message_id, token=ctx.token)
            raise
        ledger.write("end", ctx.message_id, token=ctx.token)

    def compute(payload: dict[str, Any], ctx: Context) -> None:
        ledger.write("start", ctx.message_id, token=ctx.token)
        until = time.monotonic() + payload["compute"]
        while time.monotonic() < until:
            sum(range(1000))
        ledger.write("end", ctx.message_id, token=ctx.token)

    for topic, handler in topics.items():
        settings = {"retry": Retry(3, base=0.01, cap=0.05), **handler}
        function: Any = compute if settings.pop("computes", False) else handle
        register: Any = mq.handler(topic, **settings)
        register(function)
    return mq


def restless(
    folder: str,
    log: str,
    url: str,
    topics: dict[str, dict[str, Any]],
    count: int,
    longest: float,
    options: dict[str, Any],
) -> None:
    """Run *count* workers at a time, each for *longest* seconds at most; then another takes its place."""
    ledger = begin(folder, log)
    note_settlements(ledger)

    async def main() -> None:
        stop = stop_event()

        async def place(number: int) -> None:
            dice = random.Random(number)
            while not stop.is_set():
                mq = serving(ledger, url, topics, options)
                await mq.start()
                await asyncio.sleep(dice.uniform(0.2, 1.0) * longest)
                await mq.close()

        await asyncio.gather(*(place(number) for number in range(count)))

    asyncio.run(main())


def stop_event() -> asyncio.Event:
    """Set when the process is told to stop."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


async def obey(payload: dict[str, Any], ctx: Context) -> None:
    """Do what the message says."""
    match payload:
        case {"sleep": float(seconds) | int(seconds)}:
            await asyncio.sleep(seconds)
        case {"block": float(seconds) | int(seconds)}:
            time.sleep(seconds)  # noqa: ASYNC251 - the fault under test
        case {"die": _}:
            os.kill(os.getpid(), signal.SIGKILL)
        case {"fail": int(times)} if ctx.attempt <= times:
            raise ValueError(f"failing for the {ctx.attempt}. time")
        case {"dead": str(reason)}:
            raise Reject(reason)
        case {"first": dict(first), "then": dict(then)}:
            await obey(first if ctx.token.startswith("1@") else then, ctx)
        case {"what": what, "digest": str(expected)} if digest(what) != expected:
            raise Reject("it was changed on its way")


def vitals() -> str:
    """This process's memory in MB, its tasks and its open files."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return f"{resident / 1e6:.2f}/{len(asyncio.all_tasks())}/{len(list(Path('/proc/self/fd').iterdir()))}"


def digest(value: Any) -> str:
    """By which a handler sees whether it was given what was produced."""
    return sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def note_settlements(ledger: Ledger) -> None:
    """Write down what became of every settlement, as the server answered it."""

    def noted(method: Callable[..., Any], what: str) -> Callable[..., Any]:
        async def settle(
            store: Store, topic: str, items: Iterable[Any], *more: Any, **options: Any
        ) -> list[Settled]:
            listed: Sequence[Any] = list(items)
            statuses: list[Settled] = await method(store, topic, listed, *more, **options)
            for item, status in zip(listed, statuses, strict=True):
                delivery: Delivery = item[0]
                word = what if status is Settled.DONE else "refused"
                ledger.write(word, delivery.id, token=delivery.token)
            return statuses

        return settle

    for name, what in (("complete", "done"), ("retry", "retried"), ("move_to_dlq", "dead")):
        setattr(Store, name, noted(getattr(Store, name), what))


def note_recovery(ledger: Ledger) -> None:
    """Write down what this process's monitor took over, and what its scheduler put back into its lane."""
    take_over, promote = Store.take_over, Store.promote

    async def noted_take_over(store: Store, limit: int, **options: Any) -> Overdue:
        overdue = await take_over(store, limit, **options)
        for takeover in overdue.taken:
            ledger.write("taken", takeover.delivery.id, token=takeover.delivery.token)
        return overdue

    async def noted_promote(store: Store) -> Promotion:
        promotion = await promote(store)
        ledger.write("promoted", *promotion.promoted)
        return promotion

    patched: Any = Store
    patched.take_over, patched.promote = noted_take_over, noted_promote


def shift_clock(seconds: float) -> None:
    """Let this process believe that it is so much later; clocks that only count are as ever."""
    if seconds:
        now, now_ns = time.time, time.time_ns
        time.time = lambda: now() + seconds
        time.time_ns = lambda: now_ns() + round(seconds * 1e9)


# -- a producer


def producer(
    folder: str,
    log: str,
    url: str,
    name: str,
    topic: str,
    payloads: list[tuple[dict[str, Any], int]],
    callers: int,
    rate: float | None,
    sending: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Produce messages ``NAME-1``, ``NAME-2``, … until each is acknowledged.

    Args:
        payloads: what, and how many of it.
        callers: how many are produced at a time.
        rate: messages per second, as many as it can if None.
        sending: the options of every produce.
    """
    ledger = begin(folder, log)
    shift_clock(options.pop("clock_ahead", 0.0))

    async def main() -> None:
        todo = enumerate((payload for payload, count in payloads for _ in range(count)), 1)
        started = time.monotonic()
        async with RedisMessageQueue(url, name=QUEUE, server_check="off", **options) as mq:

            async def caller() -> None:
                for n, payload in todo:
                    if rate:
                        await asyncio.sleep(max(0.0, started + n / rate - time.monotonic()))
                    id_ = f"{name}-{n}"
                    ledger.write("tried", id_)
                    await until_acked(mq, topic, payload, id_, **sending)
                    ledger.write("acked", id_)

            await asyncio.gather(*(caller() for _ in range(callers)))

    asyncio.run(main())


async def until_acked(
    mq: RedisMessageQueue, topic: str, payload: dict[str, Any], id_: str, **sending: Any
) -> None:
    """Repeat until the server has said that it has it, which the id makes safe."""
    while True:
        try:
            await mq.produce(topic, payload, message_id=id_, **sending)
        except MxRmqError as error:
            logging.getLogger("mx_rmq").warning("again", extra={"id": id_, "error": repr(error)})
            await asyncio.sleep(0.05)
        else:
            return


def spread(
    folder: str,
    log: str,
    url: str,
    topic: str,
    payload: dict[str, Any],
    keys: dict[str, str],
    rate: float,
    callers: int,
    options: dict[str, Any],
) -> None:
    """Produce ``NAME-1``, ``NAME-2``, … for each name at the same rate, with its key, until told to stop.

    Each name has so many callers. While all of them wait, what is due for that name is left out, and the
    other names go on.
    """
    ledger = begin(folder, log)

    async def main() -> None:
        stop = stop_event()
        async with RedisMessageQueue(url, name=QUEUE, server_check="off", **options) as mq:
            started = time.monotonic()
            waiting = dict.fromkeys(keys, 0)

            async def one(name: str, id_: str) -> None:
                waiting[name] += 1
                ledger.write("tried", id_)
                # A call that was given up may be carried out later, and its message be done before this one.
                await until_acked(mq, topic, payload, id_, key=keys[name], dedup_for=300.0)
                ledger.write("acked", id_)
                waiting[name] -= 1

            async with asyncio.TaskGroup() as calls:
                for n in itertools.count(1):
                    await asyncio.sleep(max(0.0, started + n / rate - time.monotonic()))
                    if stop.is_set():
                        break
                    for name in keys:
                        if waiting[name] < callers:
                            calls.create_task(one(name, f"{name}-{n}"))

    asyncio.run(main())


# -- a producer without an event loop


def sync_producer(
    folder: str,
    log: str,
    url: str,
    name: str,
    topic: str,
    payload: dict[str, Any],
    count: int,
    threads: int,
    rate: float,
) -> None:
    """Produce ``NAME-1``, ``NAME-2``, … with ``mq.sync``, in threads that share it."""
    ledger = begin(folder, log)
    started = time.monotonic()
    with (
        RedisMessageQueue(url, name=QUEUE, server_check="off").sync as sync,
        ThreadPoolExecutor(threads) as pool,
    ):

        def produce(n: int) -> None:
            time.sleep(max(0.0, started + n / rate - time.monotonic()))
            id_ = f"{name}-{n}"
            ledger.write("tried", id_)
            while True:
                try:
                    sync.produce(topic, payload, message_id=id_)
                except MxRmqError as error:
                    logging.getLogger("mx_rmq").warning("again", extra={"id": id_, "error": repr(error)})
                    time.sleep(0.05)
                else:
                    break
            ledger.write("acked", id_)

        list(pool.map(produce, range(1, count + 1)))


def steady(
    folder: str,
    log: str,
    url: str,
    topic: str,
    payloads: list[dict[str, Any]],
    rate: float,
    options: dict[str, Any],
) -> None:
    """Produce *payloads* in turn and in every way, mostly without ids, until told to stop.

    Nothing is tried again here: an error ends the program.
    """
    ledger = begin(folder, log)

    async def main() -> None:
        stop, started = stop_event(), time.monotonic()
        async with RedisMessageQueue(url, name=QUEUE, server_check="off", **options) as mq:

            async def one(n: int) -> None:
                ids = await produce_somehow(mq, topic, payloads[n % len(payloads)], n // len(payloads))
                ledger.write("tried", *ids)
                ledger.write("acked", *ids)

            async with asyncio.TaskGroup() as calls:
                for n in itertools.count():
                    await asyncio.sleep(max(0.0, started + n / rate - time.monotonic()))
                    if stop.is_set():
                        break
                    calls.create_task(one(n))

    asyncio.run(main())


async def produce_somehow(
    mq: RedisMessageQueue, topic: str, payload: dict[str, Any], n: int
) -> Sequence[str]:
    """Produce in one of the ways there are; the ids of what was acknowledged."""
    match n % 8:
        case 0 | 1:
            return [await mq.produce(topic, payload, delay=0.05)]
        case 2:
            return await mq.produce_many(topic, [payload] * 3)
        case 3:
            return [await asyncio.to_thread(mq.sync.produce, topic, payload)]
        case 4:
            return [await mq.produce(topic, payload, message_id=f"{os.getpid()}-{new_id()}")]
        case _:
            return [await mq.produce(topic, payload)]
