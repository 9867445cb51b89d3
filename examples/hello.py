"""Produce a message and handle it: python examples/hello.py."""

import asyncio

from mx_rmq import RedisMessageQueue

mq = RedisMessageQueue("embedded://")
greeted = asyncio.Event()


@mq.handler("greetings")
async def greet(payload: dict[str, str]) -> None:
    print(f"hello, {payload['name']}")
    greeted.set()


async def main() -> None:
    async with mq:
        mq.start()
        await mq.produce("greetings", {"name": "world"})
        await greeted.wait()


if __name__ == "__main__":
    asyncio.run(main())
