"""``mx-rmq produce``: one message from the command line, or many from JSON lines."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from mx_rmq.checks import check_topic
from mx_rmq.cli.completion import Topic
from mx_rmq.cli.connecting import opened
from mx_rmq.cli.exits import Exit, Failure, UsageError, code_of
from mx_rmq.cli.output import Output
from mx_rmq.cli.settings import Common
from mx_rmq.cli.words import counted, header_of, seconds_of
from mx_rmq.errors import InvalidPayload, MxRmqError
from mx_rmq.message import Lane
from mx_rmq.payloads import encode_payload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mx_rmq.queue import RedisMessageQueue

_DEFAULT = Common()
_CHUNK: Final = 1 << 18
"""Bytes read from standard input at a time."""


async def produce(
    topic: Topic,
    payload: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    priority: Annotated[Lane, Parameter(name=("--priority", "-p"))] = "normal",
    delay: str | None = None,
    ttl: str | None = None,
    id_: Annotated[str | None, Parameter(name="--id")] = None,
    key: str | None = None,
    header: Annotated[tuple[str, ...], Parameter(name=("--header", "-H"), consume_multiple=False)] = (),
    common: Common = _DEFAULT,
) -> None:
    """Store a message and print its id; with - store one message for each line of standard input.

    Args:
        topic: where to send it.
        payload: JSON, or - for JSON lines from standard input.
        priority: high before normal before low.
        delay: how long it must not run, such as 5m.
        ttl: how long it lives after that, such as 1h; then it goes to the DLQ instead of running.
        id_: its id; while the id is taken, nothing is stored.
        key: decides its shard, so that messages with one key keep their order.
        header: name=value; may be given again.
    """
    out = Output(common)
    check_topic(topic)
    options: dict[str, Any] = {"priority": priority, "headers": dict(header_of("-H", one) for one in header)}
    if key is not None:
        options["key"] = key
    if delay is not None:
        options["delay"] = seconds_of("--delay", delay)
    if ttl is not None:
        options["ttl"] = seconds_of("--ttl", ttl)
    if payload == "-":
        if id_ is not None:
            raise UsageError("--id is for one message; with - each line becomes a message of its own")
        await _from_lines(topic, options, out, common)
        return
    raw = _checked(payload)
    async with opened(common, must_exist=False) as queue:
        receipt = await queue.produce(topic, raw, message_id=id_, **options)
    data = {"id": str(receipt), "topic": topic, "duplicate": receipt.duplicate}
    out.line(str(receipt), data=data)
    if receipt.duplicate:
        out.remark(f"nothing was stored: there is a message {receipt} already")


def _checked(text: str) -> msgspec.Raw:
    try:
        return encode_payload(msgspec.Raw(text.encode(errors="surrogateescape")))
    except InvalidPayload:
        hint = """in a shell write it in single quotes, such as '{"id": 7}' or '"a text"'"""
        raise UsageError(f"the payload must be JSON, got {text!r:.80}; {hint}") from None


# -- many


async def _from_lines(topic: str, options: dict[str, Any], out: Output, common: Common) -> None:
    async with opened(common, must_exist=False) as queue:
        lines = _Lines(queue, topic, options)
        with out.progress(f"producing to {topic}", None) as progress:
            try:
                async for batch in _batches(sys.stdin.fileno()):
                    await lines.send(batch)
                    progress(lines.stored)
            except asyncio.CancelledError:
                out.remark(lines.said)
                raise
    out.line(lines.said, data={"topic": topic, "stored": lines.stored, "lines": lines.done})


class _Lines:
    """Produces lines in batches, and knows how far it got."""

    def __init__(self, queue: RedisMessageQueue, topic: str, options: dict[str, Any]) -> None:
        self._queue = queue
        self._topic = topic
        self._options = options
        self.done = 0
        """Lines that need not be sent again."""
        self.stored = 0

    @property
    def said(self) -> str:
        """How far it got."""
        return f"stored {counted(self.stored, 'message')} in {self._topic}, from {counted(self.done, 'line')}"

    async def send(self, lines: list[bytes]) -> None:
        """Produce a batch, up to the first line that is not JSON.

        Raises:
            Failure: a line is not JSON, or the server did not store the batch; says how to go on.
        """
        payloads: list[msgspec.Raw] = []
        problem: InvalidPayload | None = None
        passed = 0
        for line in lines:
            if text := line.strip():
                try:
                    payloads.append(encode_payload(msgspec.Raw(text)))
                except InvalidPayload as error:
                    problem = error
                    break
            passed += 1
        if payloads:
            try:
                await self._queue.produce_many(self._topic, payloads, **self._options)
            except MxRmqError as error:
                last = self.done + passed
                unknown = f"{self.said}; whether lines {self.done + 1:,} to {last:,} were is not known"
                raise Failure(f"{error}; {unknown}", code_of(error)) from error
        self.stored += len(payloads)
        self.done += passed
        if problem is not None:
            number = self.done + 1
            said = f"line {number:,} is not JSON: {lines[passed].decode(errors='replace').strip()!r:.80}"
            go_on = f"mend it and go on with: tail -n +{number} FILE | mx-rmq produce {self._topic} -"
            raise Failure(f"{said}; {self.said} before it; {go_on}", Exit.FAILED)


async def _batches(source: int) -> AsyncIterator[list[bytes]]:
    """The lines of a file, as many at a time as are there.

    Waiting for more can be interrupted, unlike a read in a thread.
    """
    rest = b""
    while some := await _read(source):
        *lines, rest = (rest + some).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _read(source: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(source, ready.set_result, None)
    except PermissionError:  # a file, which is always ready
        return os.read(source, _CHUNK)
    try:
        await ready
    finally:
        loop.remove_reader(source)
    return os.read(source, _CHUNK)
