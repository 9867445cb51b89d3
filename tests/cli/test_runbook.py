"""docs/operations.md, gone through as an operator would: every command on the page, against a broken shop.

So are the commands that the README shows. With ``MX_RMQ_WRITE_DOCS=1`` the outputs on both pages are written
anew from the run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.project.pages import ROOT, section, text_of
from tests.shop import broken_shop
from tests.words import ONE_SERVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.cli.conftest import Cli
    from tests.words import MakeQueue

PAGE = "docs/operations.md"
FRONT = ("README.md", "From a shell")
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
SHOWS_NO_OUTPUT = ("python ", "kill ", "mx-rmq run ")
WRITES = bool(os.environ.get("MX_RMQ_WRITE_DOCS"))


@pytest.fixture
async def shop(
    server: EmbeddedServer, redis: Redis, make_queue: MakeQueue
) -> AsyncIterator[RedisMessageQueue]:
    async with broken_shop(server, make_queue, orders=1500) as queue:
        yield queue


class Operator:
    """Types the commands of the page, and sees what it shows."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        self.groups: dict[str, str] = {}
        """Ids of groups on the page, and what they are now."""
        self._killed = 0

    async def type(self, command: str) -> str:
        """What a command prints, answered with yes where it asks."""
        command = self.translated(command)
        if command.startswith("kill -9 "):
            return await self._kill()
        if command.startswith("jq -c .payload "):
            return await self._pipe(command)
        words = shlex.split(command)
        assert words[0] == "mx-rmq", command
        # A terminal that knows no colours and no bars.
        terminal = {"TERM": "dumb", "COLUMNS": "120", "LINES": "40"}
        ran = await self._cli.on_terminal(*words[1:], answers="y\n", env=terminal)
        text = re.sub(r"\[y/N\] \n*", "[y/N] y\n", ran.out.removeprefix("y\n"))
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines()).strip("\n") + "\n"

    def translated(self, command: str) -> str:
        """A command with the ids that groups and processes have now."""
        if command.startswith("kill -9 ") and self._killed:
            return f"kill -9 {self._killed}"
        for shown, real in self.groups.items():
            command = command.replace(shown, real)
        return command

    async def _kill(self) -> str:
        """End the worker that has a problem, found by its own words."""
        workers = (await self._cli("workers", "--json")).json["workers"]
        (stuck,) = [worker for worker in workers if worker["problems"]]
        self._killed = stuck["pid"]
        os.kill(self._killed, signal.SIGKILL)
        return ""

    async def _pipe(self, command: str) -> str:
        """What jq takes from a file, which need not be installed here."""
        before, _, after = command.partition(" | mx-rmq ")
        lines = (self._cli.directory / before.split()[-1]).read_text().splitlines()
        payloads = [json.dumps(json.loads(line)["payload"]) for line in lines]
        ran = await self._cli(*shlex.split(after), stdin="\n".join(payloads))
        assert ran.code == 0
        return ran.out


def commands(title: str, page: str = PAGE) -> Iterator[tuple[str, str]]:
    """The commands in a part of a page, each with the output that is shown."""
    for block in BLOCK.findall(section(page, title)):
        yield from COMMAND.findall(block)


def words(output: str) -> list[str]:
    """The words of an output, in no order: numbers, ages and ids differ, and how cells are folded."""
    text = re.sub(r"(?<=as it should: )[^|;]+", "", output)  # more of them, the longer a worker is stuck
    text = re.sub(r"(unix|embedded)://[^\s?]+", "", text)
    lines = [line[:60] if "…" in line else line for line in text.splitlines()]
    found = {word for line in lines for word in re.findall(r"(?<![\w.])[A-Za-z]{3,}(?![\w.])", line)}
    return sorted(word for word in found - {"ago", "now"} if not re.fullmatch("[a-f]+", word))


def real_groups(shown: str, seen: str) -> dict[str, str]:
    """The ids of groups on the page, and those of the same topics and errors now."""
    rows = re.compile(r"^\s*\d+ +(\w+) +(\w+) .*?\b([0-9a-f]{16})\b", re.MULTILINE)
    now = {(topic, error): id_ for topic, error, id_ in rows.findall(seen)}
    return {id_: now[topic, error] for topic, error, id_ in rows.findall(shown)}


@ONE_SERVER
async def test_all_ten_symptoms_are_found_and_mended_with_the_page(shop: RedisMessageQueue, cli: Cli) -> None:
    cli.env |= {"MX_RMQ_QUEUE": "shop", "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), *sys.path])}
    operator = Operator(cli)
    seen: dict[str, dict[str, str]] = {PAGE: {}, FRONT[0]: {}}

    (groups,) = [shown for command, shown in commands(titles()[6]) if command == "mx-rmq dlq groups"]
    operator.groups = real_groups(groups, await operator.type("mx-rmq dlq groups"))

    async def go_through(title: str, page: str = PAGE) -> None:
        for command, shown in commands(title, page):
            if command.startswith("python "):
                continue
            if command.startswith("mx-rmq check") and title != "Where to begin" and "OK" in shown:
                await eventually(partial(is_ok, operator, command), 60)
            output = await operator.type(command)
            if command.startswith(SHOWS_NO_OUTPUT):
                output = ""
            seen[page][f"$ {command}\n{shown}"] = f"$ {operator.translated(command)}\n{for_page(output)}"
            if not WRITES and command != "mx-rmq workers":  # its cells depend on the host and the problems
                assert words(shown) == words(output), f"$ {command}\n{output}"

    await go_through(FRONT[1], FRONT[0])
    await go_through("Where to begin")
    before = await shop.counts()
    assert before.topics["mails"].paused
    assert before.dead == 53
    for title in titles():
        await go_through(title)
    await go_through("All is well")
    if WRITES:
        for page, outputs in seen.items():
            text = text_of(page)
            for old, new in outputs.items():
                text = text.replace(old, new, 1)
            (ROOT / page).write_text(text, encoding="utf-8")

    after = await shop.counts()
    assert (after.pending, after.dead, after.delayed) == (0, 0, 0)
    completed = {name: of.completed for name, of in after.topics.items() if of.completed}
    assert completed == {
        "orders": 1500,
        "mails": 26 + 8,
        "invoices": 5,
        "reports": 6,
        "gifts": 1,
        "payments": 30,
        "prices": 2,
    }
    kept = {path.name: len(path.read_text().splitlines()) for path in cli.directory.glob("*.jsonl")}
    assert kept == {"invoice.jsonl": 5, "webhooks.jsonl": 100, "summer.jsonl": 12, "poison.jsonl": 1}


def titles() -> list[str]:
    """The headings of the symptoms."""
    found = re.findall(r"^## (\d+\. .+)$", text_of(PAGE), re.MULTILINE)
    assert len(found) == 10
    return found


async def is_ok(operator: Operator, command: str) -> bool:
    return (await operator.type(command)).startswith("OK")


def for_page(output: str) -> str:
    """An output as a reader of the page would see it: on the server that the shop starts itself."""
    return re.sub(r"unix://[^\s?]+\.sock", "embedded:///tmp/broken-shop", output)
