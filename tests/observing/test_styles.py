"""How the log lines of a program look."""

from __future__ import annotations

import io
import json
import logging
import sys
from typing import TYPE_CHECKING

import pytest

from mx_rmq.observing.logs import LineFormatter, configure_program, is_coloured

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq.observing.logs import Style


def record(text: str, *, name: str = "mx_rmq", event: str = "", error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError("bad \x1b[2J name")
        except ValueError:
            info = sys.exc_info()
    made = logging.LogRecord(name, logging.WARNING, "x.py", 1, text, (), info)
    if event:
        made.event = event
    return made


def test_a_plain_line_has_time_level_event_and_text() -> None:
    line = LineFormatter(coloured=False)
    assert line.format(record("server.lost: gone", event="server.lost"))[24:] == "WARNING server.lost: gone"
    assert line.format(record("mind this", name="shop"))[24:] == "WARNING shop: mind this"
    assert line.format(record("mind this", name="root"))[24:] == "WARNING mind this"


def test_a_coloured_line_cannot_be_steered_by_its_text() -> None:
    shown = LineFormatter(coloured=True).format(
        record("message.dead: \x1b[2J\x07\nno", event="message.dead", error=True)
    )
    head, *rest = shown.splitlines()
    assert head.endswith(" \x1b[33mWARNING\x1b[0m \x1b[1mmessage.dead\x1b[0m ?[2J?")
    assert rest[0] == "no"
    assert rest[-1] == "ValueError: bad ?[2J name"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Takes pytest's own handlers from the loggers until the end of the test."""

    def take() -> None:
        for logger in (logging.getLogger(), logging.getLogger("mx_rmq")):
            monkeypatch.setattr(logger, "handlers", [])
            monkeypatch.setattr(logger, "level", logger.level)

    return take


def test_a_program_logs_its_users_lines_too(bare: Callable[[], None]) -> None:
    bare()
    stream = io.StringIO()
    configure_program("json", logging.WARNING, stream)
    logging.getLogger("mx_rmq").info("too little")
    logging.getLogger("mx_rmq").warning("enough")
    logging.getLogger("shop").warning("theirs")
    assert [json.loads(line)["text"] for line in stream.getvalue().splitlines()] == ["enough", "theirs"]


@pytest.mark.parametrize(("style", "stays"), [("auto", True), ("plain", False), ("json", False)])
def test_what_is_configured_stays_unless_a_style_is_given(
    bare: Callable[[], None], style: Style, stays: bool
) -> None:
    bare()
    theirs = logging.NullHandler()
    logging.getLogger("mx_rmq").addHandler(theirs)
    configure_program(style)
    assert (theirs in logging.getLogger("mx_rmq").handlers) is stays
    assert len(logging.getLogger().handlers) == (0 if stays else 1)


def test_colours_are_forced_or_refused_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not is_coloured()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert is_coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_coloured()
