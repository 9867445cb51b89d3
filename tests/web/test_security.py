"""Who may look and act, and what every response says to browsers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from mx_rmq import RedisMessageQueue, WebUser
from mx_rmq.web.acts import Call, Done, act
from mx_rmq.web.app import Dashboard
from tests.web.conftest import Browser
from tests.words import ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.types import Message

    from mx_rmq.web.users import Right
    from tests.words import MakeQueue

pytestmark = ONE_SERVER

TOKEN = "a-token-that-is-long"


@act("/try/mend", right="mend", what="try", target="topic")
async def mend(call: Call) -> Done:
    """Pause a topic, for tests."""
    await call.desk.queue.pause(call.target)
    return Done(f"paused {call.target}", count=3)


def dashboard(mq: RedisMessageQueue, **options: Any) -> Browser:
    """A dashboard with a page to try acts."""
    app = Dashboard(mq, **options)
    app.app.router.routes.append(mend)
    return Browser(app)


async def token_of(browser: Browser) -> str:
    """The token of the session's forms, as a form of a page would have it."""
    await browser.get("/")
    desk, request = browser.app.desk, browser.http.build_request("GET", "http://localhost/")
    browser.http.cookies.set_cookie_header(request)
    id_ = browser.session
    user = "token" if desk.keeper.token else "local"
    return str(desk.keeper.form_token(id_, WebUser(user)))


# -- who


async def test_without_auth_this_computer_is_answered(browse: Callable[..., Browser]) -> None:
    assert (await browse().get("/")).status_code == 200


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"client": ("10.0.0.7", 1)},
        {"base_url": "http://evil.example"},
        {"headers": {"x-forwarded-for": "10.0.0.7"}},
        {"headers": {"forwarded": "for=10.0.0.7"}},
        {"headers": {"x-forwarded-proto": "https"}},
        {"headers": {"via": "1.1 proxy"}},
        {"headers": {"host": "["}},
        {"headers": {"host": ""}},
        {"client": ("testclient", 1)},
    ],
    ids=lambda each: str(*each),
)
async def test_without_auth_nothing_else_is_answered(
    mq: RedisMessageQueue, elsewhere: dict[str, Any]
) -> None:
    """Not another computer, not a name that another site gave this one, not a proxy on this one."""
    page = await Browser(mq.dashboard(), **elsewhere).get("/")
    assert page.status_code == 403
    assert "dashboard(auth=" in page.text


async def test_a_token_opens_by_its_page_and_by_a_header(mq: RedisMessageQueue) -> None:
    browser = Browser(mq.dashboard(auth=TOKEN), client=("10.0.0.7", 1))
    page = await browser.get("/")
    assert (page.status_code, page.headers["location"]) == (303, "/login")
    wrong = await browser.post("/login", {"token": "another-token-that-is-long"})
    assert wrong.status_code == 401
    assert (await browser.get("/")).status_code == 303
    right = await browser.post("/login", {"token": TOKEN})
    assert right.status_code == 303
    assert "HttpOnly; SameSite=Lax" in right.headers["set-cookie"]
    page = await browser.get("/")
    assert page.status_code == 200
    assert "Log out" in page.text

    program = Browser(mq.dashboard(auth=TOKEN), headers={"authorization": f"Bearer {TOKEN}"})
    assert (await program.get("/")).status_code == 200
    program = Browser(mq.dashboard(auth=TOKEN), headers={"authorization": "Bearer wrong"})
    assert (await program.get("/")).status_code == 401


async def test_a_login_leads_to_the_page_that_was_asked_for(mq: RedisMessageQueue) -> None:
    browser = Browser(mq.dashboard(auth=TOKEN))
    asked = (await browser.get("/dlq/replay?topic=a%2Fb&error=x")).headers["location"]
    assert asked == "/login?to=dlq%2Freplay%3Ftopic%3Da%252Fb%26error%3Dx"
    page = (await browser.get(asked)).text
    assert 'name="to" value="dlq/replay?topic=a%2Fb&amp;error=x"' in page
    wrong = await browser.post("/login", {"token": "another-token-that-is-long", "to": "dlq"})
    assert 'name="to" value="dlq"' in wrong.text
    right = await browser.post("/login", {"token": TOKEN, "to": "dlq/replay?topic=a%2Fb&error=x"})
    assert right.headers["location"] == "/dlq/replay?topic=a%2Fb&error=x"


@pytest.mark.parametrize(
    "to", ["//evil.example", "/\\evil.example", "https://evil.example", "..", "a\n", "é?x"]
)
async def test_a_login_leads_to_no_other_site(mq: RedisMessageQueue, to: str) -> None:
    browser = Browser(mq.dashboard(auth=TOKEN))
    answer = await browser.post("/login", {"token": TOKEN, "to": to})
    assert answer.headers["location"] == "/"
    assert 'name="to"' not in (await browser.get("/login", params={"to": to})).text


async def test_a_session_is_not_forged_and_not_another_dashboards(mq: RedisMessageQueue) -> None:
    browser = Browser(mq.dashboard(auth=TOKEN))
    await browser.post("/login", {"token": TOKEN})
    ((name, value),) = browser.http.cookies.items()
    other = Browser(mq.dashboard(auth=TOKEN + "!"))
    for forged in (value, value[:-1] + ("0" if value[-1] != "0" else "1"), "x.9999999999.", "", "é"):
        page = await other.get("/", headers={"cookie": f"{other.app.desk.keeper.cookie}={forged}".encode()})
        assert page.status_code == 303
    # Another process of the application has the same dashboard.
    same = await Browser(mq.dashboard(auth=TOKEN)).get("/", headers={"cookie": f"{name}={value}"})
    assert same.status_code == 200


async def test_guessing_is_stopped(mq: RedisMessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mx_rmq.web.pages.login._PAUSE", 0)
    browser = Browser(mq.dashboard(auth=TOKEN))
    codes = [(await browser.post("/login", {"token": f"guess {n}"})).status_code for n in range(11)]
    assert codes == [401] * 10 + [429]
    assert (await browser.post("/login", {"token": TOKEN})).status_code == 429


async def test_who_guesses_does_not_lock_out_others(
    mq: RedisMessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger could else keep all operators out with ten requests a minute."""
    monkeypatch.setenv("MX_RMQ_WEB_USERS", "anna:long-secret")
    monkeypatch.setattr("mx_rmq.web.security._MOST_ADDRESSES", 20)
    app = mq.dashboard()
    wrong = ("anna", "guess")
    codes = []
    for n in range(11):  # a computer has many addresses of its IPv6 network
        stranger = Browser(app, client=(f"2001:db8::{n:x}", 1))
        codes.append((await stranger.get("/", auth=wrong)).status_code)
    assert codes == [401] * 10 + [429]
    anna = Browser(app, client=("10.0.0.7", 1))
    assert (await anna.get("/", auth=("anna", "long-secret"))).status_code == 200
    for n in range(30):  # what is known of strangers is bounded
        await Browser(app, client=(f"10.1.0.{n}", 1)).get("/", auth=wrong)
    keeper: Any = app
    assert len(keeper.desk.keeper._failures) == 20


async def test_names_and_passwords_come_from_the_environment(
    mq: RedisMessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_RMQ_WEB_USERS", "anna:long-secret, ben:other-secret")
    browser = Browser(mq.dashboard(), client=("10.0.0.7", 1))
    page = await browser.get("/")
    assert page.status_code == 401
    assert page.headers["www-authenticate"].startswith("Basic")
    assert (await browser.get("/", auth=("anna", "other-secret"))).status_code == 401
    assert (await browser.get("/", auth=("eve", ""))).status_code == 401
    page = await browser.get("/", auth=("ben", "other-secret"))
    assert page.status_code == 200
    assert "· ben" in page.text


async def test_the_application_says_who_comes_and_what_they_may(mq: RedisMessageQueue) -> None:
    async def asked(request: Request) -> object:
        name = request.headers.get("x-name")
        if name == "nobody":
            return None
        if name == "stranger":
            return RedirectResponse("/host/login")
        if name == "raise":
            raise HTTPException(402, "pay first")
        may: list[Right] = [] if name == "blind" else ["look"]
        return WebUser(str(name), may)

    browser = Browser(mq.dashboard(auth=asked), client=("10.0.0.7", 1))
    found = {
        name: (await browser.get("/", headers={"x-name": name}))
        for name in ("anna", "nobody", "stranger", "blind", "raise")
    }
    codes = {name: page.status_code for name, page in found.items()}
    assert codes == {"anna": 200, "nobody": 401, "stranger": 307, "blind": 403, "raise": 402}
    assert "anna, may only look" in found["anna"].text


@pytest.mark.parametrize("found", [False, 0, "", {}, True, object()])
async def test_what_is_no_user_is_not_let_in(mq: RedisMessageQueue, found: object) -> None:
    """A function that only says whether someone may come does not open the door to those who may not."""
    page = await Browser(mq.dashboard(auth=lambda _: found), client=("10.0.0.7", 1)).get("/")
    assert page.status_code == (400 if found else 401)
    if found:
        assert "what auth returns must be a WebUser, a name, None or a response" in page.text


# -- what changes something


async def test_an_act_is_done_and_noted(mq: RedisMessageQueue) -> None:
    await mq.produce("orders", 1)
    browser = dashboard(mq)
    answer = await browser.post("/try/mend", {"form_token": await token_of(browser), "topic": "orders"})
    assert answer.status_code == 303
    assert (await mq.counts()).topics["orders"].paused
    (noted,) = await mq.trail()
    assert (noted.who, noted.what, noted.target, noted.count) == ("local", "try", "orders", 3)
    page = await browser.http.get(answer.headers["location"])
    assert '<p class="note" role="status">paused orders</p>' in page.text
    other = await dashboard(mq).http.get(answer.headers["location"])
    assert "paused orders</p>" not in other.text, "a note is bound to the session"


async def test_a_failed_act_is_noted_too(mq: RedisMessageQueue) -> None:
    browser = dashboard(mq)
    answer = await browser.post("/try/mend", {"form_token": await token_of(browser), "topic": "none"})
    assert answer.status_code == 404
    (noted,) = await mq.trail()
    assert noted.said.startswith("failed: there is no topic 'none'")


async def test_a_change_needs_the_token_of_the_session(mq: RedisMessageQueue) -> None:
    await mq.produce("orders", 1)
    browser, other = dashboard(mq), dashboard(mq)
    await browser.get("/")
    for wrong in ("", "0" * 64, await token_of(other)):
        answer = await browser.post("/try/mend", {"form_token": wrong, "topic": "orders"})
        assert answer.status_code == 403
    assert not (await mq.counts()).topics["orders"].paused
    assert await mq.trail() == []


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:8080", "http://[", None])
async def test_a_change_comes_from_the_same_origin(mq: RedisMessageQueue, origin: str | None) -> None:
    await mq.produce("orders", 1)
    browser = dashboard(mq)
    fields = {"form_token": await token_of(browser), "topic": "orders"}
    assert (await browser.post("/try/mend", fields, origin=origin)).status_code == 403
    browser.http.headers["sec-fetch-site"] = "same-site"
    assert (await browser.post("/try/mend", fields)).status_code == 403


@pytest.mark.parametrize(
    "options", [{"read_only": True}, {"auth": lambda _: WebUser("local", ["look", "delete"])}]
)
async def test_rights_are_enforced_in_the_routes(mq: RedisMessageQueue, options: dict[str, Any]) -> None:
    await mq.produce("orders", 1)
    browser = dashboard(mq, **options)
    answer = await browser.post("/try/mend", {"form_token": await token_of(browser), "topic": "orders"})
    assert answer.status_code == 403
    assert "needs the right" in answer.text
    assert not (await mq.counts()).topics["orders"].paused


async def test_a_get_changes_nothing(mq: RedisMessageQueue) -> None:
    assert (await dashboard(mq).get("/try/mend")).status_code == 405


async def test_a_form_is_bounded(mq: RedisMessageQueue) -> None:
    browser = dashboard(mq)
    fields = {"form_token": await token_of(browser), "topic": "x" * 4_000_000}
    assert (await browser.post("/try/mend", fields)).status_code == 413
    many = {f"f{n}": "1" for n in range(3000)}
    assert (await browser.post("/try/mend", many)).status_code == 400


async def test_a_form_that_does_not_arrive_is_not_waited_for(
    mq: RedisMessageQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mx_rmq.web.acts._PATIENCE", 0.01)
    browser = Browser(mq.dashboard(auth=TOKEN))
    headers = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}

    async def slow() -> AsyncIterator[bytes]:
        yield b"token="
        await asyncio.Event().wait()

    answer = await browser.http.post("/login", content=slow(), headers=headers)
    assert answer.status_code == 408

    async def send(message: Message) -> None:
        said.append(message)

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    said: list[Message] = []
    raw = [(name.encode(), value.encode()) for name, value in {**headers, "host": "localhost"}.items()]
    scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"", "headers": raw}
    await browser.app({**scope, "scheme": "http", "client": ("10.0.0.7", 1)}, gone, send)
    assert said[0]["status"] == 400
    assert "bug of mx-rmq" not in caplog.text
    assert "failed" not in caplog.text


# -- what browsers are told


@pytest.mark.parametrize("path", ["/", "/nothing", "/login", "/static/app.js", "/job"])
async def test_every_response_has_the_headers(browse: Callable[..., Browser], path: str) -> None:
    headers = (await browse().get(path)).headers
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    cookies = headers.get_list("set-cookie")
    assert all(cookie.startswith("mx_rmq_session_") for cookie in cookies)


async def test_the_cookie_is_secure_over_https(mq: RedisMessageQueue) -> None:
    page = await Browser(mq.dashboard(), base_url="https://localhost").get("/")
    assert "; Secure" in page.headers["set-cookie"]


async def test_the_cookie_is_for_the_path_as_browsers_write_it(mq: RedisMessageQueue) -> None:
    """Any prefix will do; one that is not quoted never fits, or is no header at all."""
    app = Starlette(routes=[Mount("/очередь/a b@1", mq.dashboard())])
    page = await Browser(app).get("/%D0%BE%D1%87%D0%B5%D1%80%D0%B5%D0%B4%D1%8C/a%20b@1/")
    assert page.status_code == 200
    assert "; Path=/%D0%BE%D1%87%D0%B5%D1%80%D0%B5%D0%B4%D1%8C/a%20b@1/; " in page.headers["set-cookie"]


async def test_two_dashboards_of_one_computer_keep_their_sessions(
    mq: RedisMessageQueue, make_queue: MakeQueue
) -> None:
    """Browsers send the cookies of all ports of a host to each of them."""
    await mq.produce("orders", 1)
    one, other = dashboard(mq), dashboard(make_queue(name="other"))
    token = await token_of(one)
    await other.get("/")
    one.http.cookies.update(other.http.cookies)
    assert len(one.http.cookies) == 2
    answer = await one.post("/try/mend", {"form_token": token, "topic": "orders"})
    assert answer.status_code == 303
