"""Payloads with types: checked when produced and when handled."""

import asyncio
from dataclasses import dataclass
from datetime import date

from mx_rmq import Context, InvalidPayload, RedisMessageQueue

mq = RedisMessageQueue("embedded://")
billed = asyncio.Event()


@dataclass
class Order:
    order_id: str
    amount: float
    due: date


@mq.handler("orders")
async def bill(order: Order, ctx: Context) -> None:
    print(f"{order.order_id}: {order.amount:.2f} due {order.due:%d %B}, attempt {ctx.attempt}")
    billed.set()


async def main() -> None:
    async with mq:
        mq.start()
        await bill.produce(Order("A1", 9.9, date(2026, 12, 24)))
        await billed.wait()
        try:
            await bill.produce({"order_id": "A2"})  # type: ignore[arg-type] # which is the point
        except InvalidPayload as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    asyncio.run(main())
