"""The live view itself: topics above, workers below, read again every second."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final

from redis.exceptions import ResponseError
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.widgets import Footer, Static

from mx_rmq.cli.exits import Exit
from mx_rmq.cli.top.acting import ActingScreen
from mx_rmq.cli.top.cells import TOPICS, WORKERS, topic_cells, totals_line, worker_cells
from mx_rmq.cli.top.dialogs import Ask, Show
from mx_rmq.cli.top.lists import GroupsScreen, MessagesScreen
from mx_rmq.cli.top.table import LiveTable
from mx_rmq.cli.words import shards_of
from mx_rmq.errors import MxRmqError, ServerUnavailable
from mx_rmq.operating.figures import ORDERS, FiguresReader
from mx_rmq.tables import one_line

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize
    from textual.widgets import DataTable

    from mx_rmq import RedisMessageQueue
    from mx_rmq.operating.figures import Figures, TopicFigures
    from mx_rmq.operating.messages import Listed

_STALE: Final = 2.0
"""Seconds beyond the interval after which figures are said to be old."""

HELP: Final = """\
On the first screen
  ↑ ↓        another topic or worker         Tab   from topics to workers and back
  Enter, m   messages of the topic           d     its dead messages by group
  g          dead messages of all topics     e     explain a message by its id
  p          pause or resume the topic       R     REPLAY all dead messages of the topic
  s          order: trouble, busy, name      /     only topics with a text in their name
  q          quit
In a list of groups
  Enter      messages of the group           R     REPLAY the group
In a list of messages
  s          next state                      n     next page
  Enter, e   explain the message             C     CANCEL it
  R          REPLAY it, if it is dead        q     back

Upper case asks first and says how many: it cannot be undone.
in/s, done/s and failed/s are those of the last ten seconds; p50 and p95 are how long handlers of
completed messages ran, in the last minute or two; the bars are completed messages by minute.
loop lag is the longest that a worker's event loop was late within ten seconds."""


class MainScreen(ActingScreen):
    """Topics and workers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "app.quit", "quit"),
        ("question_mark", "app.help", "help"),
        ("p", "pause", "pause"),
        ("m", "messages", "messages"),
        ("d", "dead", "dead"),
        ("g", "groups", "all dead"),
        ("e", "explain", "explain"),
        ("s", "order", "order"),
        ("slash", "filter", "filter"),
        ("R", "replay", "REPLAY"),
    ]

    def __init__(self, queue: RedisMessageQueue) -> None:
        super().__init__(queue)
        self._reader = FiguresReader(queue)
        self._figures: Figures | None = None
        self._away: frozenset[str] | None = None
        """The shards that did not answer the last look."""
        self._read_at = monotonic()
        self._problem = ""
        self._again = asyncio.Event()

    def compose(self) -> ComposeResult:
        """A title, the totals, what is known of the server, and two tables."""
        yield Static(Text(f"mx-rmq top: {self.place}", style="bold"), id="title")
        yield Static(id="totals")
        yield Static(id="status")
        yield LiveTable(TOPICS, id="topics")
        yield LiveTable(WORKERS, id="workers")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.while_shown(self._watch(), group="watch")
        self.set_interval(1.0, self._tell)
        self._tell()

    async def _watch(self) -> None:
        while True:
            pause = 1.0
            self._again.clear()
            try:
                figures = await self._read()
            except (MxRmqError, ResponseError) as error:
                self._problem = (
                    f"server unavailable: {error}" if isinstance(error, ServerUnavailable) else str(error)
                )
            else:
                self._figures, self._read_at, self._problem, pause = figures, monotonic(), "", figures.pause
                self._draw(figures)
            self._tell()
            try:
                async with asyncio.timeout(pause):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def _read(self) -> Figures:
        """Look once. If other shards answer than before, rates begin anew: a shard's totals are no events."""
        figures = await self._reader.read()
        away = shards_of(figures.counts.missing)
        if self._away not in (None, away):
            self._reader = FiguresReader(self.queue, order=self._reader.order, only=self._reader.only)
            figures = await self._reader.read()
        self._away = shards_of(figures.counts.missing)
        return figures

    def _draw(self, figures: Figures) -> None:
        now = figures.read_at
        self.query_one("#totals", Static).update(totals_line(figures.whole, len(figures.workers)))
        self.query_one("#topics", LiveTable).show(
            [each.name for each in figures.topics], [topic_cells(each, now) for each in figures.topics]
        )
        self.query_one("#workers", LiveTable).show(
            [each.name for each in figures.workers], [worker_cells(each, now) for each in figures.workers]
        )

    def _tell(self) -> None:
        """Say how old the figures are, and what they are of."""
        figures, age = self._figures, monotonic() - self._read_at
        is_old = figures is not None and age > figures.pause + _STALE
        if self._problem or is_old:
            last = "no figures yet" if figures is None else f"last figures {age:.0f} s ago"
            text = Text(f"{last}: {self._problem or 'the server does not answer'}", style="bold red")
        elif figures is None:
            text = Text("reading …", style="dim")
        else:
            missing = figures.counts.missing
            text = Text(self._about(figures), style="bold red" if missing else "dim")
        for status in self.query("#status").results(Static):  # none while the screen closes
            status.update(text)
        for table in self.query(LiveTable):
            table.set_class(bool(self._problem or is_old), "old")

    def _about(self, figures: Figures) -> str:
        shown = (
            f"{figures.known:,}"
            if len(figures.topics) == figures.known
            else f"{len(figures.topics):,} of {figures.known:,}"
        )
        only = f" with {self._reader.only!r}" if self._reader.only else ""
        about = f"{shown} topics{only}, by {self._reader.order}; every {figures.pause:.0f} s"
        missing = figures.counts.missing
        return f"missing: {one_line('; '.join(missing), 200)}; {about}" if missing else about

    def on_resize(self, event: Resize) -> None:
        """Another width has room for other columns."""
        if self._figures is not None:
            self.call_after_refresh(self._draw, self._figures)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter opens what is under the cursor."""
        if event.data_table.id == "topics":
            self.action_messages()
            return
        name = self.query_one("#workers", LiveTable).selected
        for worker in self._figures.workers if self._figures else ():
            if worker.name == name:
                self.app.push_screen(Show(str(worker)))

    # -- keys

    def action_pause(self) -> None:
        """Pause or resume the topic."""
        if (topic := self._topic()) is not None:
            self.act(self._pause(topic))

    async def _pause(self, topic: TopicFigures) -> None:
        if topic.counts.paused:
            await self.queue.resume(topic.name)
            self.say(f"resumed {topic.name}")
        else:
            await self.queue.pause(topic.name)
            self.say(f"paused {topic.name}; p resumes it")
        self._again.set()

    def action_messages(self) -> None:
        """Open the messages of the topic."""
        if (topic := self._topic()) is not None:
            self.app.push_screen(MessagesScreen(self.queue, topic.name, _first_state(topic)))

    def action_dead(self) -> None:
        """Open the dead messages of the topic by group."""
        if (topic := self._topic()) is not None:
            self.app.push_screen(GroupsScreen(self.queue, topic.name))

    def action_groups(self) -> None:
        """Open all dead messages by group."""
        self.app.push_screen(GroupsScreen(self.queue, None))

    def action_explain(self) -> None:
        """Explain a message by its id."""
        self.act(self._explain())

    async def _explain(self) -> None:
        id_ = await self.app.push_screen_wait(Ask("Explain the message with this id:"))
        if id_:
            await self.explain(id_)

    def action_order(self) -> None:
        """Order topics in another way."""
        orders = ORDERS
        self._reader.order = orders[(orders.index(self._reader.order) + 1) % len(orders)]
        self._again.set()

    def action_filter(self) -> None:
        """Show only some topics."""
        self.act(self._filter())

    async def _filter(self) -> None:
        only = await self.app.push_screen_wait(Ask("Only topics with this in their name:", self._reader.only))
        if only is not None:
            self._reader.only = only
            self._again.set()

    def action_replay(self) -> None:
        """Replay all dead messages of the topic."""
        if (topic := self._topic()) is not None:
            self.act(self._replay(topic.name))

    async def _replay(self, topic: str) -> None:
        counts = await self.queue.counts()
        if counts.missing:  # or the question would name too few
            raise ServerUnavailable("; ".join(counts.missing))
        dead = counts.topics[topic].in_dlq if topic in counts.topics else 0
        if await self.replay(dead, f"topic {topic}", topic=topic):
            self._again.set()

    def _topic(self) -> TopicFigures | None:
        name = self.query_one("#topics", LiveTable).selected
        topics = self._figures.topics if self._figures else []
        return next((each for each in topics if each.name == name), None)


class TopApp(App[None]):
    """``mx-rmq top``.

    Args:
        queue: is open.
    """

    TITLE = "mx-rmq top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "interrupt", show=False, priority=True)
    ]
    CSS = """
    #title, #totals, #status { height: 1; padding: 0 1; }
    #topics { height: 3fr; }
    #workers { height: 1fr; min-height: 4; border-top: solid $primary; }
    #groups, #messages { height: 1fr; }
    .old { opacity: 50%; }
    """

    def __init__(self, queue: RedisMessageQueue) -> None:
        super().__init__()
        self._queue = queue

    def on_mount(self) -> None:
        """Show topics and workers."""
        self.push_screen(MainScreen(self._queue))

    def action_interrupt(self) -> None:
        """End as other commands do."""
        self.exit(return_code=Exit.INTERRUPTED)

    def action_help(self) -> None:
        """List the keys."""
        self.push_screen(Show(HELP))


def _first_state(topic: TopicFigures) -> Listed:
    """A state in which the topic has messages."""
    counts = topic.counts
    states: tuple[tuple[Listed, int], ...] = (
        ("pending", counts.pending),
        ("running", counts.running),
        ("delayed", counts.delayed),
        ("dead", counts.in_dlq),
    )
    return next((state for state, count in states if count), "pending")
