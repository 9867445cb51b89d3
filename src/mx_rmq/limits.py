"""Numbers that several places must agree on; the scripts' own copies are in ``scripts/lib/limits.lua``."""

from __future__ import annotations

from typing import Final

BATCH: Final = 1000
"""The most messages in one call (I8)."""

CALL_MEMORY: Final = 60.0
"""Seconds for which the server remembers a produce call, to answer it if it is sent again."""

REPLY_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the longest reply to ask for, unless one body is longer: other calls wait behind a reply."""

LONGEST_MEMORY: Final = 30 * 86400.0
"""The most seconds for which the server remembers what became of a message."""

MAX_BYTES: Final = 1024 * 1024
"""The largest message in bytes, unless the queue sets its own limit."""

MOST_ACTS: Final = 1000
"""As many acts of operators the trail keeps."""

MOST_VANISHED: Final = 50
"""As many vanished workers the server remembers."""

MOST_SECONDS: Final = 1e11
"""Durations must be shorter (3,000 years): in a script, a later instant in ms would not be exact."""

MOST_SHARDS: Final = 1024
"""The most shards of a queue: a worker has three connections and a thread for each."""
