from __future__ import annotations

import re
import string
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from mx_rmq.checks import are_names, check_name
from mx_rmq.errors import InvalidName, MxRmqError
from mx_rmq.message import LANES
from mx_rmq.storage.keys import PENDING, QUEUE_PARTS, TOPIC_PARTS, Keys
from mx_rmq.storage.scripts import SCRIPTS

GRAMMAR = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
"""Written out again on purpose: what may be a name is a promise, not a detail."""

patient = settings(deadline=None)
good_names = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=128)
bad_names = st.text(st.characters(exclude_categories=())).filter(lambda text: not GRAMMAR.match(text))


@patient
@given(good_names)
def test_letters_digits_and_a_few_signs_make_a_name(name: str) -> None:
    assert check_name("topic", name) is name


@patient
@given(bad_names)
def test_any_other_text_is_refused_with_what_it_was_to_name(name: str) -> None:
    with pytest.raises(InvalidName, match=r"a topic must be 1 to 128 letters, digits and _ \. - only, got "):
        check_name("topic", name)


@patient
@given(
    good_names.filter(lambda name: len(name) < 128), st.sampled_from(list(":{} \n\0/*é٣\ud800")), st.data()
)
def test_one_wrong_character_anywhere_spoils_a_name(name: str, wrong: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name)))
    with pytest.raises(InvalidName):
        check_name("message id", name[:at] + wrong + name[at:])


@pytest.mark.parametrize(("length", "good"), [(0, False), (1, True), (128, True), (129, False)])
def test_a_name_has_1_to_128_characters(length: int, good: bool) -> None:
    if good:
        assert check_name("queue", "x" * length) == "x" * length
    else:
        with pytest.raises(InvalidName, match="a queue must be 1 to 128"):
            check_name("queue", "x" * length)


@pytest.mark.parametrize("value", [None, 7, 1.5, True, b"orders", ["orders"], object()])
def test_what_is_no_string_is_no_name(value: object) -> None:
    with pytest.raises(InvalidName):
        check_name("topic", value)


def test_the_refusal_of_a_huge_name_is_short() -> None:
    """It goes into logs, and the name may be a payload that somebody put in the wrong place."""
    with pytest.raises(InvalidName) as refused:
        check_name("topic", "x" * 1_000_000)
    assert len(str(refused.value)) < 200
    assert isinstance(refused.value, MxRmqError)
    assert isinstance(refused.value, ValueError)


@patient
@given(bad_names)
def test_a_queue_is_refused_by_the_same_grammar(name: str) -> None:
    """A brace or colon in it would break the hash tag, or be another queue's shard."""
    with pytest.raises(InvalidName, match="a queue must be 1 to 128"):
        Keys(name)


# -- keys


def every_key(keys: Keys, topics: list[str]) -> list[str]:
    of_queue = [keys.of_queue(part) for part in QUEUE_PARTS]
    return of_queue + [keys.of_topic(topic, part) for topic, part in product(topics, TOPIC_PARTS)]


PARTS = [*QUEUE_PARTS, *TOPIC_PARTS]
AWKWARD = sorted({word for part in [*PARTS, "call"] for word in part.split(":")})
"""Names that are also words of our keys."""


def test_no_two_things_share_a_key_however_topics_are_called() -> None:
    keys = every_key(Keys("q"), AWKWARD)
    assert len(keys) == len(set(keys))


def test_no_producer_shares_a_key_with_anything() -> None:
    keys = Keys("q")
    calls = {keys.of_call(producer) for producer in AWKWARD}
    assert len(calls) == len(AWKWARD)
    assert calls.isdisjoint(every_key(keys, AWKWARD))


@patient
@given(good_names, st.none() | st.integers(0, 1023), good_names, good_names)
def test_all_keys_of_a_queue_are_in_one_slot(
    queue: str, shard: int | None, topic: str, producer: str
) -> None:
    """A script may touch only one slot of a cluster."""
    keys = Keys(queue, shard)
    tag = queue if shard is None else f"{queue}:{shard}"
    every = [*every_key(keys, [topic]), keys.of_call(producer)]
    assert {key_slot(key.encode()) for key in every} == {key_slot(tag.encode())}
    assert all(key.startswith(f"mx-rmq:{{{tag}}}:") for key in every)


def test_queues_and_their_shards_share_no_key() -> None:
    queues = [Keys("q"), Keys("q", 0), Keys("q", 1), Keys("q", 10), Keys("q0"), Keys("q.0")]
    sets = [set(every_key(keys, AWKWARD)) for keys in queues]
    assert len(set[str]().union(*sets)) == sum(map(len, sets))


def test_a_key_is_called_as_in_the_design() -> None:
    keys = Keys("q")
    assert keys.of_queue("all_expire_monitor") == "mx-rmq:{q}:all_expire_monitor"
    assert keys.of_topic("orders", "pending:high") == "mx-rmq:{q}:orders:pending:high"
    assert Keys("q", 3).of_queue("dlq") == "mx-rmq:{q:3}:dlq"


def test_every_lane_has_a_list_of_its_own() -> None:
    assert [PENDING[lane] for lane in LANES] == ["pending:high", "pending", "pending:low"]
    assert {TOPIC_PARTS[part] for part in PENDING.values()} == {"list"}


def test_the_keys_of_a_script_are_those_of_its_header_in_order() -> None:
    keys = Keys("q")
    produce = SCRIPTS["produce_normal_message"]
    expected: list[Any] = ["payload", "all_expire_monitor", "dlq", "done", "orders:pending:high"]
    expected += ["orders:pending", "orders:pending:low", "orders:wake", "topics", "counters", "call:of:p1"]
    assert keys.of_script(produce, "orders", "p1")[:-1] == tuple("mx-rmq:{q}:" + key for key in expected[:-1])
    assert keys.of_script(produce, "orders", "p1")[-1] == keys.of_call("p1")
    assert keys.of_script(SCRIPTS["complete_message"], "a") != keys.of_script(
        SCRIPTS["complete_message"], "b"
    )


@pytest.mark.parametrize("bad", ["", " ", "a b", "a\n", "é", "x" * 129, "a ", b"a", None])
def test_one_bad_name_among_many_is_found(bad: Any) -> None:
    good = ["A1", "b.2", "c-3_"]
    assert are_names(good)
    assert not any(are_names([*good[:place], bad, *good[place:]]) for place in range(4))
    assert not are_names([bad])
