from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from mx_rmq.errors import InvalidName
from mx_rmq.message import LANES
from mx_rmq.storage.keys import PENDING, QUEUE_PARTS, TOPIC_PARTS, Keys
from mx_rmq.storage.scripts import SCRIPTS
from tests.values.test_checks import NAME, any_text, good_labels, good_names

patient = settings(deadline=None)


def every_key(keys: Keys, topics: list[str]) -> list[str]:
    of_queue = [keys.of_queue(part) for part in QUEUE_PARTS]
    return of_queue + [keys.of_topic(topic, part) for topic, part in product(topics, TOPIC_PARTS)]


PARTS = [*QUEUE_PARTS, *TOPIC_PARTS]
WORDS = sorted({word for part in [*PARTS, "call"] for word in part.split(":")})
"""Names that are also words of our keys."""
AWKWARD = [*WORDS, *(f"{one}:{other}" for one, other in product(WORDS, WORDS)), ":", "a:", ":a"]


def test_no_two_things_share_a_key_however_topics_are_called() -> None:
    keys = every_key(Keys("q"), AWKWARD)
    assert len(keys) == len(set(keys))


def test_no_producer_shares_a_key_with_anything() -> None:
    keys = Keys("q")
    calls = {keys.of_call(producer) for producer in WORDS}
    assert len(calls) == len(WORDS)
    assert calls.isdisjoint(every_key(keys, AWKWARD))


@patient
@given(good_names, st.none() | st.integers(0, 1023), good_labels, good_names)
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
    expected += ["orders:pending", "orders:pending:low", "orders:wake", "topics", "counters", "call=p1"]
    assert keys.of_script(produce, "orders", "p1") == tuple("mx-rmq:{q}:" + key for key in expected)
    guarded = Keys("q", in_cluster=True).of_script(produce, "orders", "p1")
    assert guarded == tuple("mx-rmq:{q}:" + key for key in [*expected, "moving="])
    assert keys.of_call("p1") == "mx-rmq:{q}:call=p1"
    assert keys.of_script(SCRIPTS["complete_message"], "a") != keys.of_script(
        SCRIPTS["complete_message"], "b"
    )


@patient
@given(any_text.filter(lambda text: not NAME.match(text)))
def test_a_queue_is_refused_by_a_narrower_grammar(name: str) -> None:
    """A brace or colon in it would break the hash tag, or be another queue's shard."""
    with pytest.raises(InvalidName, match="a queue must be 1 to 128"):
        Keys(name)
