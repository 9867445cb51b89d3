from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.storage.shard import Shard, shard_number
from mx_rmq.storage.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq import RedisMessageQueue
    from tests.proxy import Proxy
    from tests.words import MakeQueue

SHARDS = 4
AWAY = "2"
"""The shard that can go away."""


@pytest.fixture
def split(make_queue: MakeQueue, proxy: Proxy) -> Callable[..., RedisMessageQueue]:
    """Makes queues with four shards, of which the third is reached through the proxy only."""

    def make(*, behind: tuple[str, ...] = (AWAY,), **options: Any) -> RedisMessageQueue:
        mq = make_queue(**{"shards": SHARDS, "patience": 0.5, "socket_timeout": 1.0} | options)
        lifecycle: Any = mq._lifecycle
        usual = lifecycle._new_shard

        def new_shard(name: str) -> Any:
            return Shard(proxy.url, mq.config, name) if name in behind else usual(name)

        lifecycle._new_shard = new_shard
        return mq

    return make


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs take the one server for a cluster, where the layout can be lost and its copies not."""
    monkeypatch.setattr(Shards, "_is_spread", True)


@pytest.fixture
def key_of() -> Callable[[int], str]:
    """A key that leads to a shard."""
    return lambda number: next(key for n in range(999) if shard_number(key := f"k{n}", SHARDS) == number)
