"""A real Prometheus scrapes the metrics; its tools accept the page, the alerts and their tests."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from mx_rmq import RedisMessageQueue, Retry
from tests.harness import free_port
from tests.observing.test_metrics import Page, fetch
from tests.project.pages import ROOT, text_of
from tests.words import ONE_SERVER, dead, drained, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.words import MakeQueue

CONTRIB = ROOT / "contrib"

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="prometheus is not installed (Debian: apt-get install prometheus)",
)


def promtool(*arguments: str, given: str = "") -> None:
    done = subprocess.run(
        ["promtool", *arguments], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@asynccontextmanager
async def working(mq: RedisMessageQueue) -> AsyncIterator[int]:
    """A worker with something to tell; yields the port of its metrics."""

    @mq.handler("good")
    async def good(payload: int) -> None: ...

    @mq.handler("bad", retry=Retry(1))
    async def bad(payload: int) -> None:
        raise ValueError("no")

    async with mq.serve_metrics(0, host="127.0.0.1") as port:
        await mq.start()
        await mq.produce_many("good", range(10))
        await mq.produce("bad", 1, message_id="A1")
        await dead(mq, "A1")
        await drained(mq)
        yield port


@asynccontextmanager
async def prometheus(home: Path, target: int) -> AsyncIterator[str]:
    """A Prometheus that scrapes a port of this host; yields its URL."""
    config = home / "prometheus.yml"
    job = {"job_name": "shop", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    rules = str(CONTRIB / "prometheus" / "alerts.yml")
    # JSON is YAML.
    config.write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "rule_files": [rules], "scrape_configs": [job]})
    )
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
        cwd=home,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()


async def query(url: str, expression: str) -> list[Any]:
    """The result of an expression; none while Prometheus starts."""

    def ask() -> list[Any]:
        try:
            with urlopen(f"{url}/api/v1/query?query={quote(expression)}", timeout=5) as reply:
                return list(json.load(reply)["data"]["result"])
        except (URLError, ConnectionError):
            return []

    return await asyncio.to_thread(ask)


@needs_prometheus
@ONE_SERVER
async def test_a_real_prometheus_scrapes_a_worker(make_queue: MakeQueue, tmp_path: Path) -> None:
    async with working(make_queue()) as port, prometheus(tmp_path, port) as url:
        (completed,) = await eventually(
            lambda: query(url, 'mx_rmq_messages_total{topic="good",outcome="completed"}'), within=30
        )
        assert completed["value"][1] == "10"
        assert completed["metric"]["queue"] == "q"
        (up,) = await query(url, "up")
        assert up["value"][1] == "1"
        (waited,) = await query(
            url, 'histogram_quantile(0.95, sum by (le) (mx_rmq_waiting_seconds_bucket{topic="good"}))'
        )
        assert 0 < float(waited["value"][1]) < 10
        (dead_letters,) = await query(url, "mx_rmq_dead_letters > 0")
        assert dead_letters["metric"]["topic"] == "bad"


@needs_prometheus
@ONE_SERVER
async def test_promtool_finds_nothing_wrong_with_the_page(make_queue: MakeQueue) -> None:
    async with working(make_queue()) as port:
        promtool("check", "metrics", given=await fetch(port, "/metrics"))


@needs_prometheus
def test_promtool_accepts_the_alerts_and_their_tests() -> None:
    promtool("check", "rules", str(CONTRIB / "prometheus" / "alerts.yml"))
    promtool("test", "rules", str(CONTRIB / "prometheus" / "alerts_test.yml"))


# -- what contrib/ names is there


@pytest.mark.parametrize(
    "file", ["prometheus/alerts.yml", "prometheus/alerts_test.yml", "grafana/dashboard.json"]
)
@ONE_SERVER
async def test_every_metric_that_is_named_exists(make_queue: MakeQueue, file: str) -> None:
    async with working(make_queue()) as port:
        now = Page(await fetch(port, "/metrics"))
    real = {name for name, _, _ in now.samples}
    named = set(re.findall(r"\bmx_rmq_\w+", (CONTRIB / file).read_text()))
    assert len(named) > 5
    assert named - real == set()


def test_every_alert_is_tested_and_in_the_documentation() -> None:
    alerts = re.findall(r"alert: (\w+)", (CONTRIB / "prometheus" / "alerts.yml").read_text())
    tested = re.findall(r"alertname: (\w+)", (CONTRIB / "prometheus" / "alerts_test.yml").read_text())
    assert len(alerts) >= 8
    assert set(tested) == set(alerts)
    assert set(re.findall(r"^\| `(MxRmq\w+)` ", text_of("docs/observability.md"), re.MULTILINE)) == set(
        alerts
    )


def test_the_dashboard_has_a_title_a_query_and_a_place_for_every_panel() -> None:
    dashboard = json.loads((CONTRIB / "grafana" / "dashboard.json").read_text())
    assert len(dashboard["panels"]) >= 8
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["gridPos"].keys() == {"x", "y", "w", "h"}
        assert all(target["expr"] for target in panel["targets"])
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
