"""The picture of ``mx-rmq top`` in the docs: ``python -m tests.pictures`` runs a small shop and makes it."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

from mx_rmq import Context, RedisMessageQueue, Reject, Retry
from mx_rmq.cli.top.app import TopApp
from mx_rmq.message import Message, encode_message
from mx_rmq.payloads import encode_payload
from mx_rmq.storage.contract import NewMessage
from mx_rmq.storage.history import times_text
from mx_rmq.storage.store import Store

PICTURE = Path(__file__).parents[1] / "docs" / "top.svg"
SIZE = (132, 26)
PACE = {"orders": 40, "mails": 25, "invoices": 8, "thumbnails": 15}
"""Messages a second of each topic."""
SECONDS = {"orders": 0.02, "mails": 0.05, "invoices": 0.2, "thumbnails": 0.1}
"""How long a handler of it runs."""


def shop() -> RedisMessageQueue:
    """A queue whose handlers take a while, and of which some fail."""
    mq = RedisMessageQueue("embedded://", name="shop", worker_name="web1", server_check="off", stop_grace=0.0)
    for topic in SECONDS:

        @mq.handler(topic, retry=Retry(2, backoff=[1.0]))
        async def handle(n: int, ctx: Context) -> None:
            topic = ctx.topic
            await asyncio.sleep(SECONDS[topic] * (1 + n % 5 / 4))
            if topic == "invoices" and n % 4 == 0:
                raise TimeoutError(f"the bank did not answer for invoice {n}")
            if topic == "mails" and n % 20 == 0:
                raise Reject(f"no such mailbox: user{n}@example.org")

    return mq


async def past(mq: RedisMessageQueue) -> None:
    """Give the shop a history of half an hour, in waves."""
    keys = mq._lifecycle.shards[0].store
    for topic, pace in PACE.items():
        for minute in range(30, 0, -1):
            at = round((time.time() - minute * 60) * 1e6)
            store = Store(keys.commands, keys.keys, now=lambda at=at: at, history=True)  # type: ignore[misc]
            count = round(10 * pace * (1.4 + math.sin(minute / 4 + pace)))
            await store.produce(topic, [old(topic, f"{topic}-{minute}-{n}") for n in range(count)])
            claim = await store.claim(topic, count, lease=15, holder="past")
            times = times_text([SECONDS[topic]] * count, [0.01] * count)
            await store.complete(topic, [(each, 0.0) for each in claim.deliveries], times)


def old(topic: str, id_: str) -> NewMessage:
    message = Message(payload=encode_payload(1), created_at=time.time())
    return NewMessage(id_, encode_message(message))


async def sell(mq: RedisMessageQueue) -> None:
    """Produce at the pace of each topic."""
    n = 0
    while True:
        n += 1
        for topic, pace in PACE.items():
            await mq.produce_many(topic, range(n, n + max(1, pace // 5)))
        if n % 5 == 1:
            await mq.produce("reports", n)
        await asyncio.sleep(0.2)


def without_fonts(svg: str) -> str:
    """The picture without fonts from elsewhere: the reader's own monospaced one is used."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"Fira Code", "ui-monospace, Menlo, Consolas, monospace", svg)
    return re.sub(r"<!-- Generated with .*? -->\s*", "", svg)


async def picture(seconds: float) -> str:
    """Run the shop for a while and draw the live view."""
    async with shop() as mq:
        await past(mq)
        await mq.produce_many("mails", range(50), delay=3600)
        await mq.start()
        selling = asyncio.create_task(sell(mq))
        app = TopApp(mq)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(seconds / 2)
            await mq.pause("thumbnails")
            await pilot.pause(seconds / 2)
            await pilot.pause()
            drawn = app.export_screenshot(title="mx-rmq top")
        selling.cancel()
        await mq.stop()
    return without_fonts(drawn)


def main(arguments: list[str]) -> Any:
    logging.getLogger("mx_rmq").setLevel(logging.CRITICAL)
    target = Path(arguments[0]) if arguments else PICTURE
    target.write_text(asyncio.run(picture(12.0)), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
