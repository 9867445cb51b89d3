"""What a failing handler leaves in the log, as text or as JSON: python examples/failing_handler.py [json]."""

import asyncio
import logging
import sys

from mx_rmq import JsonFormatter, RedisMessageQueue, Retry

logging.basicConfig(level=logging.INFO)
if sys.argv[1:] == ["json"]:
    logging.getLogger().handlers[0].setFormatter(JsonFormatter())

mq = RedisMessageQueue("embedded://", name="shop")


def total(order: dict[str, int]) -> int:
    return order["price"] * order["pieces"]


@mq.handler("orders", retry=Retry(3, backoff=[0.1, 0.5]))
async def on_order(order: dict[str, int]) -> None:
    await asyncio.sleep(0.01)
    print(total(order))


async def main() -> None:
    async with mq:
        await mq.start()
        await mq.produce("orders", {"price": 10})
        while (await mq.counts()).dead == 0:
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
