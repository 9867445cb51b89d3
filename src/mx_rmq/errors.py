"""Every error of mx-rmq, under one root."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class MxRmqError(Exception):
    """The root of every error this package raises on purpose."""


class ConfigError(MxRmqError, ValueError):
    """An option is unknown or its value makes no sense."""


class ServerRefused(ConfigError):
    """The server refuses the user, the password, the database or the certificate; it will again."""


class InvalidName(MxRmqError, ValueError):
    """The name of a queue, topic, message or worker has a character or an ending that is not allowed."""


class InvalidPayload(MxRmqError, ValueError):
    """A payload cannot be stored without changing it."""


class MessageTooLarge(MxRmqError, ValueError):
    """A stored message would exceed the size limit."""


class UnreadableMessage(MxRmqError):
    """Stored bytes are not a message this version understands."""


class LeaseLost(MxRmqError):
    """The lease ran out; the message belongs to another worker now."""


class NotDrained(MxRmqError, TimeoutError):
    """Messages were left when ``drain`` ended; the text says how many, where, and why if that is known."""


class ServerUnavailable(MxRmqError, ConnectionError):
    """The server cannot be reached or does not answer; the call may be sent again."""


class UnsafeServer(MxRmqError):
    """The server is not safe enough to use.

    It could lose messages and ``server_check`` is ``refuse``, it is too old, or it cannot provide the
    durability that a produce asks for.
    """


class NoHandler(MxRmqError, LookupError):
    """A worker was started without a handler, or a topic has none."""


class UnknownTopic(MxRmqError, LookupError):
    """Nothing was produced to the topic, no live worker serves it and no handler is registered for it."""


class StoreError(MxRmqError):
    """The server refused a transition; nothing was written."""


class OutOfMemory(StoreError):
    """The server reached ``maxmemory`` and refused to store more."""


class WrongKeyType(StoreError):
    """A key of the queue has the wrong type."""


class NotDurable(MxRmqError):
    """The messages are stored; their durability was not confirmed within ``durability_timeout``.

    Args:
        ids: of the messages.
        lacking: how far the durability got, such as "1 of 2 replicas confirmed it within 5 s".
    """

    def __init__(self, ids: tuple[str, ...], lacking: str) -> None:
        super().__init__(ids, lacking)
        self.ids = ids
        self.lacking = lacking

    def of(self, *ids: str) -> Self:
        """The same error for these messages."""
        return type(self)(ids, self.lacking)

    def __str__(self) -> str:
        names = ", ".join(self.ids[:3]) + (f" and {len(self.ids) - 3} more" if len(self.ids) > 3 else "")
        return (
            f"stored on the server, but {self.lacking}: message {names}; producing it again with the same "
            "message_id is safe: a taken id stores nothing, produce only waits for its durability"
        )


class NotOnDisk(NotDurable):
    """The server has the messages, but its disk may not."""


class NotReplicated(NotDurable):
    """The server has the messages, but too few replicas have them."""


class EmbeddedServerError(MxRmqError):
    """The bundled server could not be found, started or reached."""
