"""Where a shard's primary is: what every connection asks when it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mx_rmq.errors import ServerRefused, ServerUnavailable
from mx_rmq.storage.replies import moved_to
from mx_rmq.urls import read_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mx_rmq.urls import ServerUrl

R = TypeVar("R")

_TLS_SHARE = 0.6
"""Of a timeout, for opening a connection with TLS; the rest is for finding out why there is no answer."""


class Inquiry(Protocol):
    """How a place asks other servers: from an event loop, or by blocking the thread.

    The blocking one finishes without being suspended, so that ``run_blocking`` can run what awaits it.
    """

    timeout: float
    """Seconds for all questions together."""

    async def ask(self, url: str, settings: Mapping[str, Any], *command: Any) -> Any:
        """The reply to one command, over a connection of its own.

        Raises:
            ServerUnavailable: the server does not answer.
            ServerRefused: it refuses the connection.
            ResponseError: it refuses the command.
        """

    async def do(self, call: Callable[[], R]) -> R:
        """The result of a call that blocks."""


@dataclass(frozen=True, eq=False, slots=True)
class Spot:
    """Where a primary was found; each finding makes its own, so an old one is not taken for a new one."""

    url: str
    host: str = ""


class Place:
    """Where one shard's primary is; this one is at a fixed URL, others find theirs.

    A place is shared by the connections of its shard, in whichever thread they are. What it knows it keeps in
    single attributes, which are replaced, never changed.

    Args:
        server: the URL, and what to connect with.
    """

    finds = False
    """Whether looking again can give another answer."""
    in_cluster = False
    """Whether slots can move to another node."""
    is_checked = False
    """Whether a server must say that it is the primary before it is used."""
    share = 1.0
    """The part of a connection's timeout that opening it may take; the rest is for looking elsewhere."""

    def __init__(self, server: ServerUrl) -> None:
        self.settings: Mapping[str, Any] = server.settings
        """Arguments of redis-py, besides the URL of a spot."""
        self.url = server.url
        self.tls = server.url.startswith("rediss")
        self.answered = False
        """Whether a connection was opened before: the URL is right then, whatever comes later."""
        if self.tls:
            self.share = min(self.share, _TLS_SHARE)
        self._spot: Spot | None = Spot(server.url)
        self._redirected = ""

    def known(self) -> Spot | None:
        """Where the primary is, as far as is known without asking.

        Raises:
            ServerRefused: the server has said that the keys are elsewhere, and there is no way to follow.
        """
        if self._redirected:
            said, self._redirected = self._redirected, ""
            raise ServerRefused(
                f"the server is one node of a cluster, and the queue's keys are on another ({said}); "
                "write redis+cluster:// in place of redis://"
            )
        return self._spot

    async def find(self, inquiry: Inquiry) -> Spot:
        """Look where the primary is now.

        Args:
            inquiry: how to ask.

        Raises:
            ServerUnavailable: no answer now; a later look may have one.
            ServerRefused: the answer will not change: a wrong name, password or certificate.
        """
        assert self._spot is not None
        return self._spot

    def forget(self, spot: Spot) -> None:
        """A connection to *spot* failed or was lost: look again before the next one is opened."""

    def heard(self, spot: Spot, reply: str) -> None:
        """The server at *spot* replied that it cannot serve; a redirection names the one that can."""
        if moved_to(reply) is not None:
            self._redirected = reply
        else:
            self.forget(spot)

    def check(self, spot: Spot, role: Any) -> None:
        """Refuse a server that is not the primary, by its reply to ROLE.

        Raises:
            ServerUnavailable: it is a replica.
        """
        if isinstance(role, list) and role[0] != b"master":
            self.forget(spot)
            raise ServerUnavailable(f"the server cannot serve now: it is no primary but a {role[0].decode()}")


class Locator(Protocol):
    """Answers where the primary of a shard is."""

    def place(self, key: str) -> Place:
        """The place of the shard to which a key belongs."""


def place_of(where: Place | str) -> Place:
    """A place; a URL stands for the one server at it."""
    return Place(read_url(where)) if isinstance(where, str) else where
