"""Events as log records: the text says what happened, the fields are attributes of the record."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from mx_rmq.events import KINDS, MessageRetried, listen

if TYPE_CHECKING:
    from mx_rmq.events import Event

logger = logging.getLogger("mx_rmq")

_MOST_PLACES: Final = 1000
_places: set[tuple[str, str]] = set()
"""Topics and places in the user's code from which an error was logged with its traceback."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def write(event: Event, exception: BaseException | None) -> None:
    """Log one event."""
    level = event.level
    if isinstance(event, MessageRetried):
        if (event.topic, event.place) not in _places:  # the first one from there is shown with its traceback
            if len(_places) < _MOST_PLACES:
                _places.add((event.topic, event.place))
            level = logging.WARNING
        elif not logger.isEnabledFor(logging.DEBUG):
            exception = None
    if logger.isEnabledFor(level):
        trace = None if exception is None else (type(exception), exception, exception.__traceback__)
        extra = {"event": event.name, **event.fields}
        record = logger.makeRecord(
            logger.name, level, __name__, 0, f"{event.name}: %s", (event.text,), trace, extra=extra
        )
        if exception is not None and not _is_text(exception):
            lines = "".join(traceback.format_exception(exception)).rstrip("\n")
            record.exc_text = lines.encode(errors="backslashreplace").decode()
        logger.handle(record)


def _is_text(exception: BaseException) -> bool:
    """Whether the text of an exception can be written to a file: a lone surrogate cannot."""
    try:
        str(exception).encode()
    except Exception:
        return False
    return True


def listen_to_all() -> None:
    """Log every kind of event, except the frequent ones: they would be most of the log."""
    listen(write, *(kind for kind in KINDS if not kind.is_frequent))


def configure(level: int = logging.INFO) -> None:
    """Log to standard error, unless the program has configured logging itself."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, text and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(line, default=str)
