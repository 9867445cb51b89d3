"""The parked claim: a blocking pop and the claim behind it, in one write on a connection of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from mx_rmq.errors import ServerUnavailable
from mx_rmq.storage.queries import ClientIdentity, info_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mx_rmq.storage.wire import Receiver, Wire
    from mx_rmq.worker.holdings import Holdings

    OnAnswer = Callable[[float, Any, Any], None]
    """Called while the reply to a claim is being read. It gets when the claim was made at the earliest, by
    the loop's clock, the reply to the pop before it, and the reply; errors stand in place of replies."""

_PATIENCE: Final = 0.1
"""Seconds to wait for a reply that should come at once."""
_TRIES: Final = 3
"""How often the pop is told to end: the server may read that before it reads the pop."""


class ParkedClaim:
    """Waits on the server for a wake token, and claims the moment one comes.

    The server reads a command that was sent behind a blocking one when the blocking one has ended. So
    waking and claiming is one round trip. If no token comes, the pop ends after a while, and the claim
    behind it is the look that makes up for lost tokens.

    Args:
        holdings: of the worker on the shard to claim from.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._connection = holdings.shard.new_connection(0.0)
        self._commands = holdings.shard.connection
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._client: asyncio.Future[Any] = self._loop.create_future()
        """The client id of ``_wire`` on the server."""
        self._claimed: asyncio.Future[None] | None = None
        """Resolved when the claim under way is answered."""
        self.may_end = True
        """Whether the server lets this user end a pop; it is not known until that was tried."""

    async def send(
        self,
        keys: Collection[str],
        longest: float,
        claim: tuple[Any, ...],
        on_answer: OnAnswer,
        *,
        timed: bool = False,
    ) -> None:
        """Wait for a token at any of *keys*, at most *longest* seconds, then claim.

        Args:
            keys: of wake tokens.
            longest: seconds.
            claim: the command.
            on_answer: takes the reply.
            timed: whether the server's clock tells when the claim was made; otherwise it counts from when it
                was sent.
        """
        wire = await self._connection.opened()
        claimed, pop, began = (self._loop.create_future() for _ in range(3))
        sent_at = self._loop.time()

        def answer(reply: Any) -> None:
            if self._claimed is claimed:
                self._claimed = None
            claimed.set_result(None)
            at = sent_at
            if timed and began.exception() is None:
                at = min(sent_at + _passed(began.result(), reply), self._loop.time())
            on_answer(at, pop.exception() or pop.result(), reply)

        commands: list[tuple[Any, ...]] = [("BLPOP", *keys, longest), claim]
        receivers: list[Receiver] = [pop, _Answer(answer)]
        if timed:
            commands.insert(0, ("TIME",))
            receivers.insert(0, began)
        if wire is not self._wire:  # learn by which number its pops can be ended, and others see it
            self._wire, self._client = wire, self._loop.create_future()
            self._client.add_done_callback(self._identified)
            self._holdings.parked = None
            if self._holdings.is_watched:
                commands.insert(0, ("INFO", "server"))
                receivers.insert(0, _Answer(self._introduce))
            commands.insert(0, ("CLIENT", "ID"))
            receivers.insert(0, self._client)
        self._claimed = claimed
        wire.send_together(commands, receivers, waits=longest)

    def _identified(self, client: asyncio.Future[Any]) -> None:
        if isinstance(client.exception(), ResponseError):
            self.may_end = False

    def _introduce(self, info: Any) -> None:
        """Note which connection this is, for presence to register it."""
        server = info_fields(info).get("run_id", "")
        if self._client.exception() is None and isinstance(id_ := self._client.result(), int) and server:
            self._holdings.parked = ClientIdentity(id_, server)

    async def end(self) -> bool:
        """End the pop under way, so that the claim runs now, and wait for its answer.

        If that is not possible, the connection is closed, and False returned. The claim is then answered with
        an error, and may have been done.
        """
        if (claimed := self._claimed) is None:
            return True
        try:
            for _ in range(_TRIES):
                await asyncio.wait([self._client], timeout=_PATIENCE)
                if claimed.done() or not self._client.done():
                    break
                await self._commands.execute_command("CLIENT", "UNBLOCK", self._client.result())
                await asyncio.wait([claimed], timeout=_PATIENCE)
        except ResponseError:  # the user has no right to do that
            self.may_end = False
        except ServerUnavailable:
            pass  # the connection is closed below, and that is reported
        if claimed.done():
            return True
        await self.close()
        return False

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


def _passed(began: Any, reply: Any) -> float:
    """Seconds between the server's time before the pop and that in the reply to a claim; 0 if not known."""
    if not isinstance(reply, list):
        return 0.0
    seconds, micros = map(int, began)
    return max(0.0, int(reply[0]) / 1e6 - (seconds + micros / 1e6))


class _Answer:
    """Gets a reply and acts on it at once; a future would take a turn of the event loop."""

    def __init__(self, act: Callable[[Any], None]) -> None:
        self._act = act
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._done = True
        self._act(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._done = True
        self._act(exception)
