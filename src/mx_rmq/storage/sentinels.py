"""Where the primary is that a Sentinel set watches."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from mx_rmq.errors import ServerRefused, ServerUnavailable
from mx_rmq.storage.inquiry import Turn
from mx_rmq.storage.place import Place, Spot
from mx_rmq.urls import at

if TYPE_CHECKING:
    from mx_rmq.storage.place import Inquiry
    from mx_rmq.urls import Node, ServerUrl


class SentinelPlace(Place):
    """The primary that the sentinels name; it must say itself that it is one.

    A sentinel that was cut off may name an old primary. So whenever an answer turns out wrong, the next
    sentinel is asked.
    """

    finds = True
    is_checked = True
    share = 0.5

    def __init__(self, server: ServerUrl) -> None:
        super().__init__(server)
        self._server = server
        self._turn = Turn(server.nodes)
        self._spot = None
        self._last = ""
        """Where the primary was last, for when no sentinel answers."""

    async def find(self, inquiry: Inquiry) -> Spot:
        """Ask the sentinels in turn; if none answers, look where the primary was last."""

        async def question(sentinel: Node) -> Node:
            return await self._ask(inquiry, sentinel)

        try:
            self._last = self._server.of_server(await self._turn.ask(question, inquiry.timeout / 2))
        except ServerUnavailable:
            if not self._last:
                raise
        spot = self._spot = Spot(self._last)
        return spot

    def forget(self, spot: Spot) -> None:
        """Ask the next sentinel before the next connection is opened."""
        if self._spot is spot:
            self._spot = None
            self._turn.put_last(self._turn.nodes[0])

    async def _ask(self, inquiry: Inquiry, sentinel: Node) -> Node:
        name = self._server.service
        try:
            answer = await self._command(inquiry, sentinel, "GET-MASTER-ADDR-BY-NAME", name)
            if answer is not None:
                return answer[0].decode(), int(answer[1])
            masters = await self._command(inquiry, sentinel, "MASTERS")
        except ResponseError as error:
            if "unknown command" in str(error):
                said = "it is a server, not a sentinel; sentinels usually listen on port 26379"
            else:
                said = f"{error}; give sentinel_username and sentinel_password if it has users"
            raise ServerRefused(f"the sentinel at {at(sentinel)} does not answer: {said}") from error
        known = [
            dict(zip(each[::2], each[1::2], strict=False)).get(b"name", b"").decode() for each in masters
        ]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"it watches: {', '.join(known) or 'none'}"
        raise ServerRefused(f"the sentinel at {at(sentinel)} watches no primary named {name!r}; {hint}")

    async def _command(self, inquiry: Inquiry, sentinel: Node, *words: str) -> Any:
        url = self._server.of_sentinel(sentinel)
        return await inquiry.ask(url, self._server.sentinel_settings, "SENTINEL", *words)
