"""Messages that run later, and one that is withdrawn before it does."""

import asyncio
import time

from mx_rmq import RedisMessageQueue

mq = RedisMessageQueue("embedded://")
started = time.monotonic()
rung = asyncio.Event()


@mq.handler("alarms")
async def ring(name: str) -> None:
    print(f"{name} after {time.monotonic() - started:.1f} s")
    if name == "second":
        rung.set()


async def main() -> None:
    async with mq:
        mq.start()
        await mq.produce("alarms", "second", delay=0.4)
        await mq.produce("alarms", "first", delay=0.2)
        never = await mq.produce("alarms", "never", delay=3600)
        print(await mq.explain(never))
        print("cancelled:", await mq.cancel(never))
        await rung.wait()


if __name__ == "__main__":
    asyncio.run(main())
