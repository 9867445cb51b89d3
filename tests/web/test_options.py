"""What a dashboard is made with, without a server."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from mx_rmq import ConfigError, RedisMessageQueue
from mx_rmq.cli.web import _listen
from mx_rmq.web.pages import SECTIONS
from mx_rmq.web.security import Doorkeeper
from tests.web.conftest import Browser

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"auth": "short"}, "16 characters or more, got 5"),
        ({"auth": 7}, "auth must be a token"),
        ({"redact": "password"}, "redact must be names"),
        ({"redact": [""]}, "redact must be names"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RedisMessageQueue("embedded://").dashboard(**options)


def test_a_password_is_not_shown_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MX_RMQ_WEB_USERS", "anna:hush")
    with pytest.raises(ConfigError) as raised:
        RedisMessageQueue("embedded://").dashboard()
    assert "hush" not in str(raised.value)


def test_every_route_that_takes_a_post_is_an_act() -> None:
    posts = [
        route
        for section in SECTIONS
        for route in section.routes
        if isinstance(route, Route) and (route.methods or set()) - {"GET", "HEAD"}
    ]
    assert [route.path for route in posts if not str(route.name).startswith("act:")] == ["/login"]


async def test_a_server_that_is_away_is_said_in_a_page() -> None:
    mq = RedisMessageQueue("unix:///nowhere/at/all", name="q", patience=0.1)
    page = await Browser(mq.dashboard()).get("/")
    assert page.status_code == 503
    assert "The server does not answer" in page.text


def test_an_answer_in_two_parts_does_not_wait_for_an_acknowledgement() -> None:
    """Headers and body are written apart; with Nagle's algorithm every page took 40 ms longer."""
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_users_that_the_docs_show_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"MX_RMQ_WEB_USERS=([^`]+)`", (ROOT / "docs" / "dashboard.md").read_text())
    assert found
    monkeypatch.setenv("MX_RMQ_WEB_USERS", found[1])
    assert not Doorkeeper(None, read_only=False, salt="").is_open
