from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Context, RedisMessageQueue, Retry
from mx_rmq.config import DEFAULT_URL, Config
from mx_rmq.errors import (
    ConfigError,
    InvalidName,
    MessageTooLarge,
    MxRmqError,
    NotReplicated,
    ServerRefused,
    ServerUnavailable,
    UnsafeServer,
)
from mx_rmq.message import Death, encode_death
from mx_rmq.storage.keys import Keys
from mx_rmq.storage.store import Store
from tests.harness import all_keys
from tests.words import eventually, new

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from mx_rmq.storage.embedded import EmbeddedServer
    from tests.proxy import Proxy

FIELDS = [field.name for field in fields(Config)]

# -- values


def test_a_config_needs_nothing_but_takes_its_url_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MX_RMQ_URL", "redis://elsewhere:7000/3")
    assert Config().url == "redis://elsewhere:7000/3"
    assert Config(url="redis://here").url == "redis://here"
    monkeypatch.setenv("MX_RMQ_URL", "")
    assert Config().url == DEFAULT_URL
    monkeypatch.delenv("MX_RMQ_URL")
    assert Config().url == DEFAULT_URL


def test_a_queue_takes_its_url_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MX_RMQ_URL", "redis://elsewhere:7000/3")
    assert RedisMessageQueue().config.url == "redis://elsewhere:7000/3"
    assert RedisMessageQueue(name="shop").config.url == "redis://elsewhere:7000/3"
    assert RedisMessageQueue("redis://here").config.url == "redis://here"


def test_a_queue_takes_a_whole_config() -> None:
    config = Config(url="redis://here", name="shop", lease=timedelta(seconds=20))
    assert RedisMessageQueue(config=config).config is config
    assert config.lease == 20


@pytest.mark.parametrize("beside", [{"url": "redis://there"}, {"lease": 5}, {"url": "redis://x", "lease": 5}])
def test_nothing_stands_beside_a_whole_config(beside: dict[str, Any]) -> None:
    """Which of the two would hold? The error says what to write instead."""
    given = f"none may stand beside it, got {', '.join(beside)}; put them into"
    with pytest.raises(ConfigError, match=given):
        RedisMessageQueue(config=Config(), **beside)


@pytest.mark.parametrize("wrong", [{"name": "shop"}, "redis://here", Config])
def test_a_config_is_a_config(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"config must be a Config\(\.\.\.\), got "):
        RedisMessageQueue(config=wrong)


def test_a_config_in_the_place_of_the_url_is_told_where_it_belongs() -> None:
    with pytest.raises(ConfigError, match="url must be a string; write config="):
        RedisMessageQueue(Config())  # type: ignore[arg-type]


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = Config()
    assert config.ttl == 7 * 24 * 3600
    assert config.lease == 15
    assert config.stop_grace == 25
    assert config.recovery_grace == 1
    assert config.crash_limit == 3
    assert config.dlq_max_age is None
    assert config.dlq_max_count is None
    assert config.server_check == "warn"


def test_a_config_does_not_change() -> None:
    config: Any = Config()
    with pytest.raises(FrozenInstanceError):
        config.lease = 1.0


async def test_every_worker_has_its_own_name(server: EmbeddedServer, redis: Redis, proxy: Proxy) -> None:
    """Two in one process, or in forked ones that share a configuration, are told apart by their leases."""
    names = set()
    for _ in range(2):
        async with Bench(server, redis, proxy).queue(worker_name="ada") as queue:

            @queue.handler("t")
            async def handle(payload: int) -> None: ...

            await queue.start()
            await eventually(queue.workers)
            names |= {worker.name for worker in await queue.workers()}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("concurency", "concurrency"),
        ("time_out", "timeout"),
        ("leases", "lease"),
        ("dlq_maxage", "dlq_max_age"),
        ("retries", "retry"),
    ],
)
def test_an_unknown_option_is_an_error_that_says_what_was_meant(wrong: str, meant: str) -> None:
    options: dict[str, Any] = {wrong: 1}
    with pytest.raises(ConfigError, match=f"no option {wrong!r}; did you mean {meant!r}"):
        RedisMessageQueue("redis://here", **options)


def test_an_option_like_no_other_is_answered_with_all_of_them() -> None:
    with pytest.raises(ConfigError) as refused:
        RedisMessageQueue("redis://here", xyzzy=1)  # type: ignore[call-arg]
    assert all(name in str(refused.value) for name in FIELDS)


WRONG: dict[str, list[Any]] = {
    "url": ["", "localhost:6379", "http://localhost", "redis:localhost", "REDIS://x", None, 5, b"redis://x"],
    "name": ["", "a:b", "{q}", "ä", "x" * 129, None, 5],
    "username": ["", 5, b"shop", True],
    "password": ["", 5, b"sesame", ["sesame"]],
    "shards": [0, -1, 1.5, "8", True, 1025],
    "sentinel_username": ["", 5, b"shop", True],
    "sentinel_password": ["", 5, b"sesame", ["sesame"]],
    "ssl_ca_certs": ["", 5, b"ca.pem", True],
    "ssl_certfile": ["", 5, b"cert.pem", True],
    "ssl_keyfile": ["", 5, b"key.pem", True],
    "worker_name": ["", "a:b", "w 1", None],
    "concurrency": [0, -1, 1.5, "8", None, True],
    "prefetch": [-1, 0.5, None, False],
    "lease": [0, -1, "15", None, math.inf, math.nan, True, 1e300],
    "timeout": [0, -1, "1", math.inf, math.nan, True],
    "retry": [3, None, "exponential", {"max_attempts": 3}],
    "recovery_grace": [0, -1, 0.4, "1", math.inf, math.nan, True],
    "crash_limit": [0, -1, 1.5, None],
    "ttl": [0, -1, "1h", math.inf, math.nan, 1e12],
    "max_bytes": [0, 255, 1e6, None],
    "stop_grace": [-1, None, math.inf, "25"],
    "socket_timeout": [0, -1, None, math.nan, 60],
    "patience": [-1, None, math.inf, "30", 56, 3600],
    "durability_timeout": [0, -1, None, math.inf, "5", True, 26],
    "durability": ["", "ram", None, True, ["disk"]],
    "replicas": [0, -1, 1.5, None, True],
    "poll": [0, -1, None, math.inf],
    "dlq_max_age": [0, -1, "7d", math.inf],
    "dlq_max_count": [-1, 1.5, "10"],
    "server_check": ["", "yes", None, True, ["warn"]],
    "history": ["", 1, None, "off"],
    "lifespan": ["", 5, asyncio.sleep],
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_makes_no_sense_is_refused_by_the_name_of_its_option(field: str) -> None:
    for value in WRONG[field]:
        options: dict[str, Any] = {field: value}
        with pytest.raises((ConfigError, InvalidName)) as refused:
            Config.of(**options)
        named = "queue" if field == "name" else field
        assert named in str(refused.value), f"{field}={value!r}: {refused.value}"


def test_the_error_of_a_wrong_option_is_a_value_error_too() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(InvalidName, ValueError)
    assert issubclass(ConfigError, MxRmqError)


def test_edges_that_make_sense_are_taken() -> None:
    Config(concurrency=1, prefetch=0, crash_limit=1, max_bytes=256, stop_grace=0, patience=0, dlq_max_count=0)
    Config(timeout=None, ttl=None, dlq_max_age=None, recovery_grace=None)
    Config(lease=1, patience=50, socket_timeout=5, durability_timeout=5)
    Config(patience=54.9, socket_timeout=5, durability_timeout=0.1)


# -- secrets

SECRETS = [
    "redis://user:pa55word@host:6379/0",
    "redis://:pa55word@host:6379/0",
    "rediss://pa55word@host",
    "redis://user:x/pa55word@host",
    "redis://user:x?pa55word@host",
    "redis://user:x#pa55word@host",
    "redis://user:x@pa55word@host",
    "redis://user:[pa55word@host",
    "redis://user:x@pa55word/2@host",
    "redis://user:x@pa55word?2@host",
    "redis://user:x@pa55word#2@host",
    "redis://:1/pa55word@host:6379",
    "redis://:1?pa55word@host",
    "redis://:pa55word",
    "unix://user:1/pa55word@/tmp/socket",
    "redis://host?username=user&password=pa55word",
    "redis://host?password=x@pa55word",
    "unix:///tmp/socket?password=pa55word",
    "unix://user:pa55word@/tmp/socket",
]


@pytest.mark.parametrize("url", SECRETS)
def test_no_text_of_a_config_shows_a_password(url: str) -> None:
    config = Config(url=url)
    texts = [repr(config), config.shown_url]
    try:
        queue = RedisMessageQueue(url)
    except ConfigError as error:  # it can be read in two ways
        texts.append(str(error).replace("redis://user:password@host", ""))
    else:
        texts += [repr(queue), str(queue), repr(queue.sync)]
    for text in texts:
        assert "pa55word" not in text
        assert "user" not in text


def test_what_is_no_secret_is_shown() -> None:
    assert repr(RedisMessageQueue("redis://u:p@host:6379/2", name="shop")) == (
        "<RedisMessageQueue 'shop' at redis://***@host:6379/2>"
    )
    assert Config(url="unix:///run/redis.sock?db=1").shown_url == "unix:///run/redis.sock"
    assert Config(url="embedded:///var/lib/shop").shown_url == "embedded:///var/lib/shop"


@pytest.mark.parametrize("url", SECRETS)
async def test_no_error_shows_a_password(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the URL cannot be read or no server is there."""
    url = url.replace("host", "127.0.0.1").replace(":6379", ":1").replace("/tmp/socket", f"{tmp_path}/none")

    async def produce(*, sync: bool) -> None:
        queue = RedisMessageQueue(url, patience=0, socket_timeout=0.5)
        await (asyncio.to_thread(queue.sync.produce, "t", 1) if sync else queue.produce("t", 1))

    for sync in (False, True):
        with pytest.raises(MxRmqError) as refused:
            await produce(sync=sync)
        error: BaseException | None = refused.value
        chain: list[BaseException] = []
        while error is not None:
            assert error not in chain, "an error is its own cause"
            chain.append(error)
            assert "pa55word" not in str(error)
            assert "pa55word" not in repr(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# -- every field does something


class Bench:
    """What the proofs below need."""

    def __init__(
        self,
        server: EmbeddedServer,
        redis: Redis,
        proxy: Proxy,
        request: pytest.FixtureRequest | None = None,
    ) -> None:
        self.server = server
        self.redis = redis
        self.proxy = proxy
        self._request = request
        self.store = Store(redis, Keys("q"))

    def queue(self, **options: Any) -> RedisMessageQueue:
        return RedisMessageQueue(**{"url": self.server.url, "name": "q", "server_check": "off"} | options)

    def rig(self, name: str) -> Any:
        """Servers that only some proofs need."""
        assert self._request is not None
        return self._request.getfixturevalue(name)

    async def answers(self, **options: Any) -> bool:
        """Whether a queue with these options is let in, with and without an event loop."""
        queue = self.queue(**options)
        try:
            async with queue:
                await queue.produce("t", 1)
            await asyncio.to_thread(queue.sync.produce, "t", 1)
        except ServerRefused:
            return False
        finally:
            queue.sync.close()
        return True

    async def running(self) -> int:
        return int(await self.redis.hlen("mx-rmq:{q}:t:processing"))

    async def bury(self, *ids: str) -> None:
        """Put messages into the DLQ."""
        await self.store.produce("t", [new(id_) for id_ in ids])
        claim = await self.store.claim("t", 1000, lease=15, holder="w")
        error = encode_death(Death(reason="failed"))
        await self.store.move_to_dlq("t", [(delivery, b"", error) for delivery in claim.deliveries])


Proof = Callable[[Bench], Awaitable[None]]
PROOFS: dict[str, Proof] = {}


def proves(field: str) -> Callable[[Proof], Proof]:
    def register(proof: Proof) -> Proof:
        PROOFS[field] = proof
        return proof

    return register


@pytest.mark.parametrize("field", FIELDS)
async def test_every_option_does_something(
    field: str, server: EmbeddedServer, redis: Redis, proxy: Proxy, request: pytest.FixtureRequest
) -> None:
    assert field in PROOFS, f"Config.{field} is new: write a proof that it does something"
    await PROOFS[field](Bench(server, redis, proxy, request))


@proves("url")
async def _(bench: Bench) -> None:
    async with bench.queue(url=bench.server.url + "?db=5") as queue:
        await queue.produce("t", 1)
    assert await all_keys(bench.redis) == []
    async with bench.queue() as queue:
        await queue.produce("t", 1)
    assert "mx-rmq:{q}:payload" in await all_keys(bench.redis)
    await bench.redis.execute_command("FLUSHALL")


@proves("shards")
async def _(bench: Bench) -> None:
    async with bench.queue(shards=4) as queue:
        await queue.produce_many("t", range(100))
    for number in range(4):
        assert f"mx-rmq:{{q:{number}}}:payload" in await all_keys(bench.redis)


async def only_with_both(answers: Callable[..., Awaitable[bool]], user: str, password: str) -> None:
    """Neither a user nor a password is enough."""
    assert await answers(**{user: "shop", password: "sesame"})
    assert not await answers(**{user: "shop", password: "simsalabim"})
    assert not await answers(**{password: "sesame"})


@proves("username")
@proves("password")
async def _(bench: Bench) -> None:
    await bench.redis.execute_command("ACL", "SETUSER", "shop", "on", ">sesame", "~*", "&*", "+@all")
    try:
        await only_with_both(partial(bench.answers, url=bench.server.url), "username", "password")
    finally:
        await bench.redis.execute_command("ACL", "DELUSER", "shop")


@proves("sentinel_username")
@proves("sentinel_password")
async def _(bench: Bench) -> None:
    sentinels = bench.rig("sentinels")
    for each in sentinels.sentinels:
        each.command("ACL", "SETUSER", "shop", "on", ">sesame", "+@all")
    answers = partial(bench.answers, url=sentinels.url)
    await only_with_both(answers, "sentinel_username", "sentinel_password")


@proves("ssl_ca_certs")
async def _(bench: Bench) -> None:
    rig = bench.rig("tls_rig")
    client = {
        "ssl_certfile": str(rig.certificates.client.certificate),
        "ssl_keyfile": str(rig.certificates.client.key),
    }
    answers = partial(bench.answers, url=rig.bare_url, **client)
    assert await answers(ssl_ca_certs=str(rig.certificates.authority))
    assert not await answers(ssl_ca_certs=str(rig.certificates.strange_authority))
    assert not await answers()


@proves("ssl_certfile")
@proves("ssl_keyfile")
async def _(bench: Bench) -> None:
    rig = bench.rig("tls_rig")
    answers = partial(bench.answers, url=rig.bare_url, ssl_ca_certs=str(rig.certificates.authority))
    client, stranger = rig.certificates.client, rig.certificates.stranger
    assert await answers(ssl_certfile=str(client.certificate), ssl_keyfile=str(client.key))
    assert not await answers(ssl_certfile=str(stranger.certificate), ssl_keyfile=str(stranger.key))
    assert not await answers()


@proves("name")
async def _(bench: Bench) -> None:
    async with bench.queue(name="shop") as queue:
        await queue.produce("t", 1)
    assert "mx-rmq:{shop}:payload" in await all_keys(bench.redis)


@proves("worker_name")
async def _(bench: Bench) -> None:
    async with bench.queue(worker_name="ada") as queue:
        started, done = asyncio.Event(), asyncio.Event()

        @queue.handler("t")
        async def handle(payload: int) -> None:
            started.set()
            await done.wait()

        id_ = await queue.produce("t", 1)
        await queue.start()
        await started.wait()
        holder = (await queue.find(id_)).holder
        assert holder is not None
        assert holder.startswith(f"ada.{os.getpid()}.")
        assert [worker.name for worker in await queue.workers()] == [holder]
        done.set()


@proves("concurrency")
async def _(bench: Bench) -> None:
    now, most, ended = 0, 0, 0
    async with bench.queue(concurrency=3) as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None:
            nonlocal now, most, ended
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now, ended = now - 1, ended + 1

        await queue.produce_many("t", range(20))
        await queue.start()

        async def all_ended() -> bool:
            return ended == 20

        await eventually(all_ended)
    assert most == 3


async def _most_held(bench: Bench, prefetch: int) -> int:
    """How many messages a worker with one runner holds at most while it is quick."""
    most = ended = 0
    async with bench.queue(prefetch=prefetch, concurrency=1) as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None:
            nonlocal most, ended
            most, ended = max(most, await bench.running()), ended + 1

        await queue.produce_many("t", range(400))
        await queue.start()

        async def all_ended() -> bool:
            return ended == 400

        await eventually(all_ended)
    return most


@proves("prefetch")
async def _(bench: Bench) -> None:
    # What has just ended may not have left the server yet, so some more than one are seen either way.
    assert await _most_held(bench, 0) < await _most_held(bench, 1000)


@proves("lease")
async def _(bench: Bench) -> None:
    async with bench.queue(lease=7.0) as queue:
        started, done = asyncio.Event(), asyncio.Event()

        @queue.handler("t")
        async def handle(payload: int) -> None:
            started.set()
            await done.wait()

        id_ = await queue.produce("t", 1)
        await queue.start()
        await started.wait()
        facts = await queue.find(id_)
        assert facts.lease_until is not None
        assert facts.claimed_at is not None
        assert 6.9 < facts.lease_until - facts.claimed_at < 7.1
        done.set()


@proves("timeout")
async def _(bench: Bench) -> None:
    async with bench.queue(timeout=0.05, retry=Retry(1)) as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None:
            await asyncio.Event().wait()

        id_ = await queue.produce("t", 1)
        await queue.start()
        await eventually(lambda: _is_dead(queue, id_))
        assert (await queue.dlq.get(id_)).kind == "TimeoutError"


@proves("retry")
async def _(bench: Bench) -> None:
    calls = 0
    async with bench.queue(retry=Retry(3, backoff=[0.0])) as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None:
            nonlocal calls
            calls += 1
            raise ValueError

        id_ = await queue.produce("t", 1)
        await queue.start()
        await eventually(lambda: _is_dead(queue, id_))
    assert calls == 3


@proves("crash_limit")
async def _(bench: Bench) -> None:
    async with bench.queue(crash_limit=1) as queue:

        @queue.handler("other")
        async def handle(payload: int) -> None: ...

        id_ = await queue.produce("t", 1)
        await bench.store.claim("t", 1, lease=0.001, holder="crashed")
        await queue.start()
        await eventually(lambda: _is_dead(queue, id_))
        assert (await queue.dlq.get(id_)).reason == "crashed"


@proves("recovery_grace")
async def _(bench: Bench) -> None:
    """A worker claims for long, and then its network is gone."""
    gone = bench.queue(url=bench.proxy.url, lease=600, stop_grace=0)
    handled = asyncio.Event()

    @gone.handler("t")
    async def never(payload: int) -> None:
        await asyncio.Event().wait()

    async with gone, bench.queue(recovery_grace=0.5) as queue:

        @queue.handler("t")
        async def handle(payload: int) -> None:
            handled.set()

        await queue.produce("t", 1)
        await gone.start()
        await eventually(bench.running)
        await eventually(lambda: _registered(queue))
        bench.proxy.away()
        await queue.start()
        async with asyncio.timeout(10):
            await handled.wait()
        bench.proxy.back()


@proves("ttl")
async def _(bench: Bench) -> None:
    async with bench.queue(ttl=100.0) as queue:
        facts = await queue.find(await queue.produce("t", 1))
        assert facts.message is not None
        assert facts.message.ttl == 100.0


@proves("max_bytes")
async def _(bench: Bench) -> None:
    async with bench.queue(max_bytes=300) as queue:
        await queue.produce("t", "x" * 10)
        with pytest.raises(MessageTooLarge, match="the limit is 300"):
            await queue.produce("t", "x" * 300)


@proves("stop_grace")
async def _(bench: Bench) -> None:
    queue = bench.queue(stop_grace=0.05)
    started = asyncio.Event()

    @queue.handler("t")
    async def handle(payload: int) -> None:
        started.set()
        await asyncio.Event().wait()

    await queue.produce("t", 1)
    await queue.start()
    await started.wait()
    async with asyncio.timeout(5):
        await queue.close()
    assert await bench.running() == 0


@proves("socket_timeout")
async def _(bench: Bench) -> None:
    async with bench.queue(url=bench.proxy.url, socket_timeout=0.15, patience=0) as queue:
        await queue.produce("t", 1)
        bench.proxy.freeze()
        with pytest.raises(ServerUnavailable, match=r"no answer within 0\.15 s"):
            await queue.produce("t", 1)
        bench.proxy.thaw()


@proves("patience")
async def _(bench: Bench) -> None:
    async with bench.queue(url=bench.proxy.url, patience=0.1) as queue:
        bench.proxy.away()
        with pytest.raises(ServerUnavailable, match=r"gave up after 0\.1 s"):
            await queue.produce("t", 1)


@proves("durability")
async def _(bench: Bench) -> None:
    async with bench.queue(durability="replicated", durability_timeout=0.01) as queue:
        with pytest.raises(NotReplicated):
            await queue.produce("t", 1)


@proves("durability_timeout")
async def _(bench: Bench) -> None:
    async with bench.queue(durability="replicated", durability_timeout=0.2) as queue:
        with pytest.raises(NotReplicated, match=r"within 0\.2 s"):
            await queue.produce("t", 1)


@proves("replicas")
async def _(bench: Bench) -> None:
    async with bench.queue(durability="replicated", durability_timeout=0.01, replicas=3) as queue:
        with pytest.raises(NotReplicated, match="0 of 3 replicas"):
            await queue.produce("t", 1)


@proves("poll")
async def _(bench: Bench) -> None:
    """The wake token goes to somebody who does nothing with it."""
    async with bench.queue(poll=0.05) as queue:
        handled = asyncio.Event()

        @queue.handler("t")
        async def handle(payload: int) -> None:
            handled.set()

        thief = asyncio.create_task(bench.redis.execute_command("BLPOP", "mx-rmq:{q}:t:wake", 10))
        await eventually(lambda: _blocked(bench.redis))
        await queue.start()
        await eventually(lambda: _registered(queue))
        await queue.produce("t", 1)
        assert await thief is not None
        async with asyncio.timeout(1.5):  # by default it would look after two seconds
            await handled.wait()


@proves("dlq_max_age")
async def _(bench: Bench) -> None:
    await bench.bury("A1", "A2")
    async with bench.queue(dlq_max_age=0.001) as queue:
        await _trimmed(queue, 0)


@proves("dlq_max_count")
async def _(bench: Bench) -> None:
    await bench.bury("A1", "A2", "A3")
    async with bench.queue(dlq_max_count=1) as queue:
        await _trimmed(queue, 1)


@proves("server_check")
async def _(bench: Bench) -> None:
    """The servers of the tests keep nothing on disk."""
    with pytest.raises(UnsafeServer, match="appendonly is off"):
        await bench.queue(server_check="refuse").open()


@proves("history")
async def _(bench: Bench) -> None:
    """Also for what is produced without an event loop."""
    for history in (False, True):
        async with bench.queue(history=history) as queue:
            await queue.produce("t", 1)
            await asyncio.to_thread(queue.sync.produce, "t", 1)
            assert (await queue.history("t")).total.produced == (2 if history else 0)


@proves("lifespan")
async def _(bench: Bench) -> None:
    @asynccontextmanager
    async def lifespan(queue: RedisMessageQueue) -> AsyncIterator[str]:
        yield queue.config.name

    states: list[Any] = []
    async with bench.queue(lifespan=lifespan) as queue:

        @queue.handler("t")
        async def handle(payload: int, ctx: Context) -> None:
            states.append(ctx.state)

        await queue.start()
        await queue.produce("t", 1)
        await eventually(lambda: states == ["q"])


async def _trimmed(queue: RedisMessageQueue, count: int) -> None:
    @queue.handler("t")
    async def handle(payload: int) -> None: ...

    async def trimmed() -> bool:
        return (await queue.counts()).dead == count

    await queue.start()
    await eventually(trimmed)


async def _is_dead(queue: RedisMessageQueue, id_: str) -> bool:
    return (await queue.find(id_)).state == "dead"


async def _registered(queue: RedisMessageQueue) -> bool:
    return bool(await queue.workers())


async def _blocked(redis: Redis) -> bool:
    return bool((await redis.info("clients"))["blocked_clients"])
