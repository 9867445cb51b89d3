"""Times in buckets: what a worker sends, and what percentiles are made of."""

from __future__ import annotations

import random
from math import ceil, inf

import pytest

from mx_rmq.storage.history import BUCKETS, percentile, times_text


def buckets_of(times: list[float]) -> list[int]:
    """The buckets of run times, as a script reads them."""
    buckets = [0] * BUCKETS
    for word in times_text(list(times), []).split():
        bucket, amount = word.split(":")
        buckets[int(bucket)] += int(amount)
    return buckets


def test_times_are_sent_as_counts_of_buckets_that_double() -> None:
    runs = [0.0, 0.0001, 0.000125, 0.0002, 0.00025, 0.001, 1.0, 3600.0]
    assert times_text(runs, [2.0]) == "0:2 1:2 2:1 4:1 13:1 25:1 42:1"
    assert times_text([], []) == ""


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(-5.0, 0), (8388.0, 26), (8389.0, 27), (1e300, 27), (inf, 27)]
)
def test_times_beyond_the_buckets_are_in_the_first_or_the_last(seconds: float, bucket: int) -> None:
    assert times_text([seconds], []) == f"{bucket}:1"


def test_every_time_is_in_one_bucket() -> None:
    """Also those beside the edges, whatever their last bit is."""
    times = [2**n / 8000 * factor for n in range(27) for factor in (1 - 2**-53, 1.0, 1 + 2**-52)]
    assert sum(buckets_of(times)) == len(times)
    text = times_text(times, list(times))
    assert len(text) < 500
    assert len(text.split()) <= 2 * BUCKETS


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_percentile_is_as_exact_as_its_bucket(share: float) -> None:
    draw = random.Random(7)
    for _ in range(50):
        times = sorted(draw.lognormvariate(-4, 2) for _ in range(draw.randrange(1, 900)))
        exact = times[ceil(len(times) * share) - 1]
        found = percentile(buckets_of(times), share)
        assert found is not None
        assert exact / 2 <= found <= exact * 2 or (exact < 0.000125 and found <= 0.000125)


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([0] * BUCKETS, 0.5) is None
    assert percentile(buckets_of([1e9]), 0.5) == pytest.approx(2**26 / 8000)
