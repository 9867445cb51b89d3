"""A handler that forks: the child ends with the handler, and its parent goes on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.words import ONE_SERVER, drained, is_sound

if TYPE_CHECKING:
    from tests.words import MakeQueue

pytestmark = [
    ONE_SERVER,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def ended(child: int) -> int:
    """The exit code of a child, which must end by itself."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def hush() -> None:
    """Let a child's own words not be the test's."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.mark.parametrize(("way", "code"), [("exits", 7), ("returns", 0), ("fails", 1), ("says why", 1)])
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_forked_child_ends_and_the_parent_goes_on(
    make_queue: MakeQueue, kind: str, way: str, code: int
) -> None:
    mq = make_queue()
    codes: list[int] = []
    ran: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child:
            codes.append(ended(child))
            return
        hush()
        match way:
            case "exits":
                sys.exit(7)
            case "fails":
                raise ValueError("in the child")
            case "says why":
                sys.exit("because")

    @mq.handler("fork")
    async def on_fork(payload: int) -> None:
        fork()

    @mq.handler("plain")
    def on_plain(payload: int) -> None:
        fork()

    @mq.handler("others")
    async def on_others(payload: int) -> None:
        ran.append(payload)

    await mq.start()
    await mq.produce("fork" if kind == "async" else "plain", 1)
    await drained(mq)
    await mq.produce_many("others", range(100))
    await drained(mq)
    assert codes == [code]
    assert sorted(ran) == list(range(100))
    assert await is_sound(mq)


async def test_a_forked_child_that_waits_ends_too(make_queue: MakeQueue) -> None:
    """It would come back to the event loop, which is a copy of its parent's."""
    mq = make_queue()
    codes: list[int] = []

    @mq.handler("fork")
    async def on_fork(payload: int) -> None:
        child = os.fork()
        if child:
            codes.append(ended(child))
            return
        hush()
        await drained(mq)

    await mq.start()
    await mq.produce("fork", 1)
    await drained(mq)
    assert len(codes) == 1
    assert await is_sound(mq)
