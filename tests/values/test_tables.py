from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import pytest

from mx_rmq.tables import ago, block, iso, one_line, plain, plain_fields, table, utc

NOW = 1763230000.0


def test_columns_are_aligned_with_numbers_on_the_right() -> None:
    rows = [("orders", 5, "x", None), ("a", 1200, "", "much longer")]
    assert table(("topic", "n", "note", "more"), rows).splitlines() == [
        "topic      n  note  more",
        "orders     5  x     -",
        "a       1200  -     much longer",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert table(("topic", "n"), []) == "topic  n"


def test_a_column_of_numbers_and_texts_is_a_text() -> None:
    assert table(("n",), [(5,), ("much",)]).splitlines() == ["n", "5", "much"]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, "-"),
        ("", "-"),
        (0, "0"),
        ("two\nlines\tand  blanks", "two lines and blanks"),
        ("\x1b[31mred\x1b[0m \x07", "?[31mred?[0m ?"),
        ("x" * 11, "x" * 9 + "…"),
        ("x" * 10, "x" * 10),
        ("größer", "größer"),
    ],
)
def test_a_cell_is_one_line_that_a_terminal_can_show(cell: Any, shown: str) -> None:
    assert one_line(cell, 10 if str(cell).startswith("x") else 60) == shown


def test_long_texts_are_cut_and_the_last_column_has_more_room() -> None:
    long = "x" * 500
    assert [len(cell) for cell in table(("a", "b"), [(long, long)]).splitlines()[1].split("  ")] == [60, 120]


def test_a_block_leaves_out_what_is_not_known() -> None:
    assert block({"id": "A1", "error": "", "due": None, "attempts": 0}) == "id        A1\nattempts  0"
    assert block({}) == ""


@pytest.mark.parametrize(
    ("instant", "said"),
    [
        (None, "-"),
        (inf, "never"),
        (NOW, "now"),
        (NOW - 0.9, "now"),
        (NOW - 1, "1s ago"),
        (NOW - 59.9, "59s ago"),
        (NOW - 180, "3m ago"),
        (NOW - 7200, "2h ago"),
        (NOW - 3 * 86400, "3d ago"),
        (NOW + 90, "in 1m"),
        (NOW + 86400, "in 1d"),
        (1e300, "?"),
        (-1e300, "?"),
        (-inf, "?"),
        (nan, "?"),
    ],
)
def test_ages(instant: float | None, said: str) -> None:
    assert ago(instant, NOW) == said


def test_without_a_time_ages_are_counted_from_now() -> None:
    assert ago(0.0).endswith("d ago")


@pytest.mark.parametrize("instant", [None, inf, -inf, nan, 1e300, -1e300, 1e17])
def test_a_time_that_cannot_be_written_is_none(instant: float | None) -> None:
    assert iso(instant) is None
    assert utc(instant) in ("never", "an unreadable time")


def test_times_are_written_in_utc() -> None:
    assert iso(1763230000.25) == "2025-11-15T18:06:40.250+00:00"
    assert utc(1763230000.25) == "2025-11-15 18:06:40 UTC"


@dataclass
class Facts:
    name: str = "x"
    seen_at: float = 1763230000.0
    lease_until: float | None = None
    rate: float = inf
    tags: tuple[str, ...] = ("a",)
    inner: list[Any] = field(default_factory=lambda: [Other(), {"n": {1}}])


class Other:
    def as_dict(self) -> dict[str, int]:
        return {"other": 1}


def test_facts_become_plain_values_all_the_way_down() -> None:
    found = plain_fields(Facts())
    assert found == {
        "name": "x",
        "seen_at": "2025-11-15T18:06:40.000+00:00",
        "lease_until": None,
        "rate": None,
        "tags": ["a"],
        "inner": [{"other": 1}, {"n": [1]}],
    }
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert plain(5) == 5
