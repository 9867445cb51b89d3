"""The pages in docs/: their code runs, their numbers and names hold, their links lead somewhere."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import json
import logging
import re
import signal
import subprocess
import sys
from dataclasses import MISSING, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Config, Retry, events
from tests.project.pages import ROOT, blocks, files, section, text_of
from tests.project.test_programs import request
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.proxy import Proxy

PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]

TASKS = files(section("README.md", "Two processes"))["tasks.py"]


# -- all pages


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_its_heading(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page)):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize("page", sorted({*PAGES} - {"docs/internals.md"}))
def test_prose_is_at_most_100_columns_wide(page: str) -> None:
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")] == []


def test_the_readme_leads_to_every_page() -> None:
    linked = re.findall(r"\]\((docs/\w+\.md)\)", section("README.md", "More"))
    assert sorted(linked) == PAGES[1:]


# -- docs/guide.md


def test_the_table_of_options_is_made_of_the_config() -> None:
    shown = {"url": "`MX_RMQ_URL`, else `redis://localhost:6379/0`", "worker_name": "the host's name"}
    tree = ast.parse((ROOT / "src" / "mx_rmq" / "config.py").read_text())
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config"]
    rows = []
    for field, doc in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(doc, ast.Expr)
            name, meaning = field.target.id, " ".join(str(ast.literal_eval(doc.value)).split())
            rows.append(f"| `{name}` | {shown.get(name) or f'`{default_of(name)}`'} | {meaning} |")
    assert section("docs/guide.md", "Options").strip().splitlines()[-len(rows) :] == rows
    assert len(rows) == len(fields(Config))


def default_of(name: str) -> str:
    (field,) = [field for field in fields(Config) if field.name == name]
    if field.default is MISSING:
        assert field.default_factory is Retry
        return "Retry()"
    return repr(field.default)


def shape(log: str) -> list[str]:
    """A log without what differs from run to run: times, ids, worker names, paths, our own frames."""
    log = re.sub(r'  File "\S*src/mx_rmq/\S*", line \d+, in \w+\n.*\n', "", log)
    log = re.sub(r'File "\S*/examples/', 'File "…/examples/', log)
    log = re.sub(r"failed after [<\d.]+ m?s", "failed after … s", log)
    log = re.sub(r"\b[0-9a-z]{22}\b", "ID", log)
    log = re.sub(r"[\w.-]+\.\d+\.ID", "WORKER", log)
    return [line for line in log.splitlines() if line.strip(" ~^")]  # markers differ between Pythons


def run_failing_handler(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "examples/failing_handler.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


def test_the_log_of_a_failing_handler_is_what_a_run_prints() -> None:
    (shown,) = blocks(section("docs/guide.md", "Logs"))
    assert shape(shown) == shape(run_failing_handler())
    assert shown.count("Traceback") == 2


# -- docs/logging.md


def test_the_line_of_json_is_what_a_run_prints() -> None:
    (shown,) = blocks(text_of("docs/logging.md"), "json")
    printed = run_failing_handler("json").splitlines()
    want = json.loads(shown)
    (found,) = [line for line in map(json.loads, printed) if line.get("attempt") == want["attempt"]]
    assert found.keys() == want.keys()
    assert shape(found["text"]) == shape(want["text"])
    differ = {"time", "text", "id", "seconds"}
    assert {name: found[name] for name in found.keys() - differ} == {
        name: want[name] for name in want.keys() - differ
    }


def test_every_event_on_the_page_exists_and_has_its_level() -> None:
    levels = {str(kind.__struct_config__.tag): logging.getLevelName(kind.level) for kind in events.KINDS}
    what = section("docs/logging.md", "What is logged")
    for level, names in re.findall(r"^\| ([A-Z]+):.*?\| (.*) \|$", what, re.MULTILINE):
        for name in re.findall(r"`([\w.]+)`", names):
            assert levels[name] == level, name
    assert {"message.dead", "message.retried"} <= levels.keys()


RECIPES: dict[str, tuple[str, ...]] = {
    "Text": (
        r"\d{4}-\d\d-\d\d \S+ INFO    server.back: s answers again after 1.0 s",
        r"\d{4}-\d\d-\d\d \S+ WARNING message.dead: orders A1 is dead \(failed\)",
    ),
    "Text, without the retries": (r"\d{4}-\d\d-\d\d \S+ WARNING mx_rmq message.dead: orders A1",),
    "Lines of JSON": (r'\{"time".*"event": "server.back"', r'\{"time".*"event": "message.dead"'),
    "One event apart": (r"message.dead: orders A1 is dead",),
}

HAPPEN = """
from mx_rmq import RedisMessageQueue, events
events.emit(events.ServerBack(server="s", seconds=1.0))
events.emit(events.MessageDead(topic="orders", id="A1", reason="failed", error="no", attempts=3))
"""


def recipe(title: str) -> str:
    (code,) = blocks(section("docs/logging.md", title), "python")
    return code


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_prints_what_it_promises(title: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", recipe(title) + HAPPEN]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True)
    kept = tmp_path / "deaths.log"
    lines = (kept.read_text() if kept.exists() else done.stderr).splitlines()
    assert len(lines) == len(RECIPES[title]), lines
    for line, wanted in zip(lines, RECIPES[title], strict=True):
        assert re.match(wanted, line), line


def test_every_recipe_is_tested() -> None:
    titles = re.findall(r"^### (.+)$", section("docs/logging.md", "Recipes"), re.MULTILINE)
    assert titles == [*RECIPES, "Sentry"]  # its package is not installed here
    compile(recipe("Sentry"), "recipe", "exec")


# -- docs/web.md


@ONE_SERVER
async def test_the_fastapi_application_produces_and_says_when_it_cannot(
    redis: Redis, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = files(section("docs/web.md", "FastAPI"))["web.py"]
    quick = code.replace("patience=2", "patience=0.2").replace("timeout(2)", "timeout(0.2)")
    (tmp_path / "web.py").write_text(quick)
    monkeypatch.setenv("MX_RMQ_URL", proxy.url)
    spec = importlib.util.spec_from_file_location("web", tmp_path / "web.py")
    assert spec is not None
    assert spec.loader is not None
    web: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(web)
    ask = partial(request, web.app)
    async with web.app.router.lifespan_context(web.app):
        assert await ask("POST", "/orders/7") == (202, {"message": "order-7", "duplicate": False})
        assert await ask("POST", "/orders/7") == (202, {"message": "order-7", "duplicate": True})
        assert await ask("GET", "/ready") == (200, {"pending": 1})
        proxy.away()
        assert (await ask("POST", "/orders/8"))[0] == 503
        assert (await ask("GET", "/ready"))[0] == 503
        proxy.back()


def test_the_files_of_the_django_project_can_be_compiled() -> None:
    """Django is not installed here."""
    found = files(section("docs/web.md", "Django, Flask"))
    assert list(found) == ["shop/tasks.py", "shop/views.py", "shop/management/commands/work.py"]
    for name, code in found.items():
        compile(code, name, "exec")


# -- docs/deployment.md


@pytest.mark.parametrize("name", ["workers.py", "worker.py"])
def test_a_deployed_worker_handles_messages_until_sigterm(name: str, tmp_path: Path) -> None:
    code = files(text_of("docs/deployment.md"))[name].replace("/tmp/ready", str(tmp_path / "ready"))
    (tmp_path / name).write_text(code)
    (tmp_path / "tasks.py").write_text(TASKS)
    produce = "from tasks import mq, Order; mq.sync.produce('orders', Order('A1', 1.0))"
    with subprocess.Popen([sys.executable, name], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        try:
            subprocess.run([sys.executable, "-c", produce], cwd=tmp_path, timeout=30, check=True)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "A1 paid\n"
            assert (tmp_path / "ready").exists() is (name == "worker.py")
        finally:
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_systemd_waits_longer_than_the_worker_and_tells_one_process() -> None:
    page = text_of("docs/deployment.md")
    (text,) = blocks(page, "ini")
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign] # as its documentation says
    unit.read_string(text)
    assert unit["Service"].getfloat("TimeoutStopSec", 0.0) > Config().stop_grace
    assert unit["Service"]["KillMode"] == "mixed"
    assert unit["Service"]["ExecStart"].endswith(" workers.py")


def test_kubernetes_waits_longer_than_the_worker() -> None:
    (text,) = blocks(text_of("docs/deployment.md"), "yaml")
    (seconds,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", text)
    assert float(seconds) > Config().stop_grace
    assert "command: [python, worker.py]" in text
    assert "command: [test, -e, /tmp/ready]" in text
