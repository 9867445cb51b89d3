"""Which shard an error is about."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mx_rmq.errors import ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


class ShardNaming:
    """Adds a shard's name and server to what is raised when its server is away.

    A queue that is not spread has one shard without a name, and its errors stay as they are.
    """

    def __init__(self, shard: str, server: str) -> None:
        self._shard = shard
        self._server = server

    def named(self, error: ServerUnavailable) -> ServerUnavailable:
        """The error with the name, or the same error if it has one already or needs none."""
        if not self._shard or str(error).startswith("shard "):
            return error
        return ServerUnavailable(f"shard {self._shard} at {self._server}: {error}")

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Name the shard in what is raised inside."""
        try:
            yield
        except ServerUnavailable as error:
            if (named := self.named(error)) is error:
                raise
            raise named from error
