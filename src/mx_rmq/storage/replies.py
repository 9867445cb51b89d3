"""The meaning of the server's error replies."""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import NoScriptError, ResponseError

from mx_rmq.errors import ServerUnavailable

# Error replies that mean "not now": the server is starting, failing over, moving slots, without its
# replicas or busy with an endless script. It has done nothing. Redis 6.2 wraps the error of a script's
# first write: "Error running script (…): @user_script: 19: -READONLY …".
NOT_NOW: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|UNBLOCKED|NOREPLICAS|BUSY) "
    "|WAIT(?:AOF)? cannot be used with replica"
)

# The subset that means that the server is no longer the primary. It may stay up as a replica while its
# address leads to another server, so the connection is closed. LOADING is included: a server that loads
# while a connection is open is fetching the data of the primary that it now follows.
DEMOTED: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|UNBLOCKED) |WAIT(?:AOF)? cannot be used with replica"
)


def refusal(text: str) -> Exception:
    """The exception for an error reply."""
    if text.startswith("NOSCRIPT"):
        return NoScriptError(text)
    if NOT_NOW.search(text):
        return ServerUnavailable(f"the server cannot serve now: {text}")
    return ResponseError(text)
