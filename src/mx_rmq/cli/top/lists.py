"""The lists that the live view opens: groups of dead messages, and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.widgets import Footer, Static

from mx_rmq.cli.top.acting import ActingScreen
from mx_rmq.cli.top.cells import GROUPS, MESSAGES, group_cells, lacking, message_cells
from mx_rmq.cli.top.table import LiveTable
from mx_rmq.operating.messages import STATES

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widgets import DataTable

    from mx_rmq import DeadGroup, MessageFacts, RedisMessageQueue
    from mx_rmq.operating.messages import Listed

_MOST = 500
"""Groups that are shown."""
_PAGE = 100
"""Messages on a page."""


class GroupsScreen(ActingScreen):
    """Dead messages by cause, the largest group first.

    Args:
        queue: is open.
        topic: only groups of this topic; None for all.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q", "app.pop_screen", "back"),
        ("enter", "letters", "messages"),
        ("R", "replay", "REPLAY the group"),
        ("question_mark", "app.help", "help"),
    ]

    def __init__(self, queue: RedisMessageQueue, topic: str | None) -> None:
        super().__init__(queue)
        self._topic = topic
        self._groups: dict[str, DeadGroup] = {}

    def compose(self) -> ComposeResult:
        """A title and a table."""
        yield Static(id="title")
        yield LiveTable(GROUPS, id="groups")
        yield Footer(show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Read the groups, also when a page of messages was left."""
        self.act(self._load())

    async def _load(self) -> None:
        found = await self.queue.dlq.groups()
        groups = [each for each in found if self._topic in (None, each.topic)][:_MOST]
        self._groups = {each.id: each for each in groups}
        self.query_one(LiveTable).show(
            [each.id for each in groups], [group_cells(each, found.read_at) for each in groups]
        )
        dead = sum(each.count for each in groups)
        more = f"; {found.uncounted:,} more are in no group: audit" if found.uncounted else ""
        more += lacking(found.missing)
        of = f" of topic {self._topic}" if self._topic else ""
        self.query_one("#title", Static).update(
            Text(f"{dead:,} dead messages{of} in {len(groups):,} groups{more}", style="bold")
        )

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter opens a group."""
        event.stop()
        self.action_letters()

    def action_letters(self) -> None:
        """Open the messages of a group."""
        if (group := self._group()) is not None:
            self.app.push_screen(MessagesScreen(self.queue, group.topic, "dead", group=group.id))

    def action_replay(self) -> None:
        """Replay the group."""
        if (group := self._group()) is not None:
            self.act(self._replay(group))

    async def _replay(self, group: DeadGroup) -> None:
        what = f"the group {group.error} of topic {group.topic}"
        if await self.replay(group.count, what, topic=group.topic, group=group.id):
            await self._load()

    def _group(self) -> DeadGroup | None:
        return self._groups.get(self.query_one(LiveTable).selected or "")


class MessagesScreen(ActingScreen):
    """The messages of a topic in one state, a page at a time.

    Args:
        queue: is open.
        topic: whose messages.
        state: the first one to show.
        group: only dead messages of this group.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q", "app.pop_screen", "back"),
        ("s", "state", "next state"),
        ("n", "next", "next page"),
        ("e,enter", "explain", "explain"),
        ("C", "cancel", "CANCEL"),
        ("R", "replay", "REPLAY"),
        ("question_mark", "app.help", "help"),
    ]

    def __init__(self, queue: RedisMessageQueue, topic: str, state: Listed, *, group: str = "") -> None:
        super().__init__(queue)
        self._topic = topic
        self._state: Listed = state
        self._of_group = group
        self._next: str | None = None
        self._facts: dict[str, MessageFacts] = {}

    def compose(self) -> ComposeResult:
        """A title and a table."""
        yield Static(id="title")
        yield LiveTable(MESSAGES, id="messages")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Read the first page."""
        self.act(self._load())

    async def _load(self, after: str | None = None) -> None:
        if self._of_group:
            dead = await self.queue.dlq.list(
                topic=self._topic, group=self._of_group, limit=_PAGE, after=after
            )
            messages = [each.facts for each in dead.letters]
            self._next, now, missing = dead.next, dead.read_at, dead.missing
        else:
            page = await self.queue.list(self._topic, state=self._state, limit=_PAGE, after=after)
            messages, self._next, now, missing = page.messages, page.next, page.read_at, page.missing
        self._facts = {each.id: each for each in messages}
        self.query_one(LiveTable).show(
            [each.id for each in messages], [message_cells(each, now) for each in messages]
        )
        more = (", n for more" if self._next else "") + lacking(missing)
        said = f"{len(messages):,} {self._state} messages of topic {self._topic}{more}"
        self.query_one("#title", Static).update(Text(said, style="bold"))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter explains a message."""
        event.stop()
        self.action_explain()

    def action_state(self) -> None:
        """Show the next state."""
        if not self._of_group:
            self._state = STATES[(STATES.index(self._state) + 1) % len(STATES)]
            self.act(self._load())

    def action_next(self) -> None:
        """Show the next page."""
        if self._next is not None:
            self.act(self._load(self._next))

    def action_explain(self) -> None:
        """Say why a message has not run."""
        if (id_ := self._selected()) is not None:
            self.act(self.explain(id_))

    def action_cancel(self) -> None:
        """Withdraw a message."""
        if (id_ := self._selected()) is not None:
            self.act(self._cancel(id_))

    async def _cancel(self, id_: str) -> None:
        if not await self.agreed(
            f"Withdraw 1 message, {id_} of topic {self._topic}, from {self.place} for good?"
        ):
            return
        done = await self.queue.cancel(id_)
        self.say(f"withdrew {id_}" if done else f"{id_} runs, is dead or is gone; it was not withdrawn")
        await self._load()

    def action_replay(self) -> None:
        """Replay a dead message."""
        id_ = self._selected()
        if id_ is not None and self._facts[id_].state == "dead":
            self.act(self._replay(id_))

    async def _replay(self, id_: str) -> None:
        if await self.agreed(f"Replay 1 dead message, {id_} of topic {self._topic}, in {self.place}?"):
            await self.queue.dlq.replay(id_)
            self.say(f"replayed {id_}")
            await self._load()

    def _selected(self) -> str | None:
        return self.query_one(LiveTable).selected
