"""What producers ask of a queue."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from mx_rmq.drafts import DEFAULT, draft, refuse_one_id
from mx_rmq.errors import NotDurable
from mx_rmq.keys import check_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from mx_rmq.config import Config, Durability
    from mx_rmq.drafts import Ttl
    from mx_rmq.keys import Lane
    from mx_rmq.producer import Producer, Receipt


class Production(ABC):
    """The producers' half of ``RedisMessageQueue``; whatever is produced opens the queue."""

    config: Config
    _loop: asyncio.AbstractEventLoop | None
    _producer: Producer | None
    _produce_middleware: list[Callable[..., Awaitable[Receipt]]]

    @abstractmethod
    async def _open_producer(self) -> Producer:
        """The producer of the queue in this event loop, which is opened if need be."""

    async def produce(
        self,
        topic: str,
        payload: Any,
        *,
        priority: Lane = "normal",
        delay: float = 0.0,
        ttl: Ttl = DEFAULT,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_for: float = 0.0,
        durability: Durability | None = None,
    ) -> Receipt:
        """Store a message and return its id, once the server has it.

        Args:
            topic: who shall handle it.
            payload: plain JSON values, a dataclass, a ``msgspec.Struct`` or a pydantic model.
            priority: ``high`` before ``normal`` before ``low``; first in, first out in each.
            delay: seconds before it may run.
            ttl: seconds from then on after which it is dead instead of run; None for no end.
            message_id: makes producing idempotent: while the id is taken, nothing is stored and the
                receipt says ``duplicate``.
            headers: strings for the handler's context.
            dedup_for: seconds for which the id stays taken after the message is done.
            durability: return only once it is on the server's ``disk``, or ``replicated``; by default what
                the queue says, which is ``memory`` unless it was told otherwise.

        Raises:
            InvalidPayload, InvalidName, ConfigError, MessageTooLarge: nothing was stored, and why.
            ServerUnavailable: the server could not be reached for ``patience`` seconds. Whether it was
                stored is unknown; with the same ``message_id`` it may be produced again.
            NotOnDisk, NotReplicated: it is stored, but was not as durable as asked for within
                ``durability_timeout`` seconds. With the same ``message_id`` it may be produced again.
            UnsafeServer: the server can never make it as durable as that; nothing was stored.
        """
        if self._produce_middleware:
            return await self._produce_through(
                topic,
                payload,
                {
                    "priority": priority,
                    "delay": delay,
                    "ttl": ttl,
                    "message_id": message_id,
                    "headers": dict(headers or {}),
                    "dedup_for": dedup_for,
                    "durability": durability,
                },
            )
        message = draft(
            self.config,
            topic,
            priority=priority,
            delay=delay,
            ttl=ttl,
            message_id=message_id,
            headers=headers,
            dedup_for=dedup_for,
            durability=durability,
        ).message(payload)
        producer = self._producer
        if producer is None or self._loop is not asyncio.get_running_loop():
            producer = await self._open_producer()
        try:
            return await producer.produce(topic, message)
        except NotDurable as error:
            raise error.of(message.id) from None  # the others of its batch are not this caller's

    async def produce_many(self, topic: str, payloads: Iterable[Any], **options: Any) -> list[Receipt]:
        """Store many messages, in chunks of which each is stored whole or not at all.

        Returns one receipt per payload, in order. Options are those of ``produce``, the same for all.
        """
        check_name("topic", topic)
        refuse_one_id(options)
        producer = await self._open_producer()
        if self._produce_middleware:
            return [await self._produce_through(topic, payload, dict(options)) for payload in payloads]
        return await producer.produce_many(topic, map(draft(self.config, topic, **options).message, payloads))

    async def _produce_through(self, topic: str, payload: Any, options: dict[str, Any]) -> Receipt:
        async def last(topic: str, payload: Any, options: dict[str, Any]) -> Receipt:
            message = draft(self.config, topic, **options).message(payload)
            producer = await self._open_producer()
            try:
                return await producer.produce(topic, message)
            except NotDurable as error:
                raise error.of(message.id) from None

        return await around(self._produce_middleware, last)(topic, payload, options)

    def produce_middleware(self, layer: Any) -> Any:
        """Put ``async def layer(call_next, topic, payload, options)`` around every produce.

        Also around those of ``mq.sync``, where a layer cannot wait for anything but ``call_next``.
        """
        self._produce_middleware.append(layer)
        return layer

    @property
    def has_produce_middleware(self) -> bool:
        """Whether anything is around produce."""
        return bool(self._produce_middleware)


def around(
    layers: Sequence[Any], last: Callable[..., Awaitable[Receipt]]
) -> Callable[..., Awaitable[Receipt]]:
    """A produce with layers around it, the first one outermost."""
    call = last
    for layer in reversed(layers):
        call = _bind(layer, call)
    return call


def _bind(layer: Any, inner: Callable[..., Awaitable[Receipt]]) -> Callable[..., Awaitable[Receipt]]:
    async def outer(topic: str, payload: Any, options: dict[str, Any]) -> Receipt:
        receipt: Receipt = await layer(inner, topic, payload, options)
        return receipt

    return outer
