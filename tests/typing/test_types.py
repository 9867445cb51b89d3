"""Types that users see: the sample runs, and what is written down twice says the same."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mx_rmq import Config, ProduceManyOptions, ProduceOptions, QueueOptions, RedisMessageQueue, Retry
from mx_rmq.producing.options import check_options

SAMPLE = Path(__file__).parent / "sample.py"


def test_the_typed_sample_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(SAMPLE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1,2 at attempt 1",
        "A1",
        "A1",
        "A2",
        "A3",
        "row 1",
        "row 3",
        "row 7",
        "shop to ada",
        "shop to bob",
        "shop to eve",
        "test to ada",
    ]


def test_every_mistake_of_the_sample_must_be_found_by_both_checkers() -> None:
    mistakes = SAMPLE.read_text().partition("async def mistakes")[2].partition("\nif __name__")[0]
    lines = [line for line in mistakes.splitlines()[2:] if line.strip() and not line.strip().startswith("#")]
    assert len(lines) > 25
    for line in lines:
        assert " # type: ignore[" in line, line
        assert " # pyright: ignore[" in line, line


def written(options: Any) -> dict[str, str]:
    """The annotations of a TypedDict, as they are written."""
    return {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()}


def keywords(call: Callable[..., Any]) -> dict[str, str]:
    """The keyword-only parameters of a function, and their annotations as they are written."""
    parameters = inspect.signature(call).parameters.values()
    return {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_the_options_of_a_queue_are_the_fields_of_its_config() -> None:
    """All but the URL, which is the first argument; where a field is in seconds, a timedelta is taken too."""
    kept = {field.name: str(field.type) for field in fields(Config) if field.name != "url"}
    taken = {name: kind.replace("Duration", "float") for name, kind in written(QueueOptions).items()}
    assert taken == kept
    assert [name for name, kind in written(QueueOptions).items() if "float" in kind] == []


@pytest.mark.parametrize("call", [RedisMessageQueue.produce, check_options], ids=lambda call: call.__name__)
def test_the_options_of_produce_are_written_down_once_for_all_its_forms(call: Callable[..., Any]) -> None:
    assert keywords(call) == written(ProduceOptions)


def test_produce_many_takes_what_can_be_the_same_for_all() -> None:
    """Its messages cannot share an id, and without one there is nothing to keep taken."""
    assert written(ProduceOptions).keys() - written(ProduceManyOptions).keys() == {"message_id", "dedup_for"}


@pytest.mark.parametrize("kind", [Retry, Config])
def test_type_checkers_see_the_constructor_that_runs(kind: type) -> None:
    """It is declared, because what it takes (a Duration) and what it keeps (seconds) differ."""
    (declared,) = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(kind)))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    names = [each.arg for each in (*declared.args.args[1:], *declared.args.kwonlyargs)]
    if declared.args.kwarg is not None:
        assert ast.unparse(declared.args.kwarg) == "options: Unpack[QueueOptions]"
        names += QueueOptions.__annotations__
    assert names == [field.name for field in fields(kind)]
