"""``mx-rmq top``, headless on a real server, and once on a terminal."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from mx_rmq import RedisMessageQueue, Reject
from mx_rmq.operating.figures import FiguresReader
from tests.cli.terminal import on_terminal
from tests.words import ONE_SERVER, eventually, in_state

pytest.importorskip("textual")

from textual.widgets import Static

from mx_rmq.cli.top.app import MainScreen, TopApp
from mx_rmq.cli.top.dialogs import Confirm, Show
from mx_rmq.cli.top.lists import GroupsScreen, MessagesScreen
from mx_rmq.cli.top.table import LiveTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.pilot import Pilot

    from tests.cli.conftest import Cli
    from tests.proxy import Proxy
    from tests.words import MakeQueue


class Top:
    """A live view, as a person sees it."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app = app
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)

    def text(self, id_: str) -> str:
        return str(self.app.screen.query_one(f"#{id_}", Static).content)

    def rows(self, id_: str) -> list[dict[str, str]]:
        """The rows of a table, cells by the title of their column."""
        table = self.app.screen.query_one(f"#{id_}", LiveTable)
        titles = [str(column.label) for column in table.ordered_columns]
        return [
            dict(zip(titles, (cell.plain for cell in table.get_row_at(n)), strict=True))
            for n in range(table.row_count)
        ]

    def row(self, name: str) -> dict[str, str]:
        return next((row for row in self.rows("topics") if row["topic"] == name), {})

    async def on(self, kind: type) -> None:
        await eventually(lambda: isinstance(self.app.screen, kind))

    @property
    def question(self) -> str:
        assert isinstance(self.app.screen, Confirm)
        return self.app.screen.question

    @property
    def notices(self) -> str:
        return " ".join(each.message for each in self.app._notifications)


@asynccontextmanager
async def top(queue: RedisMessageQueue, width: int = 140, height: int = 40) -> AsyncIterator[Top]:
    app = TopApp(queue)
    async with app.run_test(size=(width, height), notifications=True) as pilot:
        shown = Top(app, pilot)
        await eventually(lambda: app.screen.query("#topics") and "topics" in shown.text("status"))
        yield shown


@pytest.fixture
async def shop(mq: RedisMessageQueue) -> RedisMessageQueue:
    """Five dead orders of two causes, two pending mails without a worker, and a worker for orders."""

    @mq.handler("orders")
    async def on_order(n: int) -> None:
        if n >= 4:
            raise KeyError("price")
        raise Reject(f"no order {n}")

    await mq.produce_many("orders", range(1, 6))
    await mq.produce("mails", 1, message_id="mail-1")
    await mq.produce("mails", 2, message_id="mail-2", delay=600)
    mq._handlers["orders"].retry = type(mq._handlers["orders"].retry)(max_attempts=1)
    await mq.start()

    async def dead() -> bool:
        return (await mq.counts()).dead == 5

    await eventually(dead)
    return mq


@ONE_SERVER
async def test_topics_and_workers_are_shown_and_trouble_comes_first(shop: RedisMessageQueue) -> None:
    await shop.produce_many("orders", [1, 2])
    async with top(shop) as shown:
        mails, orders = shown.rows("topics")
        assert (mails["topic"], mails["state"]) == ("mails", "no worker")
        assert (mails["pending"], mails["delayed"], mails["dead"]) == ("1", "1", "0")
        await eventually(lambda: shown.row("orders")["dead"] == "7")
        assert orders["topic"] == "orders"
        (worker,) = shown.rows("workers")
        assert worker["loop lag"].endswith("ms")
        assert worker["topics"] == "orders"
        assert "dead 7" in shown.text("totals")
        assert "workers 1" in shown.text("totals")
        await shown.press("s", "s")
        await eventually(lambda: "by name" in shown.text("status"))
        assert [row["topic"] for row in shown.rows("topics")] == ["mails", "orders"]
        await shown.press("tab", "enter")
        await shown.on(Show)
        await shown.press("q")


@ONE_SERVER
async def test_p_pauses_the_topic_under_the_cursor_and_resumes_it(shop: RedisMessageQueue) -> None:
    async with top(shop) as shown:
        await shown.press("p")
        await eventually(lambda: shown.row("mails")["state"] == "paused")
        assert "paused mails; p resumes it" in shown.notices
        assert (await shop.counts()).topics["mails"].paused
        await shown.press("p")
        await eventually(lambda: shown.row("mails")["state"] == "no worker")


@ONE_SERVER
async def test_a_group_of_dead_messages_is_replayed_after_a_question(shop: RedisMessageQueue) -> None:
    await shop.pause("orders")
    async with top(shop) as shown:
        await shown.press("g")
        await shown.on(GroupsScreen)
        await eventually(lambda: len(shown.rows("groups")) == 2)
        assert [(row["dead"], row["error"]) for row in shown.rows("groups")] == [
            ("3", "Reject"),
            ("2", "KeyError"),
        ]
        assert "5 dead messages in 2 groups" in shown.text("title")
        await shown.press("R")
        await shown.on(Confirm)
        assert shown.question.startswith(
            "Replay 3 dead messages of the group Reject of topic orders in queue"
        )
        await shown.press("n")
        await shown.on(GroupsScreen)
        assert (await shop.counts()).dead == 5
        await shown.press("R")
        await shown.on(Confirm)
        await shown.press("y")
        await eventually(lambda: len(shown.rows("groups")) == 1)
        assert (await shop.counts()).dead == 2
        assert (await shop.counts()).topics["orders"].pending == 3
        await shown.press("enter")
        await shown.on(MessagesScreen)
        await eventually(lambda: len(shown.rows("messages")) == 2)
        await shown.press("e")
        await shown.on(Show)
        assert isinstance(shown.app.screen, Show)
        assert "KeyError" in shown.app.screen.shown


@ONE_SERVER
async def test_all_dead_messages_of_a_topic_are_replayed_after_a_question(shop: RedisMessageQueue) -> None:
    await shop.pause("orders")
    async with top(shop) as shown:
        await eventually(lambda: shown.row("orders").get("state") == "paused")
        await shown.press("down", "R")
        await shown.on(Confirm)
        assert "Replay 5 dead messages of topic orders in queue 'q' on unix://" in shown.question
        await shown.press("y")
        await eventually(lambda: "replayed 5 of topic orders" in shown.notices)
        await eventually(lambda: shown.row("orders")["dead"] == "0")


@ONE_SERVER
async def test_a_message_is_cancelled_and_explained(shop: RedisMessageQueue) -> None:
    async with top(shop) as shown:
        await shown.press("m")
        await shown.on(MessagesScreen)
        await eventually(lambda: [row["message"] for row in shown.rows("messages")] == ["mail-1"])
        await shown.press("C")
        await shown.on(Confirm)
        assert "Withdraw 1 message, mail-1 of topic mails, from queue 'q'" in shown.question
        await shown.press("y")
        await in_state(shop, "mail-1", "gone")
        await eventually(lambda: shown.rows("messages") == [])
        await shown.press("s", "s", "s")
        await eventually(lambda: [row["message"] for row in shown.rows("messages")] == ["mail-2"])
        await shown.press("q", "e")
        await shown.press(*"mail-2", "enter")
        await shown.on(Show)
        assert isinstance(shown.app.screen, Show)
        assert "mail-2" in shown.app.screen.shown


@ONE_SERVER
async def test_help_lists_the_keys_and_q_quits(shop: RedisMessageQueue) -> None:
    async with top(shop) as shown:
        await shown.press("question_mark")
        await shown.on(Show)
        assert isinstance(shown.app.screen, Show)
        assert "Upper case asks first" in shown.app.screen.shown
        await shown.press("question_mark")
        await shown.press("q")
        assert shown.app.return_code == 0


@ONE_SERVER
async def test_old_figures_are_said_to_be_old_and_it_recovers(make_queue: MakeQueue, proxy: Proxy) -> None:
    queue = make_queue(proxy.url, patience=0.5, socket_timeout=0.5)
    await queue.open()
    await queue.produce("orders", 1)
    async with top(queue) as shown:
        proxy.away()
        await eventually(lambda: "last figures" in shown.text("status"))
        assert "s ago: server unavailable" in shown.text("status")
        assert shown.row("orders")["pending"] == "1"
        await shown.press("p")
        await eventually(lambda: shown.notices)
        proxy.back()
        await eventually(lambda: "1 topics" in shown.text("status"))
        await queue.produce("orders", 2)
        await eventually(lambda: shown.row("orders")["pending"] == "2")


@ONE_SERVER
async def test_figures_that_arrive_while_the_screen_closes_are_dropped(shop: RedisMessageQueue) -> None:
    """Its widgets go before its background work: quitting at that moment must not end in an error."""
    async with top(shop) as shown:
        screen = shown.app.screen
        assert isinstance(screen, MainScreen)
        (watch,) = (each for each in shown.app.workers if each.group == "watch")
        await screen.query("#title, #totals, #status, LiveTable").remove()
        screen._again.set()
        await eventually(lambda: watch.is_finished)
        screen._tell()


@ONE_SERVER
async def test_sixty_columns_show_what_matters(shop: RedisMessageQueue) -> None:
    async with top(shop, 60, 24) as shown:
        assert list(shown.row("mails")) == ["topic", "pending", "dead", "done/s", "state"]
        table = shown.app.screen.query_one("#topics", LiveTable)
        assert table.virtual_size.width <= 60
        await shown.resize(140, 40)
        await eventually(lambda: "p95" in shown.row("mails"))


@ONE_SERVER
async def test_ten_thousand_topics_take_few_round_trips_and_few_rows(
    make_queue: MakeQueue, proxy: Proxy
) -> None:
    queue = make_queue(proxy.url, socket_timeout=10.0)
    await queue.open()
    pairs = [(f"topic-{n:05}", n) for n in range(10_000)]
    for start in range(0, len(pairs), 500):
        await asyncio.gather(*(queue.produce(name, n) for name, n in pairs[start : start + 500]))
    await queue.pause("topic-07777")
    reader = FiguresReader(queue)
    figures = await reader.read()
    assert (figures.known, len(figures.topics)) == (10_000, 200)
    assert figures.pause >= 1.0
    reader.only = "0777"
    before = len(proxy.commands)
    reader._rates_at = monotonic()  # the history is read every few seconds only; this machine may be slow
    assert len((await reader.read()).topics) == 11
    assert len(proxy.commands) - before < 100, "50 calls for 200 topics each, in one write"
    async with top(queue) as shown:
        assert "200 of 10,000 topics" in shown.text("status")
        await shown.press("slash", *"07777", "enter")
        await eventually(lambda: [row["topic"] for row in shown.rows("topics")] == ["topic-07777"], 60)
        assert shown.row("topic-07777")["state"] == "paused"


@ONE_SERVER
async def test_rates_are_those_of_the_last_seconds(mq: RedisMessageQueue) -> None:
    await mq.produce("orders", 1)
    reader = FiguresReader(mq)
    assert (await reader.read()).topics[0].arriving > 0, "at first those of the last minute"
    before = reader._before[0][0]
    await mq.produce_many("orders", range(100))

    async def counted() -> bool:
        figures = await reader.read()
        rate = figures.topics[0].arriving * (figures.read_at - before)
        return rate == pytest.approx(100)

    await eventually(counted)


@ONE_SERVER
async def test_on_a_terminal_it_starts_and_q_quits(queue: RedisMessageQueue, cli: Cli) -> None:
    await queue.produce("orders", 1)
    async with on_terminal(cli, "top") as terminal:
        await terminal.shows("orders")
        terminal.type("q")
        assert await terminal.ended() == 0
    assert "Traceback" not in terminal.text
    refused = await cli("top")
    assert (refused.code, refused.out) == (2, "")
    assert "top needs a terminal" in refused.err


@ONE_SERVER
async def test_without_textual_a_sentence_names_the_extra(cli: Cli) -> None:
    (cli.directory / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'textual' else find(name, *a)\n"
    )
    path = f"{cli.directory}:{cli.env.get('PYTHONPATH', '')}"
    ran = await cli("top", env={"PYTHONPATH": path})
    assert (ran.code, ran.out) == (2, "")
    assert 'pip install "mx-rmq[tui]"' in ran.err


def test_the_picture_in_the_docs_needs_nothing_from_elsewhere() -> None:
    """``python -m tests.pictures`` makes it."""
    svg = (Path(__file__).parents[2] / "docs" / "top.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert re.findall(r"https?://[^\"'\s<]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "@font-face" not in svg
    for word in ("orders", "paused", "REPLAY"):
        assert word in svg
