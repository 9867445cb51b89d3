"""Long work: it goes on without a page, tells how far it is, and can be stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mx_rmq import ConfigError, NoHandler, WebUser
from mx_rmq.web.acts import Call, Done, act
from mx_rmq.web.app import Dashboard
from mx_rmq.web.jobs import Job, Jobs
from tests.web.conftest import Browser
from tests.words import ONE_SERVER, bury, eventually

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from mx_rmq import RedisMessageQueue
    from tests.proxy import Proxy
    from tests.words import MakeQueue


@ONE_SERVER
async def test_a_job_has_a_page_that_survives_a_reload_and_a_stop_button(mq: RedisMessageQueue) -> None:
    go_on = asyncio.Event()

    @act("/try/long", right="mend", what="try long", target="topic")
    async def long(call: Call) -> Done:
        async def work(job: Job) -> str:
            job.progress(7)
            await go_on.wait()
            return "all done"

        return call.start("Do <much>", work, total=10, back="dlq")

    app = Dashboard(mq)
    app.app.router.routes.append(long)
    browser = Browser(app)
    await browser.get("/")
    id_ = browser.session
    token = app.desk.keeper.form_token(id_, WebUser("local"))
    answer = await browser.post("/try/long", {"form_token": token, "topic": "orders"})
    page = await browser.http.get(answer.headers["location"])
    assert "Do &lt;much&gt;" in page.text
    assert 'max="10" value="7"' in page.text
    assert await browser.token(answer.headers["location"]) == token
    (job,) = app.desk.jobs.all()
    assert (await browser.post("/job/stop", {"form_token": token, "id": job.id})).status_code == 303
    await eventually(lambda: not job.is_running)
    page = await browser.get(f"/job?id={job.id}")
    assert "stopped after 7" in page.text
    await eventually(lambda: job.ended_at is not None)
    trail = await mq.trail()
    assert [(each.what, each.count) for each in trail] == [("try long", 7), ("try long", 0)]
    assert "Do &lt;much&gt;" in (await browser.get("/job")).text
    assert (await browser.get("/job?id=none")).status_code == 404


async def test_jobs_are_bounded_and_say_how_they_ended() -> None:
    jobs, ended = Jobs(), list[Job]()

    async def note(job: Job) -> None:
        ended.append(job)

    async def wait(_: Job) -> str:
        await asyncio.Event().wait()
        return ""

    async def fail(_: Job) -> str:
        raise NoHandler("for nothing")

    async def well(job: Job) -> str:
        job.progress(3)
        return "well"

    for n in range(60):
        job = jobs.start(Job(str(n), "anna"), well if n % 2 else fail, ended=note)
        while job.is_running:
            await asyncio.sleep(0)
    assert len(jobs.all()) == 50
    assert {(job.state, job.said) for job in ended} == {("done", "well"), ("failed", "for nothing")}
    running = [jobs.start(Job("wait", "anna"), wait, ended=note) for _ in range(4)]
    with pytest.raises(ConfigError, match="4 jobs are running"):
        jobs.start(Job("more", "anna"), wait, ended=note)
    # Those who may only look can search, and cannot keep others from mending.
    running += [jobs.start(Job("look", "ben", only_looks=True), wait, ended=note) for _ in range(4)]
    with pytest.raises(ConfigError, match="4 jobs are running"):
        jobs.start(Job("more", "ben", only_looks=True), wait, ended=note)
    jobs.stop()
    await eventually(lambda: not any(job.is_running for job in running))


@ONE_SERVER
async def test_the_trail_says_who_stopped_a_job_and_how_far_it_came(mq: RedisMessageQueue) -> None:
    """One is stopped by another person, and one by the end of the dashboard."""
    going = [asyncio.Event(), asyncio.Event()]

    @act("/try/long", right="mend", what="try long")
    async def long(call: Call) -> Done:
        async def work(job: Job) -> str:
            job.progress(7)
            going[len(app.desk.jobs.all()) - 1].set()
            await asyncio.Event().wait()
            return ""

        return call.start("Do much", work)

    name = "anna"
    app = Dashboard(mq, auth=lambda _: name)
    app.app.router.routes.append(long)
    browser = Browser(app)

    async def send(path: str, **fields: str) -> None:
        await browser.get("/")
        id_ = browser.session
        token = app.desk.keeper.form_token(id_, WebUser(name))
        assert (await browser.post(path, {"form_token": token, **fields})).status_code == 303

    await send("/try/long")
    await going[0].wait()
    name = "ben"
    (first,) = app.desk.jobs.all()
    await send("/job/stop", id=first.id)
    await eventually(lambda: first.ended_at is not None)
    await send("/try/long")
    await going[1].wait()
    app.close()
    await app.desk.jobs.ended(5.0)
    ends = [(act.who, act.said) for act in await mq.trail() if act.count == 7]
    assert ends == [
        ("ben", "Do much: stopped: stopped after 7 by the end of the dashboard; what was done stays done"),
        ("anna", "Do much: stopped: stopped after 7 by ben; what was done stays done"),
    ]


@ONE_SERVER
async def test_the_trail_has_the_end_of_a_job_that_failed_because_the_server_was_away(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy
) -> None:
    mq, outside = make_queue(proxy.url), make_queue()
    await outside.produce_many("orders", range(200))
    await bury(redis, None, "orders")
    app = Dashboard(mq)
    browser = Browser(app)
    await browser.get("/")
    token = app.desk.keeper.form_token(browser.session, WebUser("local"))
    fields = {"form_token": token, "topic": "orders", "rate": "100"}
    assert (await browser.post("/dlq/replay", fields)).status_code == 303
    (job,) = app.desk.jobs.all()
    await eventually(lambda: job.done)
    proxy.away()
    await eventually(lambda: not job.is_running)
    assert job.state == "failed"
    assert f"{job.done:,}" in (await browser.get(f"/job?id={job.id}")).text, "its page needs no server"
    proxy.back()
    await eventually(lambda: job._watch is None or job._watch.done())
    end, _begin = await outside.trail()
    assert (end.what, end.count) == ("replay", job.done)
    assert end.said.startswith(f"{job.title}: failed: ")
    app.close()
