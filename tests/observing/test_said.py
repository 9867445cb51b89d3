"""What a person reads in the log: the facts are in the text, and each is told once."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import JsonFormatter, RedisMessageQueue, Reject, Retry
from mx_rmq.events import KINDS, Event
from mx_rmq.observing import logs
from tests.words import dead, drained, events, eventually, store_of

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.words import MakeQueue


@pytest.fixture(autouse=True)
def no_place_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees first occurrences again."""
    monkeypatch.setattr(logs, "_places", set())


def texts(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """What the records of one event say."""
    return [record.getMessage() for record in events(caplog, name)]


def deep(order: dict[str, int]) -> int:
    return order["n"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_event_has_a_text_that_its_fields_fill(kind: type[Event]) -> None:
    values: dict[str, Any] = {
        "str": "x",
        "int": 3,
        "float": 1.5,
        "list": ["a", "b"],
        "dict": {"done": 2},
        "bool": True,
    }
    annotations = {field: str(kind.__annotations__.get(field, "str")) for field in kind.__struct_fields__}
    event = kind(
        **{name: values[said.partition("[")[0].split(" |")[0]] for name, said in annotations.items()}
    )
    assert event.text
    assert "{" not in event.text.replace("{'done': 2}", "")


async def test_a_failure_says_which_attempt_how_long_when_again_and_where(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue()

    @mq.handler("orders", retry=Retry(2, backoff=[0.0]))
    async def on_order(order: dict[str, int]) -> None:
        deep(order)

    await mq.start()
    await mq.produce("orders", {"m": 1}, message_id="A1")
    await dead(mq, "A1")
    (retried,) = texts(caplog, "message.retried")
    assert retried.startswith("message.retried: orders A1 attempt 1 of 2 failed after ")
    assert ", again in <1 ms: KeyError: 'n' (tests/observing/test_said.py:" in retried
    assert retried.endswith(" in deep)")
    (died,) = texts(caplog, "message.dead")
    assert died.startswith("message.dead: orders A1 is dead (failed) after 2 attempts: KeyError: 'n' (")
    assert died.endswith("replay it with queue.dlq.replay('A1')")


async def test_a_worker_says_what_it_serves_where_and_how_many_at_once(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mq = make_queue(concurrency=7)
    for topic in ("orders", "mails"):
        mq.handler(topic)(_ignore)
    await mq.start()
    assert texts(caplog, "worker.started") == [
        f"worker.started: q at {mq.config.shown_url}, topics mails, orders; 7 at once"
    ]


async def _ignore(payload: Any) -> None: ...


async def test_an_unsafe_server_is_named_with_its_remedy(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    await make_queue(server_check="warn").open()
    (said,) = texts(caplog, "server.unsafe")
    assert said.startswith("server.unsafe: appendonly is off: a restart of the server loses messages; set ")


async def test_the_first_error_of_a_place_has_its_traceback_and_so_has_a_death(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """At WARNING, so that error trackers see it; later ones at the same place are INFO, without."""
    caplog.set_level(logging.INFO)
    mq = make_queue()

    @mq.handler("t", retry=Retry(3, backoff=[0.0]))
    async def on_t(payload: int) -> None:
        raise ValueError(payload)

    await mq.start()
    for id_ in ("A1", "A2"):
        await mq.produce("t", 1, message_id=id_)
        await dead(mq, id_)
    retried = [(record.levelname, bool(record.exc_info)) for record in events(caplog, "message.retried")]
    assert retried == [("WARNING", True), *[("INFO", False)] * 3]
    died = events(caplog, "message.dead")
    assert [(record.levelname, bool(record.exc_info)) for record in died] == [("WARNING", True)] * 2
    kind, error, _ = died[0].exc_info
    assert kind is ValueError
    assert error.args == (1,)


async def test_at_debug_every_error_has_its_traceback(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    mq = make_queue()

    @mq.handler("t", retry=Retry(3, backoff=[0.0]))
    async def on_t(payload: int) -> None:
        raise ValueError

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await dead(mq, "A1")
    assert [bool(record.exc_info) for record in events(caplog, "message.retried")] == [True, True]


async def test_the_frames_of_the_users_code_travel_in_history_and_dlq(mq: RedisMessageQueue) -> None:
    """Files, lines and functions; no values, and nothing of mx-rmq."""

    @mq.handler("t", retry=Retry(2, backoff=[0.0]))
    def on_t(order: dict[str, int]) -> None:
        deep(order)

    await mq.start()
    await mq.produce("t", {"secret": 1}, message_id="A1")
    letter = await dead(mq, "A1")
    assert letter.message is not None
    for attempt in letter.message.history:
        outer, inner = attempt.trace.split(" > ")
        assert outer.startswith("tests/observing/test_said.py:")
        assert outer.endswith(" in on_t")
        assert inner.endswith(" in deep")
        assert "secret" not in attempt.trace


async def test_a_trace_is_bounded(mq: RedisMessageQueue) -> None:
    def again(n: int) -> None:
        if n == 0:
            raise ValueError
        again(n - 1)

    @mq.handler("t", retry=Retry(1))
    async def on_t(payload: int) -> None:
        again(500)

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    letter = await dead(mq, "A1")
    assert letter.message is not None
    assert 0 < len(letter.message.history[0].trace.encode()) <= 2000


async def test_one_line_tells_of_all_messages_recovered_at_once(
    make_queue: MakeQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue()
    mq.handler("t")(_ignore)
    await mq.produce_many("t", range(50))
    await store_of(redis).claim("t", 50, lease=0.001, holder="gone.1.x")
    await mq.start()
    await drained(mq)
    assert texts(caplog, "messages.recovered") == [
        "messages.recovered: 50 of t were taken over from gone.1.x and run again"
    ]


async def test_a_machine_gets_the_fields_as_json(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    mq = make_queue()

    @mq.handler("t")
    async def on_t(payload: int) -> None:
        raise Reject("no \ud800")

    await mq.start()
    await mq.produce("t", 1, message_id="A1")
    await dead(mq, "A1")
    (record,) = events(caplog, "message.dead")
    line = JsonFormatter().format(record)
    assert "\n" not in line
    line.encode()
    fields = json.loads(line)
    assert fields["event"] == "message.dead"
    assert (fields["topic"], fields["id"], fields["reason"], fields["level"]) == (
        "t",
        "A1",
        "rejected",
        "WARNING",
    )
    assert fields["text"].startswith("message.dead: t A1 is dead")
    assert "Traceback" in fields["exception"]
    assert fields["time"].endswith("+00:00")


def test_json_lines_are_made_of_foreign_records_too() -> None:
    record = logging.makeLogRecord({"msg": "a %s", "args": ("b",), "name": "other", "thing": object()})
    fields = json.loads(JsonFormatter().format(record))
    assert (fields["text"], fields["logger"]) == ("a b", "other")
    assert fields["thing"].startswith("<object")


# -- programs


def run(program: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing configured but what it configures itself."""
    (home / "program.py").write_text(program)
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=home,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


WORKER = """
import asyncio, os, signal
import mx_rmq
mq = mx_rmq.RedisMessageQueue(os.environ["URL"], patience=0.5, retry=mx_rmq.Retry(1))

@mq.handler("orders")
async def on_order(order: dict) -> None:
    asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGTERM)
    raise KeyError("n")

{before}
mx_rmq.run(mq)
"""


def test_a_worker_without_logging_says_on_stderr_what_it_serves_and_what_fails(tmp_path: Path) -> None:
    done = run(WORKER.format(before='mq.sync.produce("orders", {})'), tmp_path, URL="embedded://")
    assert done.returncode == 0
    assert "worker.started: default at embedded://, topics orders; 64 at once" in done.stderr
    assert "message.dead: orders" in done.stderr
    assert "KeyError: 'n' (program.py:9 in on_order)" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stdout == ""


def test_logging_that_is_configured_is_left_alone(tmp_path: Path) -> None:
    before = 'import logging; logging.basicConfig(level="ERROR"); mq.sync.produce("orders", {})'
    done = run(WORKER.format(before=before), tmp_path, URL="embedded://")
    assert done.stderr == ""


def test_an_import_configures_nothing(tmp_path: Path) -> None:
    program = "import logging, mx_rmq; print(logging.getLogger('mx_rmq').handlers, logging.root.handlers)"
    assert run(program, tmp_path).stdout == "[] []\n"


def test_a_server_that_is_down_gets_a_line_and_one_short_error(tmp_path: Path) -> None:
    done = run(WORKER.format(before=""), tmp_path, URL="redis://127.0.0.1:1")
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    told = [line for line in lines if "server.unavailable" in line]
    assert len(told) == 1
    assert told[0].endswith(
        "server.unavailable: redis://127.0.0.1:1: 127.0.0.1:1 refused the connection: no server listens "
        "there; trying for 0.5 s"
    )
    assert lines[-1].endswith(
        "127.0.0.1:1 refused the connection: no server listens there; gave up after 0.5 s"
    )
    assert len(lines) < 10
    assert done.stderr.count("Traceback") == 1


def test_a_private_server_that_ends_with_messages_says_how_many_are_gone(tmp_path: Path) -> None:
    program = """
import asyncio
from mx_rmq import RedisMessageQueue
async def main():
    async with RedisMessageQueue("embedded://") as mq:
        await mq.produce_many("t", range(3))
        await mq.produce("t", 1, delay=60)
asyncio.run(main())
"""
    done = run(program, tmp_path)
    assert done.stderr == (
        "embedded.ended: the private server ended with 4 messages in it, which are gone; "
        "embedded:///path keeps them\n"
    )


@pytest.mark.parametrize("sync", [False, True])
async def test_a_producer_says_at_once_that_its_server_is_away(
    sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    mq = RedisMessageQueue("redis://127.0.0.1:1", patience=2.0, server_check="off")
    async with mq:
        produce = asyncio.to_thread(mq.sync.produce, "t", 1) if sync else mq.produce("t", 1)
        call = asyncio.ensure_future(produce)
        await eventually(lambda: texts(caplog, "server.unavailable"))
        assert not call.done()
        with pytest.raises(Exception, match="gave up after 2 s"):
            await call
    (said,) = texts(caplog, "server.unavailable")
    assert said.endswith("refused the connection: no server listens there; trying for 2 s")
