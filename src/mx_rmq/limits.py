"""Numbers that several places must agree on; the scripts' own copies are in ``scripts/lib/limits.lua``."""

from __future__ import annotations

from typing import Final

BATCH: Final = 1000
"""The most messages in one call (I8)."""

CALL_MEMORY: Final = 60.0
"""Seconds for which the server remembers a produce call, to answer it if it is sent again."""

REPLY_BYTES: Final = 4 * 1024 * 1024
"""The longest reply that is asked for, unless a single body is longer: other calls wait behind it."""

MAX_BYTES: Final = 1024 * 1024
"""The largest message, unless a queue says otherwise."""

MOST_SECONDS: Final = 1e11
"""Durations are shorter than this (3,000 years): later instants in ms would not be exact in a script."""
