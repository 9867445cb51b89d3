"""Whether a server answers: an outage is told at once and once a minute, and so is its end."""

from __future__ import annotations

from time import monotonic
from typing import Final

from mx_rmq.errors import WrongKeyType
from mx_rmq.events import ServerBack, ServerReconnected, ServerUnavailable, emit

_AGAIN: Final = 60.0
"""Seconds after which an outage that lasts is told again."""


class Availability:
    """What the users of one server know of it.

    An outage begins with the first user that cannot use the server, and ends when all of those can again.
    During it each further key of the wrong type is told too: an operator has to mend every one.

    Args:
        server: how events call it.
        queue: whose server it is.
    """

    def __init__(self, server: str, queue: str = "") -> None:
        self.server = server
        self.queue = queue
        self._since = 0.0
        self._told_at = 0.0
        self._keys_told: set[str] = set()
        """The errors about keys of the wrong type that were told since the outage began."""
        self.away: set[str] = set()
        """The users that cannot use it now."""

    def lost(self, user: str, error: Exception, remedy: str = "trying until it answers") -> None:
        """Note that a user cannot use the server; *remedy* says what is being done about it."""
        now = monotonic()
        if not self.away:
            self._since, self._told_at = now, 0.0
            self._keys_told.clear()
        self.away.add(user)
        another = isinstance(error, WrongKeyType) and str(error) not in self._keys_told
        if another or not self._told_at or now - self._told_at >= _AGAIN:
            if another:
                self._keys_told.add(str(error))
            lasts = f"; for {now - self._since:.0f} s now" if self._told_at else ""
            self._told_at = now
            said = f"{error}{lasts}; {remedy}"
            emit(ServerUnavailable(queue=self.queue, server=self.server, error=said))

    def back(self, user: str) -> None:
        """Note that a user can use the server again."""
        if user in self.away:
            self.away.discard(user)
            if not self.away:
                seconds = monotonic() - self._since
                emit(ServerBack(queue=self.queue, server=self.server, seconds=seconds))

    def reconnected(self) -> None:
        """Note that a connection that was lost is open again."""
        emit(ServerReconnected(queue=self.queue, server=self.server))

    def leave(self, user: str) -> None:
        """Forget a user that has ended, without a word: what it last knew of the server is old."""
        self.away.discard(user)
