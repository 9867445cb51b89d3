"""The dashboard of a queue of which one shard does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sharding.conftest import AWAY
from tests.web.conftest import Browser
from tests.words import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from mx_rmq import RedisMessageQueue
    from tests.proxy import Proxy

    Split = Callable[..., RedisMessageQueue]


async def test_figures_without_a_shard_say_so(split: Split, proxy: Proxy) -> None:
    """A number that is too small by a shard must not look like the whole."""
    mq = split(server_check="off")
    await mq.produce_many("t", range(100))
    app: Any = mq.dashboard()
    browser = Browser(app)
    assert "in no figure" not in (await browser.get("/")).text
    proxy.away()
    await eventually(lambda: _says(browser, "/", f"shard {AWAY} at ", "in no figure of this page"))
    app.desk.looks.forget()
    dead = (await browser.get("/dlq")).text
    assert f"shard {AWAY} at " in dead
    assert "No message is dead" not in dead
    assert await _says(browser, "/workers", "Not known now: ", "refused the connection")
    proxy.back()
    app.close()


async def test_lists_without_a_shard_say_so(split: Split, proxy: Proxy) -> None:
    """They show the messages of the others; an act on many refuses, for its number would be too small."""
    mq = split(server_check="off")
    await mq.produce_many("t", range(20))
    await mq.produce_many("t", range(20), delay=900.0)
    body = {"topic": "t", "body": '{"payload":1,"created_at":1.0}', "reason": "failed", "error": "E: x"}
    await mq.dlq.restore([body | {"id": f"m{n}", "died_at": 1e9 - n} for n in range(9)])
    app: Any = mq.dashboard()
    browser = Browser(app)
    paths = [f"/topic?name=t&state={state}" for state in ("pending", "delayed", "dead")]
    paths += ["/scheduled", "/dlq?show=messages"]
    there = f"shard {AWAY} at ", "there are not shown", 'href="message?id='
    for path in paths:
        assert not await _says(browser, path, there[0])
    proxy.away()
    for path in paths:
        assert await _says(browser, path, *there), path
    asked = await browser.get("/dlq/replay?show=messages&topic=t")
    assert asked.status_code == 503
    assert there[0] in asked.text
    app.close()


async def _says(browser: Browser, path: str, *texts: str) -> bool:
    page = await browser.get(path)
    assert page.status_code == 200
    return all(text in page.text for text in texts)
