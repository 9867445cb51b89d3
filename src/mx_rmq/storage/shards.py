"""The shards of a queue by its layout, and calls to all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar, overload

from redis.exceptions import ResponseError

from mx_rmq.errors import ConfigError, ServerUnavailable, StoreError
from mx_rmq.storage.keys import SEAL, Keys
from mx_rmq.storage.layout import COPIES, ONE, Generation, Layout
from mx_rmq.storage.queries import Queries
from mx_rmq.storage.shard import shard_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from mx_rmq.storage.shard import Shard
    from mx_rmq.storage.store import Store

R = TypeVar("R")

FRESH: Final = 1.0
"""Seconds for which a layout that was read counts as the present one."""
NO_COPY: Final = "no layout is stored under the queue's own tag, and no copy of one can be read"


class Shards(Sequence["Shard"]):
    """The shards that a queue has, by its layout as it was last read.

    As a sequence it holds the shards of all generations, those of the current one first.

    Args:
        make: makes the shard with a name; empty for the queue's own tag.
        queue: the queue's name.
        wanted: the number of shards that the program wants; None for as many as the queue has.
    """

    def __init__(self, make: Callable[[str], Shard], queue: str, wanted: int | None = None) -> None:
        self._make = make
        self._queue = queue
        self._wanted = wanted
        self.base: Final = make("")
        """The queue's own tag, where its layout is. It is a shard itself if the queue was made with one."""
        self.layout = ONE
        self.current: list[Shard] = [self.base]
        """Where new messages go."""
        self.older: list[list[Shard]] = []
        """The shards of older generations, which only drain; the latest generation first."""
        self._all: list[Shard] = [self.base]
        self.only: Shard | None = self.base
        """The shard, if there is only one; an attribute, as every produce reads it."""
        self._made: dict[str, Shard] = {"": self.base}
        self._dropped: list[Shard] = []
        """Shards that are no longer in the layout."""
        self._read_at = self._changed_at = -inf
        self._has_copies = True
        """False if the queue's own tag had no layout, and the copies were asked and are not there either."""
        self._listeners: list[Callable[[], None]] = []

    # -- as a sequence

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Shard]:
        return iter(list(self._all))

    @overload
    def __getitem__(self, index: int) -> Shard: ...

    @overload
    def __getitem__(self, index: slice) -> list[Shard]: ...

    def __getitem__(self, index: int | slice) -> Shard | list[Shard]:
        return self._all[index]

    @property
    def is_one(self) -> bool:
        """Whether there is only one shard."""
        return self.only is not None

    # -- where a message is

    def home(self, text: str) -> Shard:
        """The shard of the current generation to which an id or a key leads."""
        current = self.current
        return current[shard_number(text, len(current))]

    @property
    def generations(self) -> list[list[Shard]]:
        """The shards of each generation, the current one first."""
        return [self.current, *self.older]

    def homes(self, text: str) -> list[Shard]:
        """The shard of each generation to which an id or a key leads, the current generation first."""
        return [some[shard_number(text, len(some))] for some in self.generations]

    def of(self, generation: Generation) -> list[Shard]:
        """The shards of a generation, also of one that is not in the layout yet."""
        return [self._shard(name, generation.shards) for name in generation.names]

    # -- the layout

    @property
    def is_known(self) -> bool:
        """Whether the layout was ever read."""
        return self._read_at > -inf

    @property
    def is_old(self) -> bool:
        """Whether the layout that was last read does not count as the present one any more."""
        return monotonic() - self._read_at > FRESH

    async def settle(self) -> None:
        """Learn the layout, and write it first if the queue is new and the program wants a number.

        Raises:
            ConfigError: the program wants another number than the queue has.
        """
        wanted = self._wanted
        try:
            if wanted is None:
                await self.look(self.base.store)
                return
            layout = await self._settled(wanted)
        except ServerUnavailable as error:
            layout = await self._copied(error)
        self._use(layout)

    async def _settled(self, wanted: int) -> Layout:
        store = self.base.store
        layout, is_new = await settled_layout(store, wanted, lambda: self._found_again(store))
        if is_new and wanted > 1:  # by the copies a program can start while the server of this tag is away
            stores = [self._shard(name).store for name in layout.current.names]
            copies = [*stores, *(shard.store for shard in self.copies)]
            # No message needs them; and what is still sealed is found at the first message.
            noted = (copy_layout(store, layout) for store in dict.fromkeys(copies))
            await asyncio.gather(*noted, *map(unseal, stores), return_exceptions=True)
        return layout

    @property
    def copies(self) -> list[Shard]:
        """The tags that have copies of the layout of a queue that has, or had, several shards."""
        return [self._shard(name) for name in COPIES]

    @property
    def _may_have_copies(self) -> bool:
        """Whether to ask for copies of the layout.

        On one server they are lost with it, and a user of a queue with one shard may not read them.
        """
        return self._is_spread or self._wanted not in (None, 1) or self.layout != ONE

    @property
    def _is_spread(self) -> bool:
        """Whether the tags of the queue may be on several servers."""
        return self.base.server != self.base.url

    async def _copied(self, unknown: ServerUnavailable) -> Layout:
        """The layout by a copy of it, while the queue's own tag cannot be reached."""
        wanted = self._wanted
        if not self._may_have_copies:
            raise unknown
        names = Layout.first(wanted).current.names if wanted is not None and wanted > 1 else ()
        asked = [Queries(self._shard(name).store).layout() for name in (*COPIES, *names)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        latest = latest_layout(text for text in found if isinstance(text, str))
        if latest is None:
            raise unknown
        return latest if wanted is None else checked_number(self._queue, latest, wanted)

    async def _found_again(self, store: Store) -> Layout | None:
        """The layout of a queue whose own tag has lost it; it is written there again.

        It is known to this program, or there is a copy. A queue that was deleted has no copy; while a worker
        serves it, it cannot have been deleted.

        Returns:
            None if the queue is new.

        Raises:
            ServerUnavailable: it is not known whether the queue is new.
        """
        known = None if self.layout == ONE else self.layout
        if known is None and (self._wanted in (None, 1) or not self._has_copies):
            return None  # most queues have one shard, and no copies to look for
        found = await self._read_copies(store)
        answers = [text for text in found if not isinstance(text, ServerUnavailable)]
        latest = latest_layout(answers)
        if latest is None and (known is None or not self._listeners):
            if answers:
                self._has_copies = False
                return None
            raise ServerUnavailable(NO_COPY)
        latest = latest_layout([*answers, *([str(known)] if known else [])])
        assert latest is not None
        layout = await write_again(store, latest)
        await asyncio.gather(
            *(copy_layout(copy.store, layout) for copy in self.copies), return_exceptions=True
        )
        return layout

    async def _read_copies(self, store: Store) -> list[str | ServerUnavailable]:
        """What the copies say; empty for none, or for what the user may not read."""

        async def read(name: str) -> str | ServerUnavailable:
            try:
                if self._is_spread:  # otherwise the open connection leads there
                    return await Queries(self._shard(name).store).layout()
                key = Keys(self._queue, name).of_queue("layout")
                return (await store.commands.execute_command("GET", key) or b"").decode(errors="replace")
            except ServerUnavailable as error:
                return error
            except ResponseError:
                return ""

        return await asyncio.gather(*map(read, COPIES))

    async def look(self, store: Store | None = None) -> bool:
        """Read the layout; returns whether it has changed.

        Args:
            store: of the queue's own tag; by default that for operators.
        """
        asked_at, store = monotonic(), store or self.base.operating
        text = await Queries(store).layout()
        if self._changed_at >= asked_at:  # the answer may be older than what is known
            return False
        if text:
            return self._use(parsed_layout(self._queue, text))
        # None is stored: the queue has one shard, unless the server lost what it had.
        if self._wanted is None:
            return self._use(await self._found_again(store) or ONE)
        return self._use(await self._settled(self._wanted))

    async def now(self) -> Shards:
        """The shards by a layout that is at most a second old; by the last one while it cannot be read."""
        if self.is_old:
            try:
                await self.look()
            except ServerUnavailable as error:
                if not self.is_known:
                    self._use(await self._copied(error))
        return self

    def use(self, layout: Layout) -> bool:
        """Go by a layout that is known to be the present one; returns whether it is another."""
        return self._use(layout)

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call *tell* when the layout has changed."""
        self._listeners.append(tell)

    def not_on_change(self, tell: Callable[[], None]) -> None:
        """Do not call it any more."""
        if tell in self._listeners:
            self._listeners.remove(tell)

    def _use(self, layout: Layout) -> bool:
        self._read_at = monotonic()
        if layout == self.layout:
            return False
        self._changed_at = self._read_at
        self.layout = layout
        generations = map(self.of, layout.generations)
        self.current, *self.older = reversed(list(generations))
        self._all = [shard for some in (self.current, *self.older) for shard in some]
        self.only = self._all[0] if len(self._all) == 1 else None
        for name in [name for name, shard in self._made.items() if name and shard not in self._all]:
            self._dropped.append(self._made.pop(name))
        for tell in list(self._listeners):
            tell()
        return True

    def _shard(self, name: str, siblings: int = 1) -> Shard:
        shard = self._made.get(name)
        if shard is None:
            shard = self._made[name] = self._make(name)
        shard.siblings = max(shard.siblings, siblings)
        return shard

    async def close(self) -> None:
        """Close every connection for good."""
        await asyncio.gather(*(shard.close() for shard in (*self._made.values(), *self._dropped)))


async def settled_layout(
    store: Store, wanted: int, find_again: Callable[[], Awaitable[Layout | None]]
) -> tuple[Layout, bool]:
    """The layout of a queue, and whether it was written now because the queue is new.

    Args:
        store: of the queue's own tag.
        wanted: the number of shards that the program wants.
        find_again: finds and writes a layout that the server has lost; None if there was none.

    Raises:
        ConfigError: the queue has another number.
    """
    queue, text, is_new = store.keys.queue, await Queries(store).layout(), False
    if not text:
        if (found := await find_again()) is not None:
            return checked_number(queue, found, wanted), False
        status, text = await store.set_layout("", str(Layout.first(wanted)), seal=wanted > 1)
        is_new = status > 0
        if status < 0:  # it was used before there were layouts
            return checked_number(queue, ONE, wanted), False
    return checked_number(queue, parsed_layout(queue, text), wanted), is_new


async def write_again(store: Store, layout: Layout) -> Layout:
    """Write a layout that the server of the queue's own tag has lost; returns the one that is there then.

    Raises:
        StoreError: messages were stored under the queue's own tag since, and no generation can name it.
    """
    status, text = await store.set_layout("", str(layout), seal="" not in _names(layout))
    if status < 0:
        if layout.generations[0].number == 0:
            raise StoreError(
                f"queue {store.keys.queue!r} has lost its layout, and the queue was used as one shard since; "
                f"its shards go on; move away what is under {store.keys.prefix}, then write the layout: "
                f"SET {store.keys.of_queue('layout')} '{layout}'"
            )
        # What was stored there since is served as an older generation, and drains.
        status, text = await store.set_layout("", str(Layout((Generation(0, 1), *layout.generations))))
    there = parsed_layout(store.keys.queue, text)
    if "" not in there.current.names:
        await store.seal()
    return there


def _names(layout: Layout) -> set[str]:
    return {name for each in layout.generations for name in each.names}


async def copy_layout(store: Store, layout: Layout) -> None:
    """Note a copy of the layout, unless a later one is there."""
    known = await Queries(store).layout()
    if latest_layout([known, str(layout)]) == layout:
        await store.set_layout(known, str(layout))


async def unseal(store: Store) -> None:
    """Let a shard take new messages: its seal was left by a queue of the same name that was deleted."""
    await store.commands.execute_command("ZREM", store.keys.of_queue("done"), SEAL)


def parsed_layout(queue: str, text: str) -> Layout:
    """A layout as it is stored.

    Raises:
        StoreError: it cannot be read.
    """
    layout = Layout.parse(text)
    if layout is None:
        raise StoreError(
            f"the layout of queue {queue!r} cannot be read: mx-rmq:{{{queue}}}:layout holds {text[:100]!r}; "
            "write it again, such as 0:8 for eight shards, or delete it if the queue has only ever had one"
        )
    return layout


def latest_layout(texts: Iterable[str]) -> Layout | None:
    """The latest of some copies of a layout; None if no text is one."""
    layouts = [layout for text in texts if (layout := Layout.parse(text)) is not None]
    # Of those with one current generation, that with the fewest older ones: they only end.
    return max(layouts, key=lambda each: (each.current.number, -len(each.generations)), default=None)


def checked_number(queue: str, layout: Layout, wanted: int) -> Layout:
    """The layout, if it has the number of shards that the program wants.

    Raises:
        ConfigError: it has another; says which, and what to do.
    """
    if wanted in [each.shards for each in layout.generations]:
        return layout
    stored = layout.current.shards
    raise ConfigError(
        f"queue {queue!r} has {stored} shard{'' if stored == 1 else 's'}, not {wanted}: leave shards= out or "
        f"write shards={stored}; await mq.reshard({wanted}) or `mx-rmq reshard {wanted}` changes the queue"
    )


# -- calls to all shards at once


async def ask_all(shards: Iterable[Shard], ask: Callable[[Shard], Awaitable[R]]) -> list[R]:
    """Ask all shards at once.

    Raises:
        ServerUnavailable: names the shards that did not answer; the others were asked all the same.
    """
    return _answers(await asyncio.gather(*(_ask(shard, ask) for shard in shards), return_exceptions=True))


async def ask_those_there(
    shards: Iterable[Shard], ask: Callable[[Shard], Awaitable[R]]
) -> tuple[list[R], tuple[str, ...]]:
    """Ask all shards at once; returns what those answered that can be reached, and why the others cannot.

    Raises:
        ServerUnavailable: no shard can be reached.
    """
    asked = list(shards)
    answers, missing = await ask_known(asked, ask)
    if asked and len(missing) == len(asked):
        raise ServerUnavailable("; ".join(missing))
    return answers, missing


async def ask_known(
    shards: Iterable[Shard], ask: Callable[[Shard], Awaitable[R]]
) -> tuple[list[R], tuple[str, ...]]:
    """Ask all shards at once; returns the answers there are, and why each other shard did not answer."""
    found = await asyncio.gather(*(_ask(shard, ask) for shard in shards), return_exceptions=True)
    missing = [str(error) for error in found if isinstance(error, ServerUnavailable)]
    return _answers([each for each in found if not isinstance(each, ServerUnavailable)]), tuple(missing)


async def find_first(shards: Shards, id_: str, ask: Callable[[Shard], Awaitable[R | None]]) -> R | None:
    """What the shard says that has a message; None if no shard has it.

    The shards to which the id leads are asked first, then the others: a message with a key is where that
    leads to.

    Raises:
        ServerUnavailable: no shard that answers has it, and one does not answer.
    """
    homes = shards.homes(id_)
    away: list[str] = []
    for some in (homes, [shard for shard in shards if shard not in homes]):
        answers = await asyncio.gather(*(_ask(shard, ask) for shard in some), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ServerUnavailable):
                away.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is not None:
                return answer
    if away:
        raise ServerUnavailable("; ".join(away))
    return None


async def _ask(shard: Shard, ask: Callable[[Shard], Awaitable[R]]) -> R:
    with shard.naming():
        return await ask(shard)


def _answers(found: Sequence[R | BaseException]) -> list[R]:
    """The answers; raises what went wrong, all lost servers in one error."""
    errors = [each for each in found if isinstance(each, BaseException)]
    away = [error for error in errors if isinstance(error, ServerUnavailable)]
    if len(away) == len(errors) > 1:
        raise ServerUnavailable("; ".join(map(str, away))) from away[0]
    for error in errors:
        if len(errors) == 1 or not isinstance(error, ServerUnavailable):
            raise error
    return [each for each in found if not isinstance(each, BaseException)]
