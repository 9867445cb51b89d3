"""Every page, wide and narrow, light and dark: names, landmarks, contrast, focus, width, and no error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from mx_rmq.storage.embedded import EmbeddedServer
from tests.web.browser.serving import serving
from tests.web.browser.tab import IN_BROWSER, Tab
from tests.web.browser.town import town

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from mx_rmq import RedisMessageQueue
    from tests.web.browser.tab import ServeQueue

pytestmark = IN_BROWSER

PAGES = {
    "overview": "",
    "overview over 72 h, filtered": "?range=72h&only=m",
    "topic": "topic?name=no.worker-here",
    "topic paused": "topic?name=mails&state=delayed",
    "topic running": "topic?name=orders&state=running",
    "topic dead": "topic?name=orders&state=dead",
    "purge": "topic/purge?name=mails",
    "dead letters": "dlq",
    "dead letters filtered": "dlq?text=nothing+of+the+kind",
    "dead letters one by one": "dlq?show=messages",
    "replay all": "dlq/replay",
    "delete some": "dlq/delete?id=fail-1&id=fail-2&ticked=1",
    "message dead": "message?id=fail-0",
    "message long": "message?id=fail-1",
    "message unreadable": "message?id=poison",
    "message running": "message?id=runs",
    "message delayed": "message?id=put-off",
    "message pending": "message?id=mail",
    "message delete": "message/delete?id=fail-1",
    "message cancel": "message/cancel?id=mail",
    "edit": "message/edit?id=fail-1",
    "scheduled": "scheduled",
    "workers": "workers",
    "server": "server",
    "repair": "server/repair",
    "search": "search",
    "search found": "search?q=a",
    "jobs": "job",
}
WIDTHS = (1280, 390)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    """A tab on a dashboard with something on every page."""
    with EmbeddedServer.open() as server:
        async for queue in town(server.url):
            app = queue.dashboard()
            async with serving(app) as url:
                tab = await Tab.open(browser, url)
                yield tab
                await tab.page.context.close()
            app.close()


async def check(tab: Tab) -> None:
    """The page as it is, in both widths and both schemes."""
    problems: list[str] = []
    for width in WIDTHS:
        await tab.page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            await tab.page.emulate_media(color_scheme=scheme)
            problems += [f"{width} px, {scheme}: {each}" for each in await tab.problems()]
    assert not problems, "\n".join(problems)
    await tab.check_script_canaries()
    wrong, tab.wrong = tab.wrong, []
    assert wrong == []


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES.keys())
async def test_a_page_is_sound_wide_and_narrow_light_and_dark(tab: Tab, path: str) -> None:
    await tab.go(path)
    await check(tab)


async def test_a_page_that_is_not_there_is_sound_too(tab: Tab) -> None:
    await tab.go("topic?name=nope", status=404)
    await check(tab)
    await tab.go("nowhere", status=404)
    await check(tab)


async def test_a_group_and_a_difference_and_a_job_are_sound(tab: Tab) -> None:
    await tab.go("dlq")
    await tab.press("ConnectionError", "link")
    await tab.sees("the bank refused")
    await check(tab)
    await tab.go("message/edit?id=fail-2")
    await tab.find("#payload").fill('{"do": "done", "n": 2}')
    await tab.press("Check, and show what changes")
    await tab.sees("What changes")
    await check(tab)
    await tab.go("search?q=short")
    await tab.press("Search payloads")
    await tab.sees("short", "#found table")
    await check(tab)
    await tab.go("job")
    await tab.find("tbody a").first.click()
    await check(tab)


async def test_the_login_is_sound(browser: Browser, mq: RedisMessageQueue, serve: ServeQueue) -> None:
    url = await serve(mq, auth="a token of many characters")
    login = await Tab.open(browser, url, "login")
    await check(login)
    await login.page.context.close()


async def test_the_checks_themselves_find_what_is_wrong(tab: Tab) -> None:
    """Each of these breaks a rule, so a rule that finds nothing has not become blind."""
    broken = {
        "field without a label": "<input>",
        "contrast of text": '<p class="soft"><span id="pale">pale</span></p>',
        "image without a text": "<img>",
        "header without scope": "<table><thead><tr><th>a</th></tr></thead></table>",
        "the page is": '<pre id="wide">wide</pre>',
        "2 × h1": "<h1>again</h1>",
        "without a name": '<a href="."></a>',
        "id main twice": '<p id="main"></p>',
        "drawing without a name": "<svg></svg>",
        "focus is not seen": '<a href="." id="unseen">unseen</a>',
    }
    for said, html in broken.items():
        await tab.go("job")
        await tab.page.evaluate(
            """(html) => {
                document.querySelector("main").insertAdjacentHTML("beforeend", html);
                const change = (id, how) => Object.assign(document.getElementById(id)?.style ?? {}, how);
                change("pale", {color: "#999"});
                change("wide", {width: "3000px"});
                change("unseen", {outline: "none"});
            }""",
            html,
        )
        await tab.page.emulate_media(color_scheme="light")
        problems = await tab.problems()
        assert any(each.startswith(said) for each in problems), (said, problems)
    tab.wrong.clear()
