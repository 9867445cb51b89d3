"""A queue in which every page of the dashboard has something to show."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mx_rmq import Context, RedisMessageQueue, Reject, Retry, RetryLater
from mx_rmq.storage.contract import NewMessage
from tests.words import dead, eventually, in_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONG = "words without an end " * 60 + "x" * 3000


async def town(url: str) -> AsyncIterator[RedisMessageQueue]:
    """Messages in every state, dead letters in groups, a worker, a paused topic and an unserved one."""
    queue = RedisMessageQueue(url, name="q", server_check="off", stop_grace=0.0)
    never = asyncio.Event()

    @queue.handler("orders", retry=Retry(2, backoff="fixed", base=0.01))
    async def on_order(order: dict[str, Any], ctx: Context) -> None:
        match order.get("do"):
            case "wait":
                await never.wait()
            case "later":
                raise RetryLater(3600)
            case "reject":
                raise Reject(f"nothing to charge for {order['n']}")
            case "fail":
                raise ConnectionError(f"the bank refused {order['n']}: {LONG if order['n'] == 1 else 'no'}")

    async with queue:
        await queue.produce("orders", {"do": "wait"}, message_id="runs")
        await queue.produce("orders", {"do": "later"}, message_id="put-off")
        for n in range(60):
            payload = {"do": "fail", "n": n, "big": 9007199254740993, "text": LONG if n == 1 else "short"}
            await queue.produce("orders", payload, message_id=f"fail-{n}", headers={"trace": f"00-{n}"})
        await queue.produce("orders", {"do": "reject", "n": 1}, message_id="rejected", priority="high")
        await queue.produce("orders", {"do": "done"}, message_id="done")
        await queue._lifecycle.shards[0].operating.produce("orders", [NewMessage("poison", b"\x80\x04no")])
        await queue.start()
        for id_ in ("fail-0", "fail-1", "fail-59", "rejected", "poison"):
            await dead(queue, id_)
        await in_state(queue, "runs", "running")
        await in_state(queue, "put-off", "delayed")
        await queue.dlq.replay("fail-0")
        await eventually(lambda: _died_again(queue))
        await queue.produce_many("no.worker-here", [{"n": n} for n in range(120)])
        await queue.produce("mails", {"to": "ada@example.org"}, message_id="mail", ttl=86400)
        await queue.pause("mails")
        for hours in range(1, 30):
            await queue.produce("mails", {"hours": hours}, delay=hours * 3600)
        await queue.produce("a-topic-with-a-name-that-is-as-long-as-names-may-be." + "x" * 76, LONG)
        await queue.note_act("anna", "pause", "mails", said="paused")
        await queue.note_act("ben", "purge", "mails", count=12, said=LONG[:400])
        yield queue


async def _died_again(queue: RedisMessageQueue) -> bool:
    facts = await queue.find("fail-0")
    return facts.state == "dead" and facts.message is not None and facts.message.replays == 1
