"""Named produce calls: after a lost reply a call may be sent again without storing messages twice."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from mx_rmq.errors import NotDurable
from mx_rmq.events import MessagesProduced, emit, heard
from mx_rmq.producing.ids import new_id
from mx_rmq.receipt import Stored, receipts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.receipt import Receipt
    from mx_rmq.storage.contract import NewMessage
    from mx_rmq.storage.store import Store


class Calls:
    """Makes producer names and call numbers; each producer name has one call under way at a time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._numbers = count(1)

    def name(self) -> str:
        """A producer name that no other producer has."""
        return new_id()

    def number(self) -> str:
        """The next call number; may be called in any thread."""
        return str(next(self._numbers))

    def longest(self, durability: Durability) -> float:
        """How many seconds one attempt may take."""
        waits = 0.0 if durability == "memory" else self._config.durability_timeout
        return self._config.socket_timeout + waits

    def prepare(
        self, store: Store, topic: str, producer: str, messages: Sequence[NewMessage]
    ) -> Callable[[], Awaitable[list[Receipt]]]:
        """Return a function that sends one call and may be repeated; all messages are delayed or none is."""
        produce = store.produce_delayed if messages[0].delay > 0 else store.produce
        call = self.number()

        async def send() -> list[Receipt]:
            try:
                stored = await produce(topic, messages, producer=producer, call=call)
            except NotDurable as error:
                raise error.of(*(message.id for message in messages)) from None
            if heard(MessagesProduced):
                self.tell(topic, stored)
            return receipts([message.id for message in messages], stored)

        return send

    def tell(self, topic: str, stored: Sequence[Stored]) -> None:
        """Emit the event of a call that was answered."""
        new = stored.count(Stored.STORED)
        emit(
            MessagesProduced(queue=self._config.name, topic=topic, messages=new, duplicates=len(stored) - new)
        )
