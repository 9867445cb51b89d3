"""Producing from code without an event loop: a script, a Django or a Flask view."""

import asyncio
import tempfile

from mx_rmq import RedisMessageQueue

# A persistent server, since producer and worker do not run at the same time here.
home = tempfile.TemporaryDirectory()
mq = RedisMessageQueue(f"embedded://{home.name}", name="shop")


@mq.handler("mails")
async def send(payload: dict[str, str]) -> None:
    print(f"mail to {payload['to']}")


def view() -> str:
    """What a web framework would call, in any thread."""
    return mq.sync.produce("mails", {"to": "ada@example.org"})


async def work() -> None:
    async with mq:
        await mq.start()
        while (await mq.counts()).topics["mails"].completed == 0:
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    print("produced", view())
    mq.sync.close()
    asyncio.run(work())
    home.cleanup()
