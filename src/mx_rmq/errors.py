"""Everything mx-rmq raises, under one root."""

from __future__ import annotations


class MxRmqError(Exception):
    """The root of every error this package raises on purpose."""


class ConfigError(MxRmqError, ValueError):
    """An option is unknown or its value makes no sense."""


class InvalidName(MxRmqError, ValueError):
    """A queue, topic, message id or worker name is outside the grammar."""


class InvalidPayload(MxRmqError, ValueError):
    """A payload cannot be stored without changing it."""


class MessageTooLarge(MxRmqError, ValueError):
    """A stored message would exceed the size limit."""


class UnreadableMessage(MxRmqError):
    """Stored bytes are not a message this version understands."""


class LeaseLost(MxRmqError):
    """The lease ran out; the message belongs to someone else now."""


class StoreError(MxRmqError):
    """The server refused a transition; nothing was written."""


class OutOfMemory(StoreError):
    """The server reached ``maxmemory`` and refused to store more."""


class WrongKeyType(StoreError):
    """A key of the queue holds another type than the queue's own."""


class EmbeddedServerError(MxRmqError):
    """The bundled server could not be found, started or reached."""
