"""A queue on another server, or under another name, for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mx_rmq.errors import ConfigError
from mx_rmq.storage.locate import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from mx_rmq.config import Config
    from mx_rmq.lifecycle import Lifecycle
    from mx_rmq.producing.sync import SyncProducer
    from mx_rmq.storage.store import NewStore


class Override:
    """Swaps the server of a queue that is not open: ``with mq.override(…):`` or ``async with``.

    The latter also closes the queue at its end. Another server that is embedded runs from its first use to
    the end of the block, and what is in it then is gone.

    Args:
        changes: options of the queue with their other values: ``url``, ``name``, ``concurrency``.
        lifecycle: of the queue.
        sync: the queue's blocking producer.
        set_config: tells the queue its configuration.
        new_store: makes the stores.
    """

    def __init__(
        self,
        changes: Mapping[str, Any],
        lifecycle: Lifecycle,
        sync: SyncProducer,
        set_config: Callable[[Config], None],
        new_store: NewStore,
    ) -> None:
        self._changes = changes
        self._lifecycle = lifecycle
        self._sync = sync
        self._set_config = set_config
        self._new_store = new_store
        self._before: tuple[Config, Address, NewStore] | None = None

    def __enter__(self) -> None:
        if self._lifecycle.is_open:
            raise ConfigError("override() needs a queue that is not open; close it first")
        config, address, _ = self._before = self._lifecycle.server
        changed = config.changed(**self._changes)
        if "url" in self._changes:
            address = Address(changed.server, kept=True)
        self._use(changed, address, self._new_store)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left_open = self._lifecycle.is_open
        if (other := self._restore()) is not None:
            other.end()
        if left_open and kind is None:
            raise ConfigError(
                "the queue was still open at the end of override(); close it before, or write async with"
            )

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._lifecycle.close()
        finally:
            if (other := self._restore()) is not None:
                await asyncio.to_thread(other.end)

    def _restore(self) -> Address | None:
        """Use the queue's own server again; returns the address of the other one, if it was another."""
        assert self._before is not None
        _, address, _ = self._lifecycle.server
        self._use(*self._before)
        return None if address is self._before[1] else address

    def _use(self, config: Config, address: Address, new_store: NewStore) -> None:
        self._sync.use(config, address, new_store)
        self._lifecycle.use(config, address, new_store)
        self._set_config(config)
