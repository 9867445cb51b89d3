"""Events as log records: the text says what happened, the fields are attributes of the record."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from mx_rmq.events import KINDS, MessageRetried, listen
from mx_rmq.tables import printable

if TYPE_CHECKING:
    from typing import TextIO

    from mx_rmq.events import Event

Style = Literal["auto", "plain", "colour", "json"]
"""How log lines look. ``auto`` is coloured on a terminal, else plain."""

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


def configure_program(style: Style, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Log to standard error in a program of ours: what this package says, and what its user's code logs.

    Args:
        style: how the lines look. Unless it is ``auto``, what the user's code has configured goes.
        level: the least level of what this package says.
        stream: another file than standard error.
    """
    root = logging.getLogger()
    if style == "auto" and logger.hasHandlers():
        return
    for configured in (root, logger):
        for handler in configured.handlers[:]:
            configured.removeHandler(handler)
    handler = logging.StreamHandler(stream)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(LineFormatter(coloured=style == "colour" or (style == "auto" and is_coloured())))
    root.addHandler(handler)
    logger.setLevel(level)


def is_coloured() -> bool:
    """Whether standard error shows colours, and its user wants them."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and os.environ.get("TERM") != "dumb")


class LineFormatter(logging.Formatter):
    """Formats a record as a line for people: time, level, event and text.

    On a terminal, control characters in the text are shown as ``?``.

    Args:
        coloured: with colours, for a terminal.
    """

    _COLOURS: Final = {
        logging.DEBUG: "2",
        logging.INFO: "32",
        logging.WARNING: "33",
        logging.ERROR: "31",
        logging.CRITICAL: "1;31",
    }

    def __init__(self, *, coloured: bool) -> None:
        super().__init__("%(asctime)s %(message)s")
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it."""
        formatted = super().format(record)
        if not self._coloured:
            return printable(formatted) if sys.stderr.isatty() else formatted
        head = self.formatMessage(record)
        return head + printable(formatted[len(head) :])

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """Return the line."""
        # What happens here is named by the event; what the user's code logs, by its logger.
        event = getattr(record, "event", "" if record.name == "root" else record.name)
        text = record.message.removeprefix(f"{event}: ")
        if not self._coloured:
            return f"{record.asctime} {record.levelname:<7} {event}{': ' if event else ''}{text}"
        colour = self._COLOURS.get(record.levelno, "0")
        time = record.asctime.partition(" ")[2].partition(",")[0]
        name = f" \x1b[1m{event}\x1b[0m" if event else ""
        return f"\x1b[2m{time}\x1b[0m \x1b[{colour}m{record.levelname:<7}\x1b[0m{name} {printable(text)}"


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
