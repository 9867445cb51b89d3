"""The page of a message, on a real server."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import Retry
from mx_rmq.message import Death
from mx_rmq.storage.contract import NewMessage
from mx_rmq.web.redaction import HIDDEN
from tests.web.test_dead_letters import death, die, first, opened, send, text_of
from tests.words import ONE_SERVER, bury, eventually, store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.web.conftest import Browser
    from tests.words import MakeQueue

pytestmark = ONE_SERVER
__all__ = ["opened"]  # the fixture

NUMBERS = '{"id":9007199254740993,"exact":0.10000000000000000001,"far":1e400,"a":1,"a":2}'


def payload_of(page: str) -> str:
    found = re.search(r'<pre id="payload"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert found
    return html.unescape(found[1])


async def put(redis: Redis, payload: str, id_: str = "m1") -> None:
    """Store a message with a payload that is written so, as another program may."""
    body = f'{{"v":1,"id":"{id_}","topic":"orders","payload":{payload},"created_at":1763230000.25}}'
    await store_of(redis).produce("orders", [NewMessage(id_, body.encode())])


async def test_every_state_has_its_sentence_and_its_actions(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await mq.produce("orders", 1, message_id="dead")
    await bury(redis, death("GatewayDown"), "orders")
    await mq.produce("orders", 1, message_id="pending")
    await mq.produce("orders", 1, message_id="delayed", delay=60)
    browser = browse()
    for id_, said, action in (
        ("dead", "Has been dead since", "Edit and replay…"),
        ("pending", "Is pending: no live worker has a handler for the topic", "Withdraw…"),
        ("delayed", "Is delayed until", "Withdraw…"),
        ("gone", "There is no message gone", ""),
    ):
        page = (await browser.get(f"/message?id={id_}")).text
        assert f'data-state="{id_}"' in page
        assert said in text_of(page)
        assert action in text_of(page)
    assert (await browser.get("/message?id=not an id")).status_code == 400
    assert (await browser.get("/message")).status_code == 400


async def test_numbers_are_shown_as_they_are_stored(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    await put(redis, NUMBERS)
    page = (await browse().get("/message?id=m1")).text
    assert "".join(payload_of(page).split()) == NUMBERS
    assert (await browse().get("/message/payload?id=m1")).text == NUMBERS
    hidden = (await browse(redact=["far"]).get("/message?id=m1")).text
    assert "1e400" not in hidden
    assert "0.10000000000000000001" in hidden


async def test_its_life_is_told_in_order(
    make_queue: MakeQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    mq = make_queue()

    @mq.handler("orders", retry=Retry(max_attempts=2, base=0.01, cap=0.01))
    async def order(_: int) -> None:
        raise ConnectionError("gateway is <down>")

    mq.start()
    await mq.produce("orders", 1, message_id="m1", priority="high", headers={"trace": "t-1"})

    async def is_dead() -> bool:
        return (await mq.find("m1")).state == "dead"

    await eventually(is_dead)
    browser = opened()
    await send(browser, "/message/replay", {"id": "m1"})

    async def died_again() -> bool:
        facts = await mq.find("m1")
        return facts.state == "dead" and facts.message is not None and facts.message.replays == 1

    await eventually(died_again)
    page = (await browser.get("/message?id=m1")).text
    found = re.search(r'<ol class="timeline".*?</ol>', page, re.DOTALL)
    assert found
    life = [text_of(each) for each in re.findall(r"<li.*?</li>", found[0], re.DOTALL)]
    assert [re.sub(r" (now|\d+s)$", "", " ".join(each.split()[:2])) for each in life] == [
        *("produced", "attempt 1", "attempt 2", "replayed by", "attempt 3", "attempt 4"),
        *("replayed once", "dead, died"),
    ]
    assert "ConnectionError: gateway is <down>" in life[1]
    assert "test_message.py" in life[1]
    assert "trace t-1" in text_of(page)


async def test_a_message_is_edited_with_a_preview_and_replayed(
    make_queue: MakeQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    """The whole way without JavaScript: the editor, a mistake, the difference, the replay."""
    mq = make_queue()
    seen: list[Any] = []
    await mq.produce("orders", {"amount": "12x", "id": 9007199254740993, "mail": "a@example.org"})
    (id_,) = await bury(redis, death("BadAmount"), "orders")

    @mq.handler("orders")
    async def order(payload: dict[str, Any]) -> None:
        seen.append(payload)

    browser = opened(redact=["mail"])
    page = (await browser.get(f"/message/edit?id={id_}")).text
    text = html.unescape(first(r"<textarea[^>]*>(.*?)</textarea>", page))
    died = first(r'name="died" value="([^"]*)"', page)
    assert "example.org" not in page
    fields = {"id": id_, "died": died}
    wrong = await send(browser, "/message/edit/preview", fields | {"payload": text[:-1]})
    assert wrong.status_code == 400
    assert "This is not JSON: Expecting" in text_of(wrong.text)
    same = await send(browser, "/message/edit/preview", fields | {"payload": text})
    assert "The payload is the same" in same.text
    new = text.replace("12x", "12")
    right = await send(browser, "/message/edit/preview", fields | {"payload": new})
    assert '- removed: "amount": "12x"' in text_of(right.text)
    assert '+ added: "amount": "12"' in text_of(right.text)
    assert (await mq.find(id_)).state == "dead"
    assert await mq.trail() == []
    answer = await send(browser, "/message/edit", fields | {"payload": new})
    assert answer.status_code == 303
    mq.start()
    await eventually(lambda: seen)
    assert seen == [{"amount": "12", "id": 9007199254740993, "mail": "a@example.org"}]
    assert [(act.what, act.target, act.count) for act in await mq.trail()] == [("edit and replay", id_, 1)]


async def test_a_form_sends_back_what_it_was_given(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    """Also what a page shows as something else, such as a no-break space and an invisible joiner."""
    (id_,) = await die(mq, redis, "orders", [{"amount": "12x"}])
    browser, new = opened(), '{"amount": "10\u00a0000 \u200d €"}'
    fields = {"id": id_, "died": repr((await mq.dlq.get(id_)).died_at), "payload": new}
    page = (await send(browser, "/message/edit/preview", fields)).text
    assert html.unescape(first(r'name="payload" value="([^"]*)"', page)) == new
    assert html.unescape(first(r"<textarea[^>]*>(.*?)</textarea>", page)) == new
    page = (await browser.get("/dlq", params={"text": "a\u00a0b"})).text
    assert 'value="a&#xa0;b"' in page


async def test_the_way_to_the_content_stays_on_the_page(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    (id_,) = await die(mq, redis, "orders", [1])
    assert f'href="/message?id={id_}#main"' in (await opened().get(f"/message?id={id_}")).text


async def test_an_edit_that_would_lose_a_hidden_value_is_refused(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    """The sign in its place would become the value."""
    (id_,) = await die(mq, redis, "orders", [{"mail": "a@example.org"}])
    died = repr((await mq.dlq.get(id_)).died_at)
    browser = opened(redact=["mail"])
    for path in ("/message/edit/preview", "/message/edit"):
        fields = {"id": id_, "died": died, "payload": json.dumps({"to": HIDDEN})}
        answer = await send(browser, path, fields)
        assert answer.status_code == 400
        assert "at to it is not certain which hidden value" in text_of(answer.text)
        assert "not JSON" not in answer.text
    assert (await mq.dlq.get(id_)).payload == {"mail": "a@example.org"}


@pytest.mark.parametrize("wrong", ["", "{", "NaN", "[1,]", '{"a":1} x', "1" * 2_000_000, "[" * 100_000])
async def test_what_is_no_payload_is_not_replayed(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser], wrong: str
) -> None:
    (id_,) = await die(mq, redis, "orders", [1])
    died = repr((await mq.dlq.get(id_)).died_at)
    for path in ("/message/edit/preview", "/message/edit"):
        answer = await send(opened(), path, {"id": id_, "died": died, "payload": wrong})
        assert answer.status_code in (400, 413)
    assert (await mq.dlq.get(id_)).payload == 1


async def test_an_edit_of_what_has_died_again_is_refused(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    (id_,) = await die(mq, redis, "orders", [1])
    answer = await send(opened(), "/message/edit", {"id": id_, "died": "1.0", "payload": "2"})
    assert answer.status_code == 409
    assert (await mq.dlq.get(id_)).payload == 1


async def test_a_deletion_of_what_has_died_again_is_refused(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    """Someone else has replayed it since the question, so it may be dead of something else now."""
    (id_,) = await die(mq, redis, "orders", [1])
    browser = opened()
    died = first(r'name="died" value="([^"]*)"', (await browser.get(f"/message/delete?id={id_}")).text)
    await mq.dlq.replay(id_)
    await bury(redis, death("BadAmount"), "orders")
    answer = await send(browser, "/message/delete", {"id": id_, "died": died})
    assert answer.status_code == 409
    assert (await mq.dlq.get(id_)).kind == "BadAmount"
    died = first(r'name="died" value="([^"]*)"', (await browser.get(f"/message/delete?id={id_}")).text)
    assert (await send(browser, "/message/delete", {"id": id_, "died": died})).status_code == 303
    assert await mq.dlq.count() == 0


async def test_exact_numbers_survive_an_edit(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    await put(redis, '{"exact":0.10000000000000000001,"mark":"\u202e","n":1}')
    (id_,) = await bury(redis, death("BadAmount"), "orders")
    browser = opened()
    page = (await browser.get(f"/message/edit?id={id_}")).text
    text = html.unescape(first(r"<textarea[^>]*>(.*?)</textarea>", page))
    assert "\\u202e" in text
    died = repr((await mq.dlq.get(id_)).died_at)
    new = text.replace('"n": 1', '"n": 2')
    await send(browser, "/message/edit", {"id": id_, "died": died, "payload": new})
    stored = (await mq.find(id_)).message
    assert stored is not None
    assert bytes(stored.payload).decode() == '{"exact":0.10000000000000000001,"mark":"\\u202e","n":2}'
    assert json.loads(bytes(stored.payload))["mark"] == "\u202e"


async def test_a_delayed_message_is_run_now(mq: RedisMessageQueue, opened: Callable[..., Browser]) -> None:
    await mq.produce("orders", 1, message_id="later", delay=3600)
    browser = opened()
    answer = await send(browser, "/message/run", {"id": "later"})
    assert "due+now" in answer.headers["location"]
    assert "is due already" in text_of((await browser.get("/scheduled")).text)
    assert "made due at once by" in text_of((await browser.get("/message?id=later")).text)
    await mq.cancel("later")
    answer = await send(browser, "/message/run", {"id": "later"})
    assert "nothing+was+done" in answer.headers["location"]


async def test_a_waiting_message_is_withdrawn_and_a_dead_one_deleted_after_a_question(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    (dead,) = await die(mq, redis, "orders", [1])
    await mq.produce("orders", 1, message_id="later", delay=60)
    browser = opened()
    assert "Withdraw 1 message?" in text_of((await browser.get("/message/cancel?id=later")).text)
    await send(browser, "/message/cancel", {"id": "later"})
    assert (await mq.find("later")).state == "gone"
    answer = await send(browser, "/message/cancel", {"id": "later"})
    assert "not+withdrawn" in answer.headers["location"]
    assert "Delete 1 message?" in text_of((await browser.get(f"/message/delete?id={dead}")).text)
    await send(browser, "/message/delete", {"id": dead})
    assert await mq.dlq.count() == 0
    assert (await send(browser, "/message/delete", {"id": dead})).status_code == 404
    acts = [(act.what, act.count) for act in await mq.trail()]
    assert acts == [("delete", 0), ("delete", 1), ("cancel", 0), ("cancel", 1)]


async def test_bytes_that_are_no_message_are_shown_unless_fields_are_hidden(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    await store_of(redis).produce("orders", [NewMessage("m1", b"secret \xff\x00 <script>")])
    browser = opened()
    page = (await browser.get("/message?id=m1")).text
    assert "73 65 63 72 65 74 20 ff 00" in page
    assert "<script> " not in page
    assert "secret" not in (await opened(redact=["x"]).get("/message?id=m1")).text
    (delivery,) = (await store_of(redis).claim("orders", 1, lease=15, holder="w1")).deliveries
    gone = Death(reason="unparsable", error="no message")
    await store_of(redis).move_to_dlq("orders", [(delivery, delivery.body, b'{"reason":"unparsable"}')])
    assert gone.reason == (await mq.dlq.get("m1")).reason
    assert (await browser.get("/message/edit?id=m1")).status_code == 400
    assert (await browser.get("/message/payload?id=m1")).status_code == 404
    assert (await browser.get("/dlq?show=messages")).status_code == 200


async def test_what_is_nested_too_deep_to_hide_fields_in_is_not_shown(
    mq: RedisMessageQueue, redis: Redis, opened: Callable[..., Browser]
) -> None:
    """Another program may store it; no page and no search fails of it, and none shows it."""
    await put(redis, '{"password":"s3cret","deep":' + "[" * 900 + "]" * 900 + "}")
    await mq.produce("orders", {"password": "s3cret", "x": "needle"}, message_id="m2")
    browser = opened(redact=["password"])
    pages = [await browser.get("/topic?name=orders"), await browser.get("/message?id=m1")]
    await send(browser, "/search/payloads", {"q": "needle"})
    (job,) = browser.app.desk.jobs.all()
    await eventually(lambda: not job.is_running)
    assert job.said.startswith("1 message found among 2")
    await bury(redis, None, "orders")
    pages += [await browser.get("/dlq?show=messages"), await browser.get("/dlq/export")]
    assert [page.status_code for page in pages] == [200] * 4
    assert [json.loads(line)["id"] for line in pages[-1].text.splitlines()] == ["m1", "m2"]
    for page in pages:
        assert "s3cret" not in page.text
        assert "[[[[" not in page.text


async def test_the_page_follows_the_message_live(
    mq: RedisMessageQueue, redis: Redis, browse: Callable[..., Browser]
) -> None:
    (id_,) = await die(mq, redis, "orders", [1])
    browser = browse()
    desk = browser.app.desk
    assert 'data-state="dead"' in (await desk.live["message"](desk, id_)).html["now"]
    await mq.dlq.replay(id_)
    assert 'data-state="pending"' in (await desk.live["message"](desk, id_)).html["now"]
    groups = await desk.live["groups"](desk, b'["","",""]'.hex())
    assert "0 dead letters" in groups.html["dead-total"]
    assert (await desk.live["groups"](desk, "nonsense")).html == {}
