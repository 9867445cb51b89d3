"""The columns of the live view, and figures as cells of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rich.text import Text

from mx_rmq.operating.doctor import LATE
from mx_rmq.operating.history import bars
from mx_rmq.tables import ago, lasted, one_line, speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mx_rmq import DeadGroup, MessageFacts, WorkerFacts
    from mx_rmq.operating.figures import TopicFigures

_MINUTES: Final = 20
"""Minutes in a line of bars."""
_STATES: Final = {"paused": "yellow", "no worker": "bold red", "failing": "red", "running": "green"}
_LAGGING: Final = 0.1
"""Seconds by which an event loop is late, likewise."""


class Column(NamedTuple):
    """A column: its title, and from which width of the screen on it is shown."""

    title: str
    width: int = 0
    is_text: bool = False
    """Whether its title stands at the left."""


TOPICS: Final = (
    Column("topic", is_text=True),
    Column("pending"),
    Column("processing", 90),
    Column("delayed", 75),
    Column("dead"),
    Column("in/s", 75),
    Column("done/s"),
    Column("failed/s", 70),
    Column("p50", 100),
    Column("p95", 90),
    Column("oldest", 80),
    Column(f"{_MINUTES} minutes", 120, is_text=True),
    Column("state", is_text=True),
)
WORKERS: Final = (
    Column("worker", is_text=True),
    Column("seen"),
    Column("running"),
    Column("held", 75),
    Column("at once", 90),
    Column("loop lag"),
    Column("topics", 90, is_text=True),
    Column("problems", 100, is_text=True),
)
GROUPS: Final = (
    Column("dead"),
    Column("topic", is_text=True),
    Column("error", is_text=True),
    Column("last", 75),
    Column("first", 100),
    Column("text", is_text=True),
    Column("place", 120, is_text=True),
)
MESSAGES: Final = (
    Column("message", is_text=True),
    Column("state", 75, is_text=True),
    Column("failed attempts", 100),
    Column("produced", 75),
    Column("due", 100),
    Column("error", is_text=True),
)


def topic_cells(of: TopicFigures, now: float) -> list[Text]:
    """A topic as a row of ``TOPICS``."""
    counts = of.counts
    return [
        Text(one_line(of.name, 40)),
        _number(counts.pending),
        _number(counts.processing),
        _number(counts.delayed),
        _number(counts.in_dlq, "red"),
        _rate(of.arriving),
        _rate(of.done, "green"),
        _rate(of.failing, "red"),
        _right(lasted(of.run_p50)),
        _right(lasted(of.run_p95)),
        _right(_age(counts.oldest_at, now)),
        Text(bars(of.completions[-_MINUTES:]), style="cyan"),
        Text(of.state, style=_STATES.get(of.state, "dim")),
    ]


def worker_cells(of: WorkerFacts, now: float) -> list[Text]:
    """A worker as a row of ``WORKERS``."""
    silent = now - of.seen_at > LATE
    lag = f"{of.loop_lag * 1000:.0f}ms" if of.version else "-"
    return [
        Text(one_line(_short(of.name), 40), style="red" if of.problems else ""),
        _right(ago(of.seen_at, now), "red" if silent else ""),
        _number(of.running),
        _number(of.held),
        _number(of.concurrency),
        _right(lag, "red" if of.loop_lag > _LAGGING else ""),
        Text(one_line(", ".join(of.topics), 40)),
        Text(one_line("; ".join(of.problems), 80), style="red"),
    ]


def group_cells(of: DeadGroup, now: float) -> list[Text]:
    """A group of dead messages as a row of ``GROUPS``."""
    return [
        _number(of.count, "red"),
        Text(one_line(of.topic, 40)),
        Text(one_line(of.error, 40)),
        _right(ago(of.last_at, now)),
        _right(ago(of.first_at, now)),
        Text(one_line(of.text, 80)),
        Text(one_line(of.place, 60), style="dim"),
    ]


def message_cells(of: MessageFacts, now: float) -> list[Text]:
    """A message as a row of ``MESSAGES``."""
    return [
        Text(one_line(of.id, 40)),
        Text(of.state),
        _number(of.attempts),
        _right(ago(of.created_at, now)),
        _right(ago(of.due_at, now)),
        Text(one_line(of.last_error, 80)),
    ]


def fitting(columns: tuple[Column, ...], width: int) -> list[int]:
    """Which columns a screen has room for."""
    return [n for n, column in enumerate(columns) if width >= column.width]


def totals_line(of: TopicFigures, workers: int) -> Text:
    """The sum of all topics in a line."""
    counts = of.counts
    shown: list[tuple[str, str, str]] = [
        ("pending", f"{counts.pending:,}", "bold"),
        ("processing", f"{counts.processing:,}", "bold"),
        ("delayed", f"{counts.delayed:,}", "bold"),
        ("dead", f"{counts.in_dlq:,}", "bold red" if counts.in_dlq else "bold"),
        ("in/s", speed(of.arriving), "bold"),
        ("done/s", speed(of.done), "bold green"),
        ("failed/s", speed(of.failing), "bold red" if of.failing else "bold"),
        ("workers", f"{workers:,}", "bold" if workers else "bold red"),
    ]
    return Text("  ").join(Text.assemble(f"{name} ", (value, style)) for name, value, style in shown)


def lacking(missing: Sequence[str]) -> str:
    """What to add to a title whose figures or messages lack some shards; empty if they lack none."""
    return one_line("; missing: " + "; ".join(missing), 300) if missing else ""


def _short(worker: str) -> str:
    """A worker's name without its random part."""
    return worker.rpartition(".")[0] or worker


def _age(instant: float | None, now: float) -> str:
    return ago(instant, now).removesuffix(" ago")


def _right(text: str, style: str = "") -> Text:
    return Text(text, justify="right", style=style)


def _number(number: int, style: str = "") -> Text:
    return _right(f"{number:,}", style if number else "dim")


def _rate(rate: float, style: str = "") -> Text:
    return _right(speed(rate), style if rate else "dim")
