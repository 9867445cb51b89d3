"""Which rights are missing: the same by asking and by trying, and the same as docs/deployment.md says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from mx_rmq.storage.keys import Keys
from mx_rmq.storage.rights import RIGHTS, read_rights
from mx_rmq.storage.store import Store
from tests.harness import command
from tests.queue.test_rights import BASE, OPERATOR, WORKER
from tests.words import unchanged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mx_rmq.storage.embedded import EmbeddedServer


@pytest.fixture
async def limited(server: EmbeddedServer, redis: Redis) -> AsyncIterator[Callable[..., Any]]:
    """Makes a store for a user with the given rights."""
    clients: list[Redis] = []

    async def make(*rules: str) -> Store:
        await command(redis, "ACL", "SETUSER", "limited", "reset", "on", ">geheim", *rules)
        client = Redis(unix_socket_path=str(server.socket), username="limited", password="geheim")
        clients.append(client)
        return Store(client, Keys("q"))

    yield make
    for client in clients:
        await client.aclose()
    await command(redis, "ACL", "DELUSER", "limited")


def test_the_rights_are_those_that_the_page_documents() -> None:
    def named(rules: list[str]) -> set[str]:
        return {rule[1:] for rule in rules if rule.startswith("+")} - {"select"}  # it was sent if needed

    assert {*RIGHTS["produce and work"], *RIGHTS["keep a history"]} == named(BASE)
    assert {*RIGHTS["see vanished workers"], *RIGHTS["tell a tail"]} == named(WORKER)
    operators = ("operate", "tail", "repair", "delete a queue")
    assert {name for use in operators for name in RIGHTS[use]} == named(OPERATOR)


async def test_the_documented_user_lacks_nothing(limited: Callable[..., Any], redis: Redis) -> None:
    rights = [rule for rule in (*BASE, *WORKER, *OPERATOR) if rule.startswith("+")]
    store = await limited("~mx-rmq:{q}:*", "&mx-rmq:{q}:events", *rights, "+acl|whoami", "+acl|dryrun")
    async with unchanged(redis):
        found = await read_rights(store)
    assert (found.user, found.lacking, found.untold) == ("limited", {}, ())


async def test_what_is_missing_is_named_by_use(limited: Callable[..., Any]) -> None:
    store = await limited("~*", "resetchannels", "+@all", "-hset", "-client|list", "-hgetall", "-rename")
    assert (await read_rights(store)).lacking == {
        "produce and work": ["+hset"],
        "see vanished workers": ["+client|list", "+hgetall"],
        "operate": ["+hgetall"],
        "tell a tail": ["&mx-rmq:{q}:events"],
        "tail": ["&mx-rmq:{q}:events"],
        "repair": ["+rename"],
    }


async def test_a_user_who_may_not_ask_learns_of_what_can_be_tried(
    limited: Callable[..., Any], redis: Redis
) -> None:
    """Nothing is changed by trying."""
    store = await limited("~*", "&*", "+@all", "-acl", "-hset", "-hgetall", "-lpop", "-eval")
    async with unchanged(redis):
        found = await read_rights(store)
    assert found.user == ""
    assert found.lacking == {
        "produce and work": ["+eval", "+lpop"],
        "see vanished workers": ["+hgetall"],
        "operate": ["+hgetall"],
    }
    assert "hset" in found.untold


async def test_keys_that_may_not_be_touched_are_named_once(limited: Callable[..., Any]) -> None:
    store = await limited("~other:*", "&*", "+@all")
    assert (await read_rights(store)).lacking["operate"] == ["~mx-rmq:{q}:*"]
