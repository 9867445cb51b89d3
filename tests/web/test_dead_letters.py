"""Dead letters in the dashboard, on a real server: found, replayed, deleted and exported, one or many."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Reject, Retry, WebUser
from mx_rmq.message import Death
from tests.web.conftest import Browser
from tests.words import ONE_SERVER, bury, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.words import MakeQueue

pytestmark = ONE_SERVER

HOSTILE = '"></textarea></script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x00\u2066'


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def first(pattern: str, page: str) -> str:
    """What the group of a pattern has where it first fits."""
    found = re.search(pattern, page, re.DOTALL)
    assert found, page
    return found[1]


def death(kind: str, text: str = "") -> Death:
    said = f"{kind}: {text}" if text else kind
    return Death(reason="failed", error=said, kind=kind, place="shop.py:12 in pay")


async def die(
    mq: RedisMessageQueue, redis: Redis, topic: str, payloads: list[Any], kind: str = "GatewayDown"
) -> list[str]:
    """Let messages with these payloads die, in this order."""
    ids = []
    for payload in payloads:
        await mq.produce(topic, payload)
        ids += await bury(redis, death(kind, "503 after 12 ms"), topic)
    return ids


async def group_of(mq: RedisMessageQueue, topic: str) -> str:
    (group,) = [each for each in await mq.dlq.groups() if each.topic == topic]
    return group.id


async def job_of(browser: Browser, answer: httpx.Response) -> Any:
    """The job that an act began, when it is over."""
    assert answer.status_code == 303, text_of(answer.text)
    (job, *_) = browser.app.desk.jobs.all()
    assert job.id in answer.headers["location"]
    await eventually(lambda: job.ended_at is not None)
    return job


async def send(browser: Browser, path: str, data: dict[str, Any]) -> httpx.Response:
    return await browser.post(path, {"form_token": await browser.token("/job/form"), **data})


@pytest.fixture
def opened(browse: Callable[..., Browser]) -> Callable[..., Browser]:
    """A dashboard whose forms can be sent: their token comes from a page that has a form."""

    def opened(**options: Any) -> Browser:
        browser = browse(**options)

        async def token(page: str = "") -> str:
            await browser.get("/job")
            id_ = browser.session
            return str(browser.app.desk.keeper.form_token(id_, WebUser("local")))

        browser.token = token  # type: ignore[method-assign]
        return browser

    return opened


# -- finding


async def test_groups_have_their_count_and_filters_are_in_the_address(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await die(mq, redis, "orders", [1, 2, 3])
    await die(mq, redis, "mails", [1], "BadAddress")
    browser = browse()
    page = text_of((await browser.get("/dlq")).text)
    assert "4 dead letters in 2 groups" in page
    assert "GatewayDown 3 503 after 12 ms shop.py:12 in pay orders" in page
    for query, expected in (
        ({"topic": "mails"}, "1 dead letter in 1 group"),
        ({"error": "GatewayDown"}, "3 dead letters in 1 group"),
        ({"text": "BADaddr"}, "1 dead letter in 1 group"),
        ({"text": "nothing has this"}, "0 dead letters in 0 groups"),
    ):
        assert expected in text_of((await browser.get("/dlq", params=query)).text)


async def test_the_messages_of_a_group_are_paged_in_both_orders(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await die(mq, redis, "mails", [0], "BadAddress")
    ids = [f"m{n:03}" for n in range(120)]
    for id_ in ids:
        await mq.produce("orders", 1, message_id=id_)
    await bury(redis, death("GatewayDown"), "orders")
    browser, group = browse(), await group_of(mq, "orders")
    for order in ("", "oldest"):
        seen: list[str] = []
        to = f"/dlq?group={group}&order={order}"
        while to:
            page = (await browser.get(to)).text
            seen += re.findall(r'name="id" value="(\w+)"', page)
            found = re.search(r'<a rel="next" href="([^"]*)">Next page', page)
            to = f"/{html.unescape(found[1])}" if found else ""
        assert sorted(seen) == ids
        assert len(set(seen)) == len(seen)


async def test_messages_are_found_by_a_text_of_their_payload_but_not_by_what_is_hidden(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    payloads = [{"customer": n, "mail": f"secret{n}@example.org"} for n in range(30)]
    ids = await die(mq, redis, "orders", payloads)
    browser, group = browse(redact=["mail"]), await group_of(mq, "orders")
    page = (await browser.get("/dlq", params={"group": group, "text": '"customer":17'})).text
    assert re.findall(r'name="id" value="(\w+)"', page) == [ids[17]]
    assert "secret" not in page
    page = (await browser.get("/dlq", params={"group": group, "text": "secret17"})).text
    assert "No dead letter matches" in page


async def test_a_message_that_died_again_says_so(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    (id_,) = await die(mq, redis, "orders", [1])
    for _ in range(2):
        await mq.dlq.replay(id_)
        await bury(redis, death("GatewayDown"), "orders")
    page = text_of((await browse().get("/dlq?show=messages")).text)
    assert "died again ×2" in page
    assert "died again ×2" in text_of((await browse().get(f"/message?id={id_}")).text)


# -- many


async def test_all_that_match_are_replayed_by_a_job_with_its_number_rate_and_canary(
    make_queue: MakeQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    mq = make_queue()
    await die(mq, redis, "orders", list(range(30)))
    others = await die(mq, redis, "mails", [1], "BadAddress")
    seen: list[int] = []

    @mq.handler("orders")
    async def order(number: int) -> None:
        seen.append(number)

    mq.start()
    browser = opened()
    page = text_of((await browser.get("/dlq/replay?topic=orders")).text)
    assert "Replay 30 dead letters of orders: GatewayDown?" in page
    options = {"rate": "1000", "canary": "5", "canary_timeout": "20"}
    job = await job_of(browser, await send(browser, "/dlq/replay", {"topic": "orders", **options}))
    assert (job.state, job.done, job.total) == ("done", 30, 30)
    await eventually(lambda: sorted(seen) == list(range(30)))
    assert [letter.id for letter in (await mq.dlq.list()).letters] == others
    trail = await mq.trail()
    assert [(act.what, act.count) for act in trail] == [("replay", 30), ("replay", 0)]
    assert "30 dead letters of orders: GatewayDown" in trail[1].said
    page = text_of((await browser.get(f"/job?id={job.id}")).text)
    assert "replayed 30 dead letters" in page


async def test_canaries_that_die_again_stop_their_group_only(
    make_queue: MakeQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    mq = make_queue()
    await die(mq, redis, "orders", list(range(8)))
    await die(mq, redis, "mails", list(range(8)), "BadAddress")
    done: list[int] = []

    @mq.handler("orders", retry=Retry(max_attempts=1))
    async def order(_: int) -> None:
        raise Reject("still down")

    @mq.handler("mails")
    async def mail(number: int) -> None:
        done.append(number)

    mq.start()
    browser = opened()
    job = await job_of(browser, await send(browser, "/dlq/replay", {"canary": "2", "canary_timeout": "20"}))
    assert job.said == "replayed 10 dead letters; 1 group stopped after the canaries"
    assert "2 of 2 canaries died again" in job.results[0]
    await eventually(lambda: len(done) == 8)
    assert await mq.dlq.count(topic="orders") == 8


async def test_a_selection_is_replayed_and_deleted(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    ids = await die(mq, redis, "orders", list(range(6)))
    browser = opened()
    page = text_of((await browser.get("/dlq/replay", params={"id": ids[:2]})).text)
    assert "Replay 2 chosen dead letters?" in page
    answer = await send(browser, "/dlq/replay", {"id": [*ids[:2], "missing"]})
    assert "replayed+2+of+3" in answer.headers["location"]
    assert (await mq.counts()).topics["orders"].pending == 2
    page = text_of((await browser.get("/dlq/delete", params={"id": ids[2:5]})).text)
    assert "Delete 3 chosen dead letters?" in page
    await send(browser, "/dlq/delete", {"id": ids[2:5]})
    assert [letter.id for letter in (await mq.dlq.list()).letters] == ids[5:]
    assert [(act.what, act.count) for act in await mq.trail()] == [("delete", 3), ("replay", 2)]


async def test_ticked_groups_and_texts_are_deleted_and_the_rest_stays(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    await die(mq, redis, "orders", [{"customer": n % 3} for n in range(9)])
    await die(mq, redis, "mails", [1, 2], "BadAddress")
    browser, orders, mails = opened(), await group_of(mq, "orders"), await group_of(mq, "mails")
    chosen = {"group": orders, "text": '"customer":1'}
    assert "Delete 3 dead letters" in text_of((await browser.get("/dlq/delete", params=chosen)).text)
    job = await job_of(browser, await send(browser, "/dlq/delete", chosen))
    assert job.said == "deleted 3 dead letters"
    assert await mq.dlq.count(topic="orders") == 6
    chosen = {"group": [orders, mails]}  # type: ignore[dict-item]
    assert "Delete 8 dead letters in 2 groups?" in text_of(
        (await browser.get("/dlq/delete", params=chosen)).text
    )
    await job_of(browser, await send(browser, "/dlq/delete", {"group": mails}))
    assert {letter.topic for letter in (await mq.dlq.list()).letters} == {"orders"}


async def test_a_group_that_appears_after_the_question_is_not_meant(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    await die(mq, redis, "orders", [1, 2])
    browser = opened()
    page = (await browser.get("/dlq/delete")).text
    assert "Delete 2 dead letters of orders: GatewayDown?" in text_of(page)
    asked = dict(re.findall(r'<input type="hidden" name="(group)" value="(\w+)"', page))
    await die(mq, redis, "mails", [1], "BadAddress")
    await job_of(browser, await send(browser, "/dlq/delete", asked))
    assert [letter.topic for letter in (await mq.dlq.list()).letters] == ["mails"]


@pytest.mark.parametrize("verb", ["replay", "delete"])
@pytest.mark.parametrize("chosen", [{"topic": "orders"}, {"topic": "orders", "show": "messages"}])
async def test_what_dies_after_the_question_is_not_meant(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser], verb: str, chosen: dict[str, str]
) -> None:
    """The person has agreed to two, and two it is, although a third of the same group is dead by now."""
    await die(mq, redis, "orders", [1, 2])
    browser = opened()
    page = (await browser.get(f"/dlq/{verb}", params=chosen)).text
    assert f"{verb.capitalize()} 2 dead letters" in text_of(page)
    form = first(rf'(<form[^>]*action="dlq/{verb}".*?</form>)', page)
    asked = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    await die(mq, redis, "orders", [3])
    del asked["form_token"]
    job = await job_of(browser, await send(browser, f"/dlq/{verb}", asked))
    assert job.said == f"{'deleted' if verb == 'delete' else 'replayed'} 2 dead letters"
    assert (job.done, job.total) == (2, 2)
    assert f"{verb.capitalize()} 2 dead letters" in job.title
    assert [letter.payload for letter in (await mq.dlq.list()).letters] == [3]


async def test_nothing_ticked_does_not_mean_everything(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await die(mq, redis, "orders", [1])
    for verb in ("replay", "delete", "export"):
        page = await browse().get(f"/dlq/{verb}?ticked=1")
        assert page.status_code == 400
        assert "nothing is ticked" in page.text


@pytest.mark.parametrize(
    "wrong", [{"rate": "fast"}, {"rate": "-1"}, {"canary": "1.5"}, {"canary": "9999"}, {"rate": "nan"}]
)
async def test_a_rate_that_is_no_number_is_refused(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser], wrong: dict[str, str]
) -> None:
    await die(mq, redis, "orders", [1])
    answer = await send(opened(), "/dlq/replay", wrong)
    assert answer.status_code == 400
    assert f"{next(iter(wrong))} must be" in answer.text
    assert await mq.dlq.count() == 1


# -- export


async def test_an_export_is_what_the_command_line_writes_and_can_be_put_back(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    ids = await die(mq, redis, "orders", [{"n": n} for n in range(5)])
    await die(mq, redis, "mails", [1], "BadAddress")
    answer = await browse().get("/dlq/export?topic=orders")
    assert 'attachment; filename="dead-letters-q-' in answer.headers["content-disposition"]
    records = [json.loads(line) for line in answer.text.splitlines()]
    assert records == [letter.as_dict() async for letter in mq.dlq.export(topic="orders")]
    await mq.dlq.delete(*ids)
    assert (await mq.dlq.restore(records)).restored == 5
    one = await browse().get("/dlq/export", params={"id": [ids[3], "missing"]})
    assert [json.loads(line)["id"] for line in one.text.splitlines()] == [ids[3]]
    assert (await browse().get("/dlq/export?topic=nothing")).status_code == 404


async def test_what_is_hidden_is_not_exported_either(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await mq.produce("orders", {"mail": "secret@example.org", "n": 1}, headers={"token": "secret"})
    await bury(redis, death("GatewayDown"), "orders")
    answer = await browse(redact=["mail", "token"]).get("/dlq/export")
    assert "secret" not in answer.text
    assert json.loads(answer.text)["payload"] == {"mail": "••• (hidden)", "n": 1}


# -- who may


ACTS = ("/dlq/replay", "/dlq/delete", "/message/replay", "/message/delete", "/message/edit")


@pytest.mark.parametrize("path", [*ACTS, "/message/cancel", "/message/edit/preview"])
async def test_acts_are_refused_in_a_read_only_dashboard_and_with_a_wrong_token(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser], path: str
) -> None:
    (id_,) = await die(mq, redis, "orders", [1])
    letter = await mq.dlq.get(id_)
    data = {"id": id_, "payload": "2", "died": repr(letter.died_at)}
    await mq.produce("orders", 2, message_id="live", delay=60)
    if path == "/message/cancel":
        data["id"] = "live"
    assert (await send(opened(read_only=True), path, data)).status_code == 403
    browser = opened()
    assert (await browser.post(path, data | {"form_token": "0" * 64})).status_code == 403
    assert (await browser.post(path, data)).status_code == 403
    token = await browser.token()
    elsewhere = await browser.post(path, data | {"form_token": token}, origin="http://evil.example")
    assert elsewhere.status_code == 403
    assert (await browser.get(path)).status_code in (200, 400, 404, 405)
    assert await mq.dlq.count() == 1
    assert (await mq.find("live")).state == "delayed"
    assert await mq.trail() == []


@pytest.mark.parametrize("path", ["/dlq/replay", "/dlq/delete", "/message/edit?id=", "/message/delete?id="])
async def test_a_read_only_dashboard_has_no_pages_that_ask(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser], path: str
) -> None:
    (id_,) = await die(mq, redis, "orders", [1])
    browser = browse(read_only=True)
    to = f"{path}{id_}" if path.endswith("=") else path
    assert (await browser.get(to)).status_code == 403
    for page in ("/dlq", "/dlq?show=messages", f"/message?id={id_}"):
        text = (await browser.get(page)).text
        assert '<form method="post"' not in text
        assert "Replay" not in text_of(text)
        assert "Export" in text_of(text)


# -- strangers


async def test_hostile_texts_break_no_page(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await mq.produce("orders", {HOSTILE: [HOSTILE]}, headers={"x": HOSTILE})
    (id_,) = await bury(redis, Death(reason="failed", error=HOSTILE, kind=HOSTILE, place=HOSTILE), "orders")
    browser, group = browse(), await group_of(mq, "orders")
    pages = ["/dlq", "/dlq?show=messages", f"/dlq?group={group}", f"/message?id={id_}"]
    pages += [f"/message/edit?id={id_}", "/dlq/replay", f"/dlq/delete?group={group}"]
    pages += [f"/message/delete?id={id_}"]
    for page in pages:
        answer = await browser.get(page)
        assert answer.status_code == 200, page
        for mark in ("\u202e", "\x00", "\u2066", "<script>alert", "<img", "</textarea></script>"):
            assert mark not in answer.text, page
    for query in ("topic", "error", "text", "group", "after", "order", "show"):
        answer = await browser.get("/dlq", params={"show": "messages", query: HOSTILE})
        assert answer.status_code in (200, 400)
        assert "<script>alert" not in answer.text


async def test_a_text_of_a_megabyte_is_cut(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    (id_,) = await die(mq, redis, "orders", ["x" * 1_000_000])
    browser = browse()
    assert len((await browser.get("/dlq?show=messages")).text) < 20_000
    page = (await browser.get(f"/message?id={id_}")).text
    assert len(page) < 60_000
    to = html.unescape(first(r'<a href="([^"]*)">Show all', page))
    assert "x" * 1_000_000 in (await browser.get(f"/{to}")).text


async def test_a_page_of_a_rare_group_does_not_search_all_dead_letters(
    mq: RedisMessageQueue, redis: Redis
) -> None:
    """A page looks at so many messages; of a group, from where the group is."""
    (rare,) = await die(mq, redis, "mails", [0], "BadAddress")
    await mq.produce_many("orders", range(300))
    await bury(redis, death("GatewayDown"), "orders")
    group = await group_of(mq, "mails")
    page = await mq.dlq.list(group=group, look=10)
    assert [letter.id for letter in page.letters] == [rare]
    page = await mq.dlq.list(topic="mails", look=10)
    assert page.letters == []
    looked, pages = page.next, 1
    while not page.letters:
        page = await mq.dlq.list(topic="mails", look=10, after=looked)
        looked, pages = page.next, pages + 1
    assert [letter.id for letter in page.letters] == [rare]
    assert pages == 31
