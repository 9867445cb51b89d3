"""The meaning of the server's error replies."""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import NoScriptError, ResponseError

from mx_rmq.errors import ServerRefused, ServerUnavailable

# Error replies that mean "not now": the server is starting, failing over, moving slots, without its
# replicas or busy with an endless script. It has done nothing. Redis 6.2 wraps the error of a script's
# first write: "Error running script (…): @user_script: 19: -READONLY …".
NOT_NOW: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|MOVED|ASK|TRYAGAIN|UNBLOCKED|NOREPLICAS|BUSY) "
    "|WAIT(?:AOF)? cannot be used with replica"
)

# The subset that means that the server is no longer the primary. It may stay up as a replica while its
# address leads to another server, so the connection is closed. LOADING is included: a server that loads
# while a connection is open is fetching the data of the primary that it now follows. So is CLUSTERDOWN: the
# other nodes may have replaced one that cannot see them. ASK and TRYAGAIN are not: a part of the slot has
# moved, and the server says MOVED when all of it has.
DEMOTED: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|MOVED|UNBLOCKED) "
    "|WAIT(?:AOF)? cannot be used with replica"
)

_MOVED: Final = re.compile(r"(?:^|: -)MOVED \d+ (\S*):(\d+)")


def moved_to(text: str) -> tuple[str, int] | None:
    """The node that an error reply names; its host is empty or ? if it is the same. None if it names none."""
    found = _MOVED.search(text)
    return (found[1], int(found[2])) if found else None


# A server answers a long command of a client that gave no password with a protocol error.
_NO_PASSWORD: Final = re.compile(
    "^NOAUTH |^(?:ERR )?Protocol error: unauthenticated|^Authentication required"
)


def asks_for_password(text: str) -> ServerRefused | None:
    """The exception for a reply to a client that has given no password; None for any other reply."""
    if _NO_PASSWORD.search(text):
        return ServerRefused(
            "the server asks for a password; give username and password, or put them into the URL"
        )
    return None


def refusal(text: str) -> Exception:
    """The exception for an error reply."""
    if text.startswith("NOSCRIPT"):
        return NoScriptError(text)
    if NOT_NOW.search(text):
        return ServerUnavailable(f"the server cannot serve now: {text}")
    return asks_for_password(text) or ResponseError(text)
