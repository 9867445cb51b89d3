"""Live figures: one poller for all open tabs, which stops when no tab listens."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from mx_rmq.errors import MxRmqError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mx_rmq.web.desk import Desk, Live

EVERY: Final = 2.0
"""Seconds between two turns."""
MOST_PARTS: Final = 8
"""Parts that one tab may follow."""
MOST_FOLLOWED: Final = 200
"""Different parts that all tabs together may follow; each is drawn in every turn."""
MOST_TABS: Final = 500
_LONGEST: Final = 8000
"""Characters of the names of parts; a filter is written with two for each byte."""
_LASTS: Final = 20.0
"""Seconds of one answer. Browsers then ask again, so a server that stops does not wait for open tabs long."""


class Poller:
    """Renders the parts that tabs follow, and tells each tab what has changed since it last heard.

    Args:
        desk: of the dashboard.
        every: seconds between two turns.
    """

    def __init__(self, desk: Desk, every: float = EVERY) -> None:
        self._desk = desk
        self._every = every
        self._boot = secrets.token_hex(4)
        self._turn = 0
        self._followed: Counter[str] = Counter()
        self._parts: dict[str, _Part] = {}
        self._tabs = 0
        self._errors: dict[str, str] = {}
        """Why a part could not be drawn in this turn. Tabs that do not follow it are not told."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._said: dict[tuple[tuple[str, ...], int], str] = {}

    @property
    def is_polling(self) -> bool:
        """Whether a tab listens."""
        return self._task is not None and not self._task.done()

    @property
    def turns(self) -> int:
        """How often the queue was looked at."""
        return self._turn

    def known(self, wanted: str) -> tuple[str, ...]:
        """Those of the parts in a text, separated by commas, that there are."""
        names = [name for name in wanted[:_LONGEST].split(",") if name.partition(":")[0] in self._desk.live]
        return tuple(dict.fromkeys(names))[:MOST_PARTS]

    def has_room(self, parts: tuple[str, ...]) -> bool:
        """Whether one more tab may follow these parts."""
        return self._tabs < MOST_TABS and len({*self._followed, *parts}) <= MOST_FOLLOWED

    async def listen(self, parts: tuple[str, ...], last_id: str = "") -> AsyncGenerator[str, None]:
        """Events as ``text/event-stream`` has them, for a few seconds.

        Args:
            parts: what the tab follows.
            last_id: of the last event that it heard; empty for none.
        """
        boot, _, turn = last_id.partition("-")
        heard = int(turn) if boot == self._boot and turn.isdecimal() and len(turn) < 20 else -1
        until = time.monotonic() + _LASTS
        self._followed.update(parts)
        self._tabs += 1
        if not self.is_polling:
            self._task = asyncio.create_task(self._poll())
        try:
            yield "retry: 1000\n\n"
            while (left := until - time.monotonic()) > 0:
                changed = self._changed
                if self._turn > heard and all(part in self._parts or part in self._errors for part in parts):
                    yield f"id: {self._boot}-{self._turn}\ndata: {self._since(parts, heard)}\n\n"
                    heard = self._turn
                    continue
                try:
                    async with asyncio.timeout(left):
                        await changed.wait()
                except TimeoutError:
                    break
        finally:
            self._followed.subtract(parts)
            self._followed = +self._followed
            self._tabs -= 1

    def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()

    async def _poll(self) -> None:
        while self._followed:
            await self._look()
            self._turn += 1
            self._said.clear()
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            await asyncio.sleep(self._every)
        self._parts.clear()

    async def _look(self) -> None:
        """One turn: render what is followed; an error is told, and what was known stays on the pages."""
        self._parts = {name: part for name, part in self._parts.items() if name in self._followed}
        errors: dict[str, str] = {}
        for name in list(self._followed):
            kind, _, argument = name.partition(":")
            try:
                live = await self._desk.live[kind](self._desk, argument)
            except (MxRmqError, ResponseError, OSError) as failure:
                errors[name] = str(failure)
                continue
            except Exception:  # a bug of ours in one part must not leave the other parts without figures
                logging.getLogger("mx_rmq").exception("the dashboard could not draw %r", name)
                errors[name] = "a part of this page could not be drawn; see the log of the dashboard"
                continue
            self._parts.setdefault(name, _Part()).take(live, self._turn + 1)
        self._errors = errors

    def _since(self, parts: tuple[str, ...], heard: int) -> str:
        """What has changed since a turn, as JSON; tabs that follow the same share it."""
        key = parts, heard
        if key not in self._said:
            html: dict[str, str] = {}
            order: dict[str, list[str]] = {}
            for name in parts:
                if name in self._parts:
                    self._parts[name].tell(heard, html, order)
            event: dict[str, Any] = {"html": html, "order": order}
            if error := next((self._errors[name] for name in parts if name in self._errors), ""):
                event["error"] = error
            self._said[key] = json.dumps(event)
        return self._said[key]


class _Part:
    """What a part was when last rendered, and in which turn each piece of it changed."""

    def __init__(self) -> None:
        self._html: dict[str, tuple[int, str]] = {}
        self._order: dict[str, tuple[int, list[str]]] = {}

    def take(self, live: Live, turn: int) -> None:
        before, orders = self._html, self._order
        self._html, self._order = {}, {}
        for id_, html in live.html.items():
            known = before.get(id_)
            self._html[id_] = known if known is not None and known[1] == html else (turn, html)
        for id_, order in live.order.items():
            was = orders.get(id_)
            self._order[id_] = was if was is not None and was[1] == order else (turn, order)

    def tell(self, heard: int, html: dict[str, str], order: dict[str, list[str]]) -> None:
        html |= {id_: text for id_, (turn, text) in self._html.items() if turn > heard}
        order |= {id_: ids for id_, (turn, ids) in self._order.items() if turn > heard}
