"""Which shard takes a message, and how a shard that is away is passed over."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
from redis.exceptions import ResponseError

from mx_rmq.errors import MxRmqError, ServerUnavailable, StoreError
from mx_rmq.producing.ids import new_id
from mx_rmq.receipt import Stored
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.resend import GrowingWait, given_up
from mx_rmq.storage.shard import shard_number
from mx_rmq.storage.shards import unseal

if TYPE_CHECKING:
    from mx_rmq.config import Config
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.shards import Shards

USER: Final = "producer"
"""How the availability of a server knows producers."""

_dice = random.Random()  # noqa: S311 - spreads messages over shards, not for security


class NotSent(ServerUnavailable):
    """The message was not sent to its shard, and another shard may take it."""

    def check_time(self, until: float, patience: float) -> None:
        """Return if there is time for another shard.

        Args:
            until: the end of the producer's patience, by ``time.monotonic``.
            patience: how long that was, in seconds.

        Raises:
            ServerUnavailable: the time is over.
        """
        if monotonic() >= until:
            raise given_up(ServerUnavailable(str(self)), patience) from None


class Placing:
    """Finds the shard for each message of a queue that has several.

    A message with a key or an id of its own belongs to one shard. Any other goes to a shard that answers.

    Args:
        config: of the queue.
        shards: of the queue.
    """

    def __init__(self, config: Config, shards: Shards) -> None:
        self._config = config
        self._shards = shards
        self._probes: dict[Shard, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        """Reads the layout."""
        self._sealed: set[Shard] = set()
        """Shards of older generations that are known to take no messages."""
        self._held: set[tuple[Shard, str]] = set()
        """Shards and topics whose messages with a key wait for those on older shards."""

    def place(self, message: NewMessage) -> tuple[Shard, NewMessage]:
        """The shard for a message; the message may get another id, which leads to that shard."""
        shards = self._shards
        current = shards.current
        if shards.older:
            self._look_soon()
        elif len(current) == 1:
            return current[0], message
        shard = current[shard_number(message.key or message.id, len(current))]
        if shard.is_well or message.is_bound:
            return shard, message
        well = [number for number, each in enumerate(current) if each.is_well]
        if not well:
            return shard, message
        number = _dice.choice(well)
        return current[number], with_id(message, id_for(number, len(current)))

    def _look_soon(self) -> None:
        """Read the layout, at most once a second, while there are older generations: they end.

        No message waits for it: the server of the layout may be away.
        """
        if self._looking is None and self._shards.is_old:
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        try:
            await self._shards.now()
        except (MxRmqError, ResponseError):
            pass  # the layout that is known is right, if not the newest
        finally:
            self._looking = None

    async def before(self, shard: Shard, topic: str, message: NewMessage) -> Stored:
        """Do what must be done before a bound message is stored while there are older generations.

        The older shard to which its key or id leads must take no messages any more. If the message has a
        key, its topic is held on the shard until the messages that came before are claimed. If it has an id
        of its own, that may be taken on the older shard.

        Returns:
            How its id is taken; ``STORED`` if it is free.
        """
        for older in self._shards.homes(message.key or message.id)[1:]:
            with older.naming():
                taken = await self._ask_older(older, message)
            if taken is not Stored.STORED:
                return taken
        if message.key and (shard, topic) not in self._held:
            shards = await self._shards.now()
            if shards.older and shard in shards.current:  # another refuses the message, and it goes elsewhere
                await shard.store.hold(topic)
                self._held.add((shard, topic))
        return Stored.STORED

    async def _ask_older(self, older: Shard, message: NewMessage) -> Stored:
        if older not in self._sealed:
            await older.store.seal()
            self._sealed.add(older)
            self._held.clear()  # it may have got messages since these topics were let go
        if not message.has_own_id:
            return Stored.STORED
        (taken,) = await older.store.taken([message.id])
        return taken

    async def reach(self, shard: Shard) -> None:
        """Connect to a shard, unless it is connected, before an unbound message is sent to it.

        Raises:
            NotSent: there is no connection, and another shard may have one.
        """
        if shard.connection.number or not self.has_others(shard):
            return
        try:
            await Queries(shard.store).ping()
        except ServerUnavailable as error:
            self.lost(shard, error)
            raise NotSent(str(shard.naming.named(error))) from error

    def has_others(self, shard: Shard) -> bool:
        """Whether another shard answers."""
        return any(each.is_well for each in self._shards.current if each is not shard)

    def lost(self, shard: Shard, error: Exception) -> None:
        """Note that a shard cannot be reached, and try it until it can."""
        if not self.has_others(shard):
            remedy = f"trying for {self._config.patience:g} s"
        else:
            remedy = "messages without key and id go to the other shards"
        shard.availability.lost(USER, error, remedy)
        if len(self._shards.current) > 1 and shard not in self._probes and not shard.is_closed:
            probe = self._probes[shard] = asyncio.create_task(self._probe(shard))
            probe.add_done_callback(lambda _: self._probes.pop(shard, None))

    async def _probe(self, shard: Shard) -> None:
        waits = GrowingWait()
        while not shard.is_closed:
            await asyncio.sleep(waits.next())
            with suppress(MxRmqError):
                await Queries(shard.store).ping()
                break
        shard.availability.back(USER)

    async def relearn(self, sealed: Shard | None = None) -> None:
        """Read the layout after a shard refused messages because the queue has another layout.

        If that still has the shard, the seal is an old one, and is removed: a layout is always written
        before the shards that it makes older are sealed.

        Args:
            sealed: the shard; None for the only one that was known.

        Raises:
            ServerUnavailable: the layout could not be read for ``patience`` seconds.
            StoreError: no layout is stored, but the queue has one.
        """
        sealed = sealed or self._shards.base
        waits, until = GrowingWait(), monotonic() + self._config.patience
        while sealed in self._shards.current:
            problem: MxRmqError
            try:
                if await self._shards.look(self._shards.base.store) or sealed not in self._shards.current:
                    continue
                if sealed.name:
                    await unseal(sealed.store)
                    return
                problem = StoreError(
                    f"queue {self._config.name!r} has several shards, but its layout is not stored any more; "
                    f"write it again: SET {sealed.keys.of_queue('layout')} 0:8 for 8 shards"
                )
            except ServerUnavailable as error:
                problem = error
            wait = waits.next()
            if monotonic() + wait > until:
                raise problem
            await asyncio.sleep(wait)

    def close(self) -> None:
        """Try no shard any more."""
        for task in (*self._probes.values(), self._looking):
            if task is not None:
                task.cancel()


def id_for(number: int, count: int) -> str:
    """A new id that leads to one of *count* shards."""
    while shard_number(id_ := new_id(), count) != number:
        pass
    return id_


def with_id(message: NewMessage, id_: str) -> NewMessage:
    """The same message under another id."""
    return msgspec.structs.replace(message, id=id_)
