"""Events as log records: the name is the text, the fields are attributes of the record."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mx_rmq.events import KINDS, MessageCompleted, listen

if TYPE_CHECKING:
    from mx_rmq.events import Event

logger = logging.getLogger("mx_rmq")


def write(event: Event, exception: BaseException | None) -> None:
    """Log one event."""
    if logger.isEnabledFor(event.level):
        logger.log(event.level, event.name, extra=event.fields, exc_info=exception)


def listen_to_all() -> None:
    """Log every kind of event, except completions: they would be most of the log."""
    listen(write, *(kind for kind in KINDS if kind is not MessageCompleted))
