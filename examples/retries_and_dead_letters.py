"""A handler that fails: retries, the DLQ, and a replay once the cause is mended."""

import asyncio

from mx_rmq import Context, RedisMessageQueue, Reject, Retry

mq = RedisMessageQueue("embedded://")
bank_is_down = True
paid = asyncio.Event()


@mq.handler("payments", retry=Retry(3, backoff="fixed", base=0.05))
async def pay(payload: dict[str, int], ctx: Context) -> None:
    if payload["amount"] < 0:
        raise Reject("an amount cannot be negative")  # no retry will help
    if bank_is_down:
        raise ConnectionError("the bank does not answer")
    print(f"paid {payload['amount']}")
    paid.set()


async def main() -> None:
    global bank_is_down
    async with mq:
        mq.start()
        await mq.produce_many("payments", [{"amount": 20}, {"amount": -1}])
        while (await mq.counts()).dead < 2:
            await asyncio.sleep(0.05)
        for letter in (await mq.dlq.list()).letters:
            tries = len(letter.message.history) if letter.message else 0
            print(f"dead: {letter.payload}, {letter.reason} after {tries} tries: {letter.error}")
        bank_is_down = False
        replayed = await mq.dlq.replay_all(error="ConnectionError")
        await paid.wait()
        print("replayed:", replayed)


if __name__ == "__main__":
    asyncio.run(main())
