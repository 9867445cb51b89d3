"""Metrics for Prometheus: what they say of a queue and of a process, and what they do on a bad day."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from mx_rmq import ConfigError, RedisMessageQueue, Reject, Retry, RetryLater
from mx_rmq.storage.shard import Shard, shard_number
from tests.harness import free_port
from tests.project.pages import section
from tests.words import ONE_SERVER, dead, drained, events, eventually, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq import AsgiApp
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.proxy import Proxy
    from tests.words import MakeQueue

Value = tuple[str, dict[str, str], float]


@pytest.fixture
def metrics_of() -> Iterator[Callable[..., AsgiApp]]:
    """As ``mq.metrics_app()``, but the listening ends with the test."""
    made: list[AsgiApp] = []

    def make(mq: RedisMessageQueue, registry: Any = None) -> AsgiApp:
        made.append(mq.metrics_app(registry))
        return made[-1]

    yield make
    for app in made:
        app.close()


async def get(app: Any, path: str = "/metrics", method: str = "GET", accept: str = "") -> tuple[int, str]:
    """Ask an ASGI application; returns the status and the text."""
    sent: list[Any] = []
    headers = [(b"accept", accept.encode())] if accept else []
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(part: Any) -> None:
        sent.append(part)

    await app(scope, receive, send)
    length = dict(sent[0]["headers"])[b"content-length"]
    body = b"".join(part.get("body", b"") for part in sent[1:])
    assert method == "HEAD" or int(length) == len(body)
    return sent[0]["status"], body.decode()


class Page:
    """A page of metrics, to be asked for values."""

    def __init__(self, text: str, parse: Any = text_string_to_metric_families) -> None:
        self.text = text
        self.families = {family.name: family for family in parse(text)}
        self.samples = [
            (sample.name, sample.labels, sample.value)
            for family in self.families.values()
            for sample in family.samples
        ]

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of a sample, None if there is none."""
        found = [
            value
            for known, have, value in self.samples
            if known == f"mx_rmq_{name}" and labels.items() <= have.items()
        ]
        assert len(found) < 2, f"{name} {labels} is not one sample"
        return found[0] if found else None


async def page(app: Any) -> Page:
    status, text = await get(app)
    assert status == 200
    return Page(text)


# -- what they say


async def test_a_shard_that_does_not_answer_is_counted_as_missing(
    make_queue: MakeQueue, metrics_of: Callable[..., AsgiApp], proxy: Proxy
) -> None:
    """The other gauges lack what it has, so they must not pass for those of the whole queue."""
    mq = make_queue(shards=2, patience=0.5, socket_timeout=1.0)
    lifecycle: Any = mq._lifecycle
    usual = lifecycle._new_shard
    lifecycle._new_shard = lambda name: Shard(proxy.url, mq.config, name) if name == "1" else usual(name)
    ids = await mq.produce_many("t", range(40))
    app = metrics_of(mq)
    whole = await page(app)
    assert (whole("up"), whole("pending", topic="t"), whole("shards_missing", queue="q")) == (1, 40, 0)
    proxy.away()
    there = [id_ for id_ in ids if shard_number(id_, 2) == 0]
    partial = await page(app)
    assert (partial("up"), partial("pending", topic="t"), partial("shards_missing")) == (1, len(there), 1)


async def test_what_happens_to_messages_is_counted_by_topic_and_outcome(
    make_queue: MakeQueue, metrics_of: Callable[..., AsgiApp]
) -> None:
    mq = make_queue()
    tries: list[int] = []

    @mq.handler("good")
    async def good(payload: int) -> None:
        tries.append(payload)
        if len(tries) == 1:
            raise RetryLater(0.0, count=False)

    @mq.handler("bad", retry=Retry(2, backoff=[0.0]))
    def bad(payload: int) -> None:
        raise Reject("no") if payload else ValueError("no")

    app = metrics_of(mq)
    await mq.produce_many("good", range(5))
    await mq.produce("bad", 0, message_id="A0")
    await mq.produce("bad", 0, message_id="A0")
    await mq.produce("bad", 1, message_id="A1")
    await mq.start()
    for id_ in ("A0", "A1"):
        await dead(mq, id_)
    await drained(mq)
    await mq.stop()
    now = await page(app)
    assert {
        outcome: now("messages_total", queue="q", topic="good", outcome=outcome)
        for outcome in ("produced", "claimed", "completed", "put_off", "retried", "dead", "recovered")
    } == {"produced": 5, "claimed": 6, "completed": 5, "put_off": 1, "retried": 0, "dead": 0, "recovered": 0}
    assert {
        outcome: now("messages_total", queue="q", topic="bad", outcome=outcome)
        for outcome in ("produced", "duplicate", "claimed", "completed", "retried", "dead")
    } == {"produced": 2, "duplicate": 1, "claimed": 3, "completed": 0, "retried": 1, "dead": 2}
    assert now("dead_total", topic="bad", reason="failed") == 1
    assert now("dead_total", topic="bad", reason="rejected") == 1
    assert now("dead_total", topic="good", reason="failed") == 0, "there before it happens"
    assert now("handler_seconds_count", topic="good") == 6
    assert now("waiting_seconds_count", topic="good") == 5, "first attempts only"
    assert 0 < (now("handler_seconds_sum", topic="bad") or 0) < 5
    assert now("dead_letters", queue="q", topic="bad") == 2


async def test_what_the_queue_holds_is_read_when_it_is_asked_for(
    make_queue: MakeQueue, redis: Redis, metrics_of: Callable[..., AsgiApp]
) -> None:
    mq = make_queue()
    app = metrics_of(mq)
    await mq.open()
    await mq.produce_many("t", range(7))
    await mq.produce("t", 1, delay=60)
    await mq.pause("t")
    await store_of(redis).register_worker("other.1.x", b'{"topics": ["t"]}', silence=60)
    now = await page(app)
    values = {
        name: now(name, queue="q", topic="t")
        for name in ("pending", "processing", "delayed", "dead_letters", "paused", "topic_workers")
    }
    assert values == {
        "pending": 7,
        "processing": 0,
        "delayed": 1,
        "dead_letters": 0,
        "paused": 1,
        "topic_workers": 1,
    }
    assert 0 <= (now("oldest_pending_seconds", topic="t") or 0) < 10
    assert (now("workers"), now("up")) == (1, 1)
    assert now("event_loop_lag_seconds") is None, "no worker runs here"


async def test_a_worker_says_how_late_its_loop_is_and_when_it_claimed(
    make_queue: MakeQueue, metrics_of: Callable[..., AsgiApp]
) -> None:
    mq = make_queue()

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    app = metrics_of(mq)
    await mq.start()
    await mq.produce("t", 1)
    await drained(mq)
    now = await page(app)
    assert 0 <= (now("event_loop_lag_seconds", queue="q") or 0) < 5
    assert 0 <= (now("last_claim_age_seconds", queue="q") or 0) < 5
    assert now("worker_problems", queue="q") == 0


async def test_recovered_messages_and_lost_leases_are_counted(
    make_queue: MakeQueue, redis: Redis, metrics_of: Callable[..., AsgiApp]
) -> None:
    from tests.words import steal

    mq = make_queue()
    began, go = asyncio.Event(), asyncio.Event()

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    @mq.handler("stolen")
    async def stolen(payload: int) -> None:
        began.set()
        await go.wait()

    app = metrics_of(mq)
    await mq.produce_many("t", range(3))
    await store_of(redis).claim("t", 3, lease=0.001, holder="gone.1.x")
    await mq.start()
    await eventually(lambda: _value(app, "messages_total", topic="t", outcome="recovered", is_=3))
    await mq.produce("stolen", 1, message_id="A1")
    async with asyncio.timeout(10):
        await began.wait()
    await steal(redis, "A1", "stolen")
    go.set()
    await eventually(lambda: _value(app, "lease_losses_total", topic="stolen", is_=1))


async def _value(app: AsgiApp, name: str, *, is_: float, **labels: str) -> bool:
    return (await page(app))(name, **labels) == is_


async def test_another_queue_of_the_process_is_not_counted(
    make_queue: MakeQueue, metrics_of: Callable[..., AsgiApp]
) -> None:
    mq, other = make_queue(), make_queue(name="other")
    app, others = metrics_of(mq), metrics_of(other)
    await mq.produce("t", 1)
    await other.produce_many("t", range(2))
    assert (await page(app))("messages_total", topic="t", outcome="produced") == 1
    assert (await page(others))("messages_total", topic="t", outcome="produced") == 2


async def test_metrics_of_the_program_are_on_the_same_page(
    mq: RedisMessageQueue, metrics_of: Callable[..., AsgiApp]
) -> None:
    registry = CollectorRegistry()
    Gauge("shop_open", "Whether the shop is open", registry=registry).set(1)
    _, text = await get(metrics_of(mq, registry))
    assert "shop_open 1.0" in text


async def test_openmetrics_are_given_to_those_who_ask(
    mq: RedisMessageQueue, metrics_of: Callable[..., AsgiApp]
) -> None:
    app = metrics_of(mq)
    await mq.produce("t", 1)
    _, text = await get(app, accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    now = Page(text, open_metrics)
    assert now("messages_total", topic="t", outcome="produced") == 1
    assert (await get(app, method="HEAD"))[1] == ""
    assert (await get(app, method="POST"))[0] == 405


async def test_after_close_nothing_is_counted_any_more(mq: RedisMessageQueue) -> None:
    app = mq.metrics_app()
    app.close()
    await mq.produce("t", 1)
    assert (await page(app))("messages_total", topic="t", outcome="produced") is None


# -- bad days


async def test_a_server_that_is_away_is_up_0_within_seconds_and_told_once(
    proxy: Proxy, redis: Redis, metrics_of: Callable[..., AsgiApp], caplog: pytest.LogCaptureFixture
) -> None:
    """A page without the figures of the queue; what the process counted is still on it."""
    async with RedisMessageQueue(proxy.url, name="q", server_check="off") as mq:
        app = metrics_of(mq)
        await mq.produce("t", 1)
        assert (await page(app))("up", queue="q") == 1
        proxy.freeze()
        loop = asyncio.get_running_loop()
        began = loop.time()
        now = await page(app)
        assert loop.time() - began < 4.5
        assert (now("up"), now("pending")) == (0, None)
        assert now("messages_total", topic="t", outcome="produced") == 1
        await page(app)
        assert len(events(caplog, "metrics.not_read")) == 1
        proxy.thaw()
        await eventually(lambda: _value(app, "up", is_=1))


async def test_a_queue_that_is_not_open_is_up_0(
    make_queue: MakeQueue, metrics_of: Callable[..., AsgiApp]
) -> None:
    now = await page(metrics_of(make_queue()))
    assert now("up", queue="q") == 0


async def test_scrapes_at_the_same_time_share_one_look(
    proxy: Proxy, redis: Redis, metrics_of: Callable[..., AsgiApp]
) -> None:
    async with RedisMessageQueue(proxy.url, name="q", server_check="off") as mq:
        app = metrics_of(mq)
        await mq.produce("t", 1)
        await page(app)
        before = len(proxy.commands)
        await page(app)
        one = len(proxy.commands) - before
        pages = await asyncio.gather(*(page(app) for _ in range(20)))
        assert len(proxy.commands) - before == 2 * one
        assert {now("pending", topic="t") for now in pages} == {1}


def test_nothing_is_imported_until_metrics_are_used() -> None:
    program = (
        "import sys, mx_rmq; mq = mx_rmq.RedisMessageQueue('embedded://'); mq.health_app();"
        "print([name for name in sys.modules if name.startswith(('prometheus', 'mx_rmq.otel'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    mq = RedisMessageQueue("embedded://")
    with pytest.raises(
        ConfigError, match=r'^prometheus_client is not installed; pip install "mx-rmq\[metrics\]"$'
    ):
        mq.metrics_app()


# -- over HTTP


async def fetch(port: int, path: str) -> str:
    def read() -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return str(reply.read().decode())

    return await asyncio.to_thread(read)


async def test_a_worker_serves_its_metrics_and_probes_without_a_web_server(make_queue: MakeQueue) -> None:
    mq = make_queue()

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    async with mq.serve_metrics(0, host="127.0.0.1") as port:
        await mq.start()
        await mq.produce("t", 1)
        await drained(mq)
        now = Page(await fetch(port, "/metrics?name=x"))
        assert now("messages_total", topic="t", outcome="produced") == 1
        assert json.loads(await fetch(port, "/livez"))["live"] is True
        assert json.loads(await fetch(port, "/readyz"))["ready"] is True
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 cannot be used"):
            async with mq.serve_metrics(port, host="127.0.0.1"):
                pass
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /nowhere HTTP/1.0\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/9\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"400"),
    ],
    ids=["root", "nowhere", "post", "nonsense", "version", "long"],
)
async def test_a_request_is_answered_whatever_it_is(
    mq: RedisMessageQueue, sent: bytes, status: bytes
) -> None:
    async with mq.serve_metrics(0, host="127.0.0.1") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(10):
            assert (await reader.readline()).split()[1] == status
        writer.close()


async def test_a_client_that_says_nothing_does_not_keep_the_server_from_ending(mq: RedisMessageQueue) -> None:
    async with asyncio.timeout(5):
        async with mq.serve_metrics(0, host="127.0.0.1") as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            assert (await fetch(port, "/metrics")).startswith("# HELP")
        writer.close()


APP = """
import os
from mx_rmq import RedisMessageQueue
mq = RedisMessageQueue(os.environ["URL"], name="q", server_check="off")

@mq.handler("t")
async def handle(payload: int) -> None: ...
"""
MAIN = """
import sys
from mx_rmq import run_processes
sys.exit(run_processes("measured_app:mq", 2, metrics_port=int(sys.argv[1])))
"""


@ONE_SERVER
async def test_each_of_several_processes_has_its_own_port(
    mq: RedisMessageQueue, server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "measured_app.py").write_text(APP)
    (tmp_path / "main.py").write_text(MAIN)
    port = free_port()
    environment = {**os.environ, "URL": server.url, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(tmp_path / "main.py"),
        str(port),
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )

    async def completed() -> float:
        found = 0.0
        for each in (port, port + 1):
            try:
                now = Page(await fetch(each, "/metrics"))
            except OSError:
                return -1
            found += now("messages_total", topic="t", outcome="completed") or 0
        return found

    try:
        await eventually(lambda: _answered(completed), within=30)
        await mq.produce_many("t", range(100))
        await drained(mq)
        assert await completed() == 100
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)
    assert process.returncode == 0


async def _answered(completed: Callable[[], Any]) -> bool:
    return bool(await completed() >= 0)


# -- the documentation


async def test_the_page_of_metrics_in_the_documentation_is_the_real_one(
    make_queue: MakeQueue, metrics_of: Callable[..., AsgiApp]
) -> None:
    """Name, type, labels and meaning of every metric, in any order."""
    mq = make_queue()

    @mq.handler("t")
    async def handle(payload: int) -> None: ...

    app = metrics_of(mq)
    await mq.start()
    await mq.produce("t", 1)
    await drained(mq)
    await eventually(lambda: _value(app, "worker_problems", is_=0))
    now = await page(app)
    rows = re.findall(
        r"^\| `(mx_rmq_\w+)` \| (\w+) \| ([\w, `]*) \| (.+) \|$",
        section("docs/observability.md", "Metrics"),
        re.MULTILINE,
    )
    shown = {(name, kind, labels.replace("`", ""), meaning) for name, kind, labels, meaning in rows}
    real = set()
    for name, family in now.families.items():
        labels = [label for label in family.samples[0].labels if label != "le"]
        full = f"{name}_total" if family.type == "counter" else name
        real.add((full, family.type, ", ".join(sorted(labels, key=_order)), family.documentation))
    assert shown == real


def _order(label: str) -> int:
    return ["queue", "topic", "outcome", "reason", "version"].index(label)
