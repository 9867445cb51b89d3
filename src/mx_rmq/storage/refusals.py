"""What it means that the server refuses a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mx_rmq.errors import OutOfMemory, StoreError, WrongKeyType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.exceptions import ResponseError

    from mx_rmq.storage.commands import Commands
    from mx_rmq.storage.scripts import Script


class Sealed(StoreError):
    """The shard takes no new messages: the queue has another layout. Nothing was written."""


async def refusal_of(
    commands: Commands, error: ResponseError, script: Script, keys: Sequence[str]
) -> StoreError:
    """The exception for the server's refusal. Scripts check before they write: nothing was written."""
    text = str(error)
    if "WRONGTYPE Operation" in text:
        wrong = []
        for key, (_, kind) in zip(keys, script.keys, strict=False):  # a cluster's guard is the last key
            found = (await commands.execute_command("TYPE", key)).decode()
            if found not in (kind, "none"):
                wrong.append(f"{key} is a {found}, not a {kind}")
        what = "; ".join(wrong) or "a key of the queue has the wrong type"
        return WrongKeyType(f"{script.name}: {what}; something else wrote there, rename or delete it")
    if "SEALED the shard" in text:
        return Sealed(f"{script.name}: the shard takes no new messages; the queue has another layout")
    # Not "OOM": redis-py removes that word, and TOOMANY contains it.
    if "command not allowed when used memory" in text:
        return OutOfMemory(
            f"{script.name}: the server reached its maxmemory and stores nothing more; "
            "raise maxmemory or let workers catch up, then send again"
        )
    return StoreError(f"{script.name}: {text}")
