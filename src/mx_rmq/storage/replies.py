"""What the server's refusals mean."""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import NoScriptError, ResponseError

from mx_rmq.errors import ServerUnavailable

# Replies by which a server says "not now": it is starting, failing over, moving slots, without its
# replicas or busy with an endless script. It has done nothing. Redis 6.2 wraps what the
# first write of a script was answered: "Error running script (…): @user_script: 19: -READONLY …".
NOT_NOW: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|UNBLOCKED|NOREPLICAS|BUSY) "
    "|WAIT(?:AOF)? cannot be used with replica"
)

# Those of them by which a server says that it is not the primary any more. It may live on as a replica
# while its address leads to another one, so the connection is given up. LOADING is one of them: a server
# that loads while a connection lasts is fetching the data of the primary that it follows now.
DEMOTED: Final = re.compile(
    "(?:^|: -)(?:LOADING|READONLY|MASTERDOWN|UNBLOCKED) |WAIT(?:AOF)? cannot be used with replica"
)


def refusal(text: str) -> Exception:
    """The error for a reply that is one."""
    if text.startswith("NOSCRIPT"):
        return NoScriptError(text)
    if NOT_NOW.search(text):
        return ServerUnavailable(f"the server cannot serve now: {text}")
    return ResponseError(text)
