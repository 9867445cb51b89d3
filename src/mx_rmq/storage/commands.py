"""What the rest of the package needs from a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Commands(Protocol):
    """What the store needs from a connection; ``redis.asyncio.Redis`` has it."""

    def execute_command(self, *args: Any) -> Awaitable[Any]:
        """Send one command and return its reply, strings as bytes."""


class Together(Protocol):
    """Connections on which several commands can be sent in one write."""

    async def execute_together(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send commands in a row on one connection; refusals and losses are returned among the replies."""
