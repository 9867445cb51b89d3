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


async def _says(browser: Browser, path: str, *texts: str) -> bool:
    page = await browser.get(path)
    assert page.status_code == 200
    return all(text in page.text for text in texts)
