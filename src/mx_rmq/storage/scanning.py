"""Read a hash that may be large, in replies of a limited length."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mx_rmq.storage.commands import Commands


async def scan_hash(commands: Commands, key: str, count: int, match: str = "*") -> dict[bytes, bytes]:
    """Those fields of a hash that match a pattern of the server; it looks at about *count* in one call."""
    fields: dict[bytes, bytes] = {}
    cursor = b"0"
    while True:
        cursor, flat = await commands.execute_command("HSCAN", key, cursor, "MATCH", match, "COUNT", count)
        # A client may have paired the reply.
        fields |= flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        if int(cursor) == 0:
            return fields
