"""A shop whose queue is broken in ten ways, to learn docs/operations.md: python examples/broken_shop.py.

It breaks the queue "shop" on MX_RMQ_URL, or on a server of its own, and says how to reach it. It ends after
--seconds, or at Ctrl-C, and its workers end with it. Its worker that is stuck is started again when it is
killed, as systemd or Kubernetes would do; the new one is well.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mx_rmq import Context, RedisMessageQueue, Reject, Retry
from mx_rmq.storage.contract import NewMessage

Payload = dict[str, Any]

bank_is_down = False
report_server_hangs = False


# -- the handlers of the shop


async def take_order(order: Payload) -> None:
    await asyncio.sleep(0.1)


async def charge(payment: Payload) -> None:
    if bank_is_down:
        raise ConnectionError(f"the bank at 10.0.0.7 refused payment {payment['number']}")


async def set_price(price: Payload) -> None:
    if price["cents"] < 0:
        raise ValueError("a price cannot be negative")


async def send_newsletter(letter: Payload) -> None:
    if letter["campaign"] == "summer":
        raise Reject(f"campaign 'summer' is over, no letter to customer {letter['customer']}")


async def call_webhook(hook: Payload) -> None:
    raise TimeoutError("https://partner.example did not answer within 5 s")


async def make_report(report: Payload) -> None:
    if report_server_hangs:
        threading.Event().wait()  # it blocks the event loop: nothing else runs in this process


async def work_well(payload: Payload, ctx: Context) -> None:
    pass


SOON = Retry(2, backoff="fixed", base=0.05)
HANDLERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "orders": (take_order, {}),
    "payments": (charge, {"retry": SOON}),
    "prices": (set_price, {"retry": SOON}),
    "newsletters": (send_newsletter, {}),
    "webhooks": (call_webhook, {"retry": Retry(1000, backoff="fixed", base=30.0)}),
    "reports": (make_report, {"timeout": None}),
    "mails": (work_well, {}),
    "invoices": (work_well, {}),
    "gifts": (work_well, {}),
}


def shop(url: str | None, topics: Sequence[str] = tuple(HANDLERS), **options: Any) -> RedisMessageQueue:
    """The queue of the shop, with the handlers of some topics."""
    queue = RedisMessageQueue(url, name="shop", server_check="off", stop_grace=0.5, **options)
    for topic in topics:
        function, how = HANDLERS[topic]
        register: Callable[..., Any] = queue.handler(topic, **how)
        register(function)
    return queue


mq = shop(None)  # what "mx-rmq run broken_shop:mq" starts


# -- how it broke


async def break_queue(url: str, orders: int) -> None:
    """Produce everything; what must die is handled on a bad day."""
    global bank_is_down
    bank_is_down = True
    async with shop(url, ["payments", "prices", "newsletters"]) as bad_day:
        await bad_day.produce("mails", {"to": "ada@example.org", "about": "your order"}, message_id="mail-0")
        await bad_day.pause("mails")
        for n in range(1, 9):
            await bad_day.produce("mails", {"to": f"c{n}@example.org"}, message_id=f"code-{n}", ttl=5)
        for n in range(1, 31):
            await bad_day.produce("payments", {"number": 1000 + n, "cents": 990}, message_id=f"pay-{n}")
        for n in (1, 2):  # its producer has a typing error
            await bad_day.produce("prices", {"sku": f"A{n}", "cent": 990 + n}, message_id=f"price-{n}")
        for n in range(1, 13):
            await bad_day.produce(
                "newsletters", {"campaign": "summer", "customer": 500 + n}, message_id=f"letter-{n}"
            )
        await poison(bad_day)
        await bad_day.start()
        while (await bad_day.counts()).dead < 8 + 30 + 2 + 12 + 1:
            await asyncio.sleep(0.05)
    bank_is_down = False
    async with shop(url, []) as producer:
        for n in range(1, 26):
            await producer.produce("mails", {"to": f"c{n}@example.org"}, message_id=f"mail-{n}")
        for n in range(1, 6):  # the topic is called invoices
            await producer.produce("invoice", {"number": 70 + n}, message_id=f"invoice-{n}")
        for n in range(1, 7):
            await producer.produce("reports", {"month": n}, message_id=f"report-{n}")
        for n in range(1, 101):
            await producer.produce("webhooks", {"event": n}, message_id=f"hook-{n}")
        week = 7 * 86400  # it should have been seven minutes
        await producer.produce("gifts", {"to": "Grace", "what": "tea"}, message_id="gift-42", delay=week)
        await producer.produce_many("orders", [{"number": n} for n in range(orders)])


async def poison(queue: RedisMessageQueue) -> None:
    """Store bytes that are no message, as another program could do."""
    store = queue._lifecycle.shards[0].operating
    body = b"\x80\x04\x95\x1a\x00pickled by another program"
    await store.produce("payments", [NewMessage("poison-1", body)])


# -- its workers


def work(topics: Sequence[str], *, stuck: bool, concurrency: int, seconds: float) -> None:
    """Run a worker until the shop closes."""
    global report_server_hangs
    report_server_hangs = stuck

    def stop_with_the_shop() -> None:
        sys.stdin.buffer.read()  # the shop has the other end
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2)
        os._exit(1)  # a worker that is stuck does not hear the signal

    threading.Thread(target=stop_with_the_shop, daemon=True).start()
    queue = shop(None, topics, concurrency=concurrency)

    async def run() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await queue.run()

    asyncio.run(run())


class Workers:
    """The worker processes of the shop."""

    def __init__(self, url: str, seconds: float) -> None:
        self._env = os.environ | {"MX_RMQ_URL": url}
        self._seconds = seconds
        self._all: list[subprocess.Popen[bytes]] = []
        self.reporter: subprocess.Popen[bytes] | None = None

    def start(self, topics: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
        """Start a worker for topics; it ends when its stdin does."""
        arguments = ["--work", ",".join(topics), "--seconds", str(self._seconds), *options]
        child = subprocess.Popen(
            [sys.executable, __file__, *arguments], env=self._env, stdin=subprocess.PIPE, stdout=sys.stderr
        )
        self._all.append(child)
        return child

    def start_all(self) -> None:
        """One worker that takes orders too slowly, one for the rest, and one that is stuck."""
        self.start(["orders"], "--concurrency", "1")
        self.start([topic for topic in HANDLERS if topic not in ("orders", "reports")])
        self.reporter = self.start(["reports"], "--concurrency", "2", "--stuck")

    def supervise(self) -> None:
        """Start the reporter again, and well, if it was killed."""
        if self.reporter is not None and self.reporter.poll() is not None:
            self.reporter = self.start(["reports"], "--concurrency", "2")

    def end(self) -> None:
        """End all workers."""
        for child in self._all:
            if child.stdin is not None:
                child.stdin.close()
        for child in self._all:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


# -- the shop


async def is_broken(url: str) -> None:
    """Wait until everything that is broken can be seen."""
    async with shop(url, []) as queue:
        while True:
            topics, workers = (await queue.counts()).topics, await queue.workers()
            is_stuck = any(worker.problems for worker in workers if "reports" in worker.topics)
            if is_stuck and topics["webhooks"].retried >= 100:
                return
            await asyncio.sleep(0.05)


async def refuse_a_real_shop(url: str) -> None:
    """End here if the queue is in use: what follows breaks it."""
    async with shop(url, []) as queue:
        if (await queue.counts()).topics or await queue.workers():
            sys.exit(
                f"the queue 'shop' on {queue.config.shown_url} is in use; unset MX_RMQ_URL, or give --url"
            )


async def keep_open(url: str, orders: int, seconds: float) -> None:
    """Break the queue, start the workers, and wait."""
    workers = Workers(url, seconds)
    closing = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, closing.set)
    try:
        async with asyncio.timeout(seconds):
            await refuse_a_real_shop(url)
            await break_queue(url, orders)
            workers.start_all()
            await is_broken(url)
            print("The shop is broken. In another terminal:", flush=True)
            print(f"  export MX_RMQ_URL={url} MX_RMQ_QUEUE=shop\n  mx-rmq topics", flush=True)
            print(f"It closes after {seconds:g} s, or at Ctrl-C.", flush=True)
            while not closing.is_set():
                workers.supervise()
                with suppress(TimeoutError):
                    await asyncio.wait_for(closing.wait(), 0.2)
    except TimeoutError:
        pass
    finally:
        workers.end()


def main() -> None:
    parser = argparse.ArgumentParser(description="Break a queue, to learn how to mend it.")
    parser.add_argument("--url", default=os.environ.get("MX_RMQ_URL"), help="of the server, else MX_RMQ_URL")
    parser.add_argument("--orders", type=int, default=3000, help="how many orders wait")
    parser.add_argument("--seconds", type=float, default=1800, help="after which it closes")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # how it starts its own workers
    parser.add_argument("--stuck", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--concurrency", type=int, default=16, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        topics = given.work.split(",")
        work(topics, stuck=given.stuck, concurrency=given.concurrency, seconds=given.seconds)
    elif given.url:
        asyncio.run(keep_open(given.url, given.orders, given.seconds))
    else:
        with tempfile.TemporaryDirectory(prefix="broken-shop-", ignore_cleanup_errors=True) as directory:
            asyncio.run(keep_open(f"embedded://{directory}", given.orders, given.seconds))


if __name__ == "__main__":
    main()
