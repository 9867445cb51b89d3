"""When a lapsed lease counts as abandoned: not right after a time in which no owner could extend."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from mx_rmq.errors import ServerUnavailable, WrongKeyType
from mx_rmq.events import RecoveryWaits, emit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.config import Config
    from mx_rmq.storage.contract import Overdue

_SETTLING = 1.0
"""Seconds added to the longest time that a living owner needs to reach the server and extend."""
_LOOKS = 20
"""Calls from which the server's clock is estimated; the fastest call is the most exact."""
_NEVER = 0.0
"""A bound that is always past: the call takes nothing over and only shows that the server answers."""


class Calm:
    """Decides until when, by the server's clock, a take-over may be carried out.

    A take-over counts as disturbed if the server could not be reached for a while before it, refused it, or
    carried it out much later than it was sent. In the last case the server stood still, the network delayed
    the call, or the server's clock was put forward. Leases of living owners have lapsed then. These owners
    are given time to extend.
    """

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue = config.name
        # A lease keeper extends three times per lease, and one connection attempt may have to end first.
        self._wait = max(config.lease / 3, config.socket_timeout) + _SETTLING
        # A healthy lease has two thirds left, so none lapses within these times.
        self._tolerance = max(config.lease / 3, 0.25)
        self._harmless = max(config.lease / 2, 1.0)
        self._ahead: deque[float] = deque(maxlen=_LOOKS)
        """Seconds by which the server's clock was ahead of this one, as measured by the latest calls."""
        self._until = -inf
        self._in_time_given = False
        """Whether the last take-over was sent only to see that the server still answers."""
        self._answered_at = self._clock()
        self._unavailable = False
        self.refused = False
        """Whether the server refused the last take-over; it may refuse all writes."""

    @property
    def holding(self) -> bool:
        """Whether owners are being given time to extend."""
        return self._clock() < self._until

    def bound(self) -> float | None:
        """Until when the server may carry out a take-over that is sent now; None for no bound."""
        now = self._clock()
        was_away = self._unavailable and now - self._answered_at > self._harmless
        disturbed = self.refused or was_away
        self._in_time_given = self.holding and not disturbed
        if self.holding or disturbed:
            return _NEVER
        return now + min(self._ahead) + self._tolerance if self._ahead else None

    def failed(self, error: Exception) -> None:
        """Note that a take-over failed."""
        if isinstance(error, ServerUnavailable):
            self._unavailable = True
        elif not isinstance(error, WrongKeyType):  # stays until an operator repairs it
            self.refused = True

    def answered(self, sent_at: float, overdue: Overdue) -> None:
        """Note the answer to a take-over."""
        if not overdue.belated:
            self._ahead.append(overdue.now - sent_at)
        elif not self._in_time_given:
            self._give_time()
        self._answered_at, self._unavailable, self.refused = self._clock(), False, False

    def heard(self, sent_at: float, server_now: float) -> None:
        """Note the server's time from the answer to another call: there may be no take-over for long."""
        now = self._clock()
        was_away = self._unavailable and now - self._answered_at > self._harmless
        ahead = server_now - sent_at
        if was_away or (self._ahead and ahead > min(self._ahead) + self._tolerance):
            if not self.holding:
                self._give_time()
        else:
            self._ahead.append(ahead)
        self._answered_at, self._unavailable = now, False

    def reached(self) -> None:
        """Note that the server answers other calls; an outage is judged by the next take-over."""
        if not self._unavailable:
            self._answered_at = self._clock()

    def _give_time(self) -> None:
        self._ahead.clear()
        self._until = self._clock() + self._wait
        emit(RecoveryWaits(queue=self._queue, seconds=self._wait))
