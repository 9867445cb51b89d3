from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq.storage.batching import Batcher
from tests.harness import CancelledByCtrlC

if TYPE_CHECKING:
    from collections.abc import Sequence


class Wire:
    """Where batches go: each is answered when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._sent = asyncio.Condition()
        self._answers: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def send(self, items: Sequence[int]) -> list[str]:
        async with self._sent:
            self.batches.append(list(items))
            self._sent.notify_all()
        error = await self._answers.get()
        if error is not None:
            raise error
        return [f"r{item}" for item in items]

    def answer(self, error: Exception | None = None) -> None:
        self._answers.put_nowait(error)

    async def carried(self, count: int) -> list[list[int]]:
        """Wait until that many batches have left."""
        async with asyncio.timeout(5), self._sent:
            await self._sent.wait_for(lambda: len(self.batches) >= count)
        return self.batches


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def test_the_first_leaves_at_once_and_alone(wire: Wire) -> None:
    """There is no timer: nothing else has to happen."""
    batcher = Batcher(wire.send)
    future = batcher.add(1)
    assert await wire.carried(1) == [[1]]
    wire.answer()
    assert await future == "r1"


async def test_what_comes_while_one_is_on_the_wire_leaves_together(wire: Wire) -> None:
    batcher = Batcher(wire.send)
    first = batcher.add(1)
    await wire.carried(1)
    later = [batcher.add(n) for n in range(2, 50)]
    wire.answer()
    assert await first == "r1"
    assert await wire.carried(2) == [[1], list(range(2, 50))]
    wire.answer()
    assert await asyncio.gather(*later) == [f"r{n}" for n in range(2, 50)]


async def test_callers_that_call_again_at_once_leave_with_those_that_wait(wire: Wire) -> None:
    """Else the two groups would take turns for as long as they call, each in batches of its own."""
    batcher = Batcher(wire.send)

    async def call_three_times(caller: int) -> None:
        for _ in range(3):
            await batcher.add(caller)

    first = asyncio.create_task(call_three_times(0))
    await wire.carried(1)
    others = [asyncio.create_task(call_three_times(caller)) for caller in range(1, 10)]
    await asyncio.sleep(0)
    for _ in range(4):
        wire.answer()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in wire.batches] == [1, 10, 10, 9]


async def test_only_one_batch_is_on_the_wire(wire: Wire) -> None:
    batcher = Batcher(wire.send)
    batcher.put(1)
    await wire.carried(1)
    batcher.put(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert wire.batches == [[1]]
    wire.answer()
    wire.answer()
    await batcher.drained()
    assert wire.batches == [[1], [2]]


async def test_a_batch_has_at_most_so_many_items(wire: Wire) -> None:
    batcher = Batcher(wire.send, most=3)
    futures = [batcher.add(n) for n in range(8)]
    for _ in range(3):
        wire.answer()
    assert await asyncio.gather(*futures) == [f"r{n}" for n in range(8)]
    assert wire.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_a_batch_has_at_most_so_much_weight(wire: Wire) -> None:
    batcher = Batcher(wire.send, weigh=lambda item: item, most_weight=10)
    for item in (4, 6, 1, 9, 1):
        batcher.put(item)
    for _ in range(3):
        wire.answer()
    await batcher.drained()
    assert wire.batches == [[4, 6], [1, 9], [1]]


async def test_an_item_heavier_than_a_batch_goes_alone(wire: Wire) -> None:
    batcher = Batcher(wire.send, weigh=lambda item: item, most_weight=10)
    for item in (1, 99, 99, 1, 1):
        batcher.put(item)
    for _ in range(4):
        wire.answer()
    await batcher.drained()
    assert wire.batches == [[1], [99], [99], [1, 1]]


async def test_an_error_reaches_everyone_in_its_batch_and_nobody_else(wire: Wire) -> None:
    batcher = Batcher(wire.send, most=2)
    futures = [batcher.add(n) for n in range(6)]
    wire.answer()
    wire.answer(OSError("broken"))
    wire.answer()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [str(result) for result in results] == ["r0", "r1", "broken", "broken", "r4", "r5"]


async def test_after_an_error_the_next_item_is_sent_as_ever(wire: Wire) -> None:
    batcher = Batcher(wire.send)
    wire.answer(OSError("broken"))
    with pytest.raises(OSError, match="broken"):
        await batcher.add(1)
    wire.answer()
    assert await batcher.add(2) == "r2"


async def test_too_few_results_are_an_error_for_everyone_and_no_hang() -> None:
    async def send(items: Sequence[int]) -> list[str]:
        return ["only one"]

    batcher = Batcher(send)
    futures = [batcher.add(1), batcher.add(2)]
    async with asyncio.timeout(5):
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError]
    assert batcher.idle


async def test_a_caller_that_gives_up_changes_nothing_for_the_others(wire: Wire) -> None:
    """Its item may be on the wire already, so it is sent all the same."""
    batcher = Batcher(wire.send)
    futures = [batcher.add(n) for n in range(3)]
    await wire.carried(1)
    late = [batcher.add(n) for n in range(3, 6)]
    futures[1].cancel()
    late[1].cancel()
    wire.answer()
    wire.answer()
    results = await asyncio.gather(*futures, *late, return_exceptions=True)
    assert [None if isinstance(r, asyncio.CancelledError) else r for r in results] == [
        "r0",
        None,
        "r2",
        "r3",
        None,
        "r5",
    ]
    assert wire.batches == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("error", [None, OSError("broken")])
async def test_a_caller_cancelled_while_results_are_handed_out_harms_no_other(
    wire: Wire, error: Exception | None
) -> None:
    batcher = Batcher(wire.send)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "create_future", CancelledByCtrlC)
        unlucky = batcher.add(1)
    later = batcher.add(2)
    wire.answer(error)
    async with asyncio.timeout(5):
        (result,) = await asyncio.gather(later, return_exceptions=True)
    assert str(result) == (str(error) if error else "r2")
    assert unlucky.cancelled()
    wire.answer()
    assert await batcher.add(3) == "r3"


async def test_an_error_that_nobody_waits_for_warns_of_nothing(wire: Wire) -> None:
    """Warnings are errors here; a future whose exception is never looked at would warn."""
    batcher = Batcher(wire.send)
    batcher.put(1)
    batcher.add(2)
    wire.answer(OSError("broken"))
    await batcher.drained()


async def test_put_sends_without_a_future(wire: Wire) -> None:
    batcher = Batcher(wire.send)
    batcher.put(1)
    future = batcher.add(2)
    batcher.put(3)
    wire.answer()
    assert await future == "r2"
    assert wire.batches == [[1, 2, 3]]


async def test_drained_waits_for_what_is_on_the_wire_and_for_what_is_waiting(wire: Wire) -> None:
    batcher = Batcher(wire.send)
    assert batcher.idle
    await batcher.drained()
    batcher.put(1)
    await wire.carried(1)
    batcher.put(2)
    drained = asyncio.create_task(batcher.drained())
    wire.answer()
    await wire.carried(2)
    assert not batcher.idle
    assert not drained.done()
    wire.answer()
    async with asyncio.timeout(5):
        await drained
    assert batcher.idle


def test_the_end_of_the_loop_leaves_no_caller_waiting() -> None:
    """What ``asyncio.run`` cancels at its end includes the sender in the middle of a batch."""
    seen: list[str] = []

    async def caller(batcher: Batcher[int, str], item: int) -> None:
        try:
            await batcher.add(item)
        except asyncio.CancelledError:
            seen.append(f"cancelled {item}")
            raise

    async def main() -> None:
        wire = Wire()
        batcher = Batcher(wire.send, most=1)
        tasks = [asyncio.create_task(caller(batcher, item)) for item in (1, 2)]
        await wire.carried(1)
        assert not any(task.done() for task in tasks)

    asyncio.run(main())
    assert sorted(seen) == ["cancelled 1", "cancelled 2"]


async def test_a_lone_caller_sends_by_itself_and_those_behind_it_leave_together() -> None:
    batches: list[list[int]] = []
    gate = asyncio.Event()

    async def send(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        await gate.wait()
        return [item * 10 for item in items]

    batcher: Batcher[int, int] = Batcher(send)
    first = asyncio.ensure_future(batcher.call(1))
    await asyncio.sleep(0)
    assert batches == [[1]]
    others = [asyncio.ensure_future(batcher.call(n)) for n in (2, 3, 4)]
    await asyncio.sleep(0)
    assert not batcher.idle
    gate.set()
    assert await asyncio.gather(first, *others) == [10, 20, 30, 40]
    assert batches == [[1], [2, 3, 4]]
    await batcher.drained()
    assert batcher.idle


async def test_a_lone_caller_that_fails_or_is_cancelled_leaves_the_way_free() -> None:
    gate = asyncio.Event()

    async def send(items: Sequence[int]) -> list[int]:
        if items[0] == 0:
            raise ValueError("no")
        await gate.wait()
        return list(items)

    batcher: Batcher[int, int] = Batcher(send)
    with pytest.raises(ValueError, match="no"):
        await batcher.call(0)
    cancelled = asyncio.ensure_future(batcher.call(1))
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(batcher.call(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    gate.set()
    assert await behind == 2
    assert cancelled.cancelled()
    await batcher.drained()
    assert await batcher.call(3) == 3


async def test_with_two_senders_each_carries_half_of_what_is_under_way(wire: Wire) -> None:
    batcher = Batcher(wire.send, wire.send)
    futures = [batcher.add(n) for n in range(100)]
    assert await wire.carried(2) == [list(range(50)), list(range(50, 100))]
    later = [batcher.add(n) for n in range(100, 150)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(wire.batches) == 2
    for _ in range(5):
        wire.answer()
    assert await asyncio.gather(*futures, *later) == [f"r{n}" for n in range(150)]
    assert wire.batches[2] == list(range(100, 150)), "50 waited beside 50 on the wire"
    await batcher.drained()
    assert batcher.idle


async def test_few_items_are_not_spread_over_two_senders(wire: Wire) -> None:
    batcher = Batcher(wire.send, wire.send)
    for n in range(16):
        batcher.put(n)
    wire.answer()
    await batcher.drained()
    assert wire.batches == [list(range(16))]


async def test_what_is_given_up_leaves_both_senders_free(wire: Wire) -> None:
    batcher = Batcher(wire.send, wire.send)
    futures = [batcher.add(n) for n in range(40)]
    await wire.carried(2)
    futures += [batcher.add(n) for n in range(40, 60)]
    batcher.cancel()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(result) for result in results} == {asyncio.CancelledError}
    await batcher.drained()
    wire.answer()
    assert await batcher.add(7) == "r7"


async def test_a_sender_cancelled_before_it_began_leaves_nobody_waiting(wire: Wire) -> None:
    """As ``asyncio.run`` does to a task made in its last moment."""
    batcher = Batcher(wire.send)
    future = batcher.add(1)
    batcher.cancel()
    await asyncio.gather(future, return_exceptions=True)
    assert future.cancelled()
    async with asyncio.timeout(5):
        await batcher.drained()
    assert wire.batches == []
    assert batcher.idle


# -- when it cannot be sent


async def test_callers_who_wait_no_longer_are_told_and_the_others_go_on(wire: Wire) -> None:
    batcher = Batcher(wire.send)
    first = batcher.add(1)
    await wire.carried(1)
    waiting = [batcher.add(n) for n in range(2, 6)]
    batcher.give_up(lambda item: item <= 3, LookupError("over"))
    for future in (first, *waiting[:2]):
        with pytest.raises(LookupError, match="over"):
            await future
    wire.answer()
    wire.answer()
    assert await asyncio.gather(*waiting[2:]) == ["r4", "r5"]
    assert wire.batches == [[1], [4, 5]]
    assert batcher.idle


async def test_batches_are_smaller_after_a_loss_and_grow_again(wire: Wire) -> None:
    heavy = 512 * 1024
    batcher = Batcher(wire.send, weigh=lambda _: heavy, most_weight=4 * heavy)
    batcher.put(0)
    await wire.carried(1)
    batcher.shrink()
    batcher.shrink()
    for n in range(1, 20):
        batcher.put(n)
    for _ in range(20):
        wire.answer()
    await batcher.drained()
    assert [len(batch) for batch in wire.batches[:5]] == [1, 2, 4, 4, 4]


async def test_batches_never_shrink_to_nothing(wire: Wire) -> None:
    batcher = Batcher(wire.send, weigh=lambda _: 1024)
    for _ in range(50):
        batcher.shrink()
    batcher.put(0)
    await wire.carried(1)
    for n in range(1, 11):
        batcher.put(n)
    wire.answer()
    wire.answer()
    await batcher.drained()
    assert [len(batch) for batch in wire.batches] == [1, 10]
