"""An asyncio message queue on Redis or Valkey that never loses a message."""

__version__ = "2.0.0a1"
