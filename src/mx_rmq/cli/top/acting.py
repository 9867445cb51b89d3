"""What all screens of the live view do: act on the queue, and say how it went."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError
from textual.css.query import NoMatches
from textual.screen import Screen

from mx_rmq.cli.connecting import place_of
from mx_rmq.cli.top.dialogs import Confirm, Show
from mx_rmq.errors import MxRmqError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mx_rmq import RedisMessageQueue


class ActingScreen(Screen[None]):
    """A screen with keys that act on the queue."""

    def __init__(self, queue: RedisMessageQueue) -> None:
        super().__init__()
        self.queue = queue

    @property
    def place(self) -> str:
        """Which queue on which server."""
        return place_of(self.queue)

    def act(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes a while; what goes wrong is shown, and ends nothing."""
        self.while_shown(self._act(work), group="act")

    def while_shown(self, work: Coroutine[Any, Any, None], group: str) -> None:
        """Do something in the background; it ends with the screen."""
        self.run_worker(_until_closed(work), group=group)

    async def _act(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (MxRmqError, ResponseError) as error:
            self.notify(str(error), title="not done", severity="error", timeout=10, markup=False)

    def say(self, text: str) -> None:
        """Tell how something went."""
        self.notify(text, markup=False)

    async def agreed(self, question: str) -> bool:
        """Ask before something that cannot be undone."""
        yes: bool = await self.app.push_screen_wait(Confirm(question))
        return yes

    async def show(self, text: str) -> None:
        """Show a text until a key is pressed."""
        await self.app.push_screen_wait(Show(text))

    async def explain(self, id_: str) -> None:
        """Show why a message has not run, and what is known about it."""
        said = await self.queue.explain(id_)
        await self.show(f"{said}\n\n{await self.queue.find(id_)}")

    async def replay(self, count: int, what: str, *, topic: str, group: str | None = None) -> bool:
        """Replay dead messages after a question; returns whether that was done."""
        if not count:
            self.say(f"no dead messages of {what}")
            return False
        messages = "1 dead message" if count == 1 else f"{count:,} dead messages"
        if not await self.agreed(f"Replay {messages} of {what} in {self.place}? They run again."):
            return False
        replayed = await self.queue.dlq.replay_all(topic=topic, group=group)
        self.say(f"replayed {replayed:,} of {what}")
        return True


async def _until_closed(work: Coroutine[Any, Any, None]) -> None:
    """Do something that may still run when its screen closes: the widgets go before the background work."""
    with suppress(NoMatches):
        await work
