"""The dashboard of a queue on a real server, asked over ASGI."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mx_rmq import RedisMessageQueue
    from mx_rmq.web.app import Dashboard

LOCAL = ("127.0.0.1", 40000)


class Browser:
    """What a person does in a browser, without one."""

    def __init__(self, app: Any, root: str = "", *, client: tuple[str, int] = LOCAL, **options: Any) -> None:
        self.app = app
        transport = httpx.ASGITransport(app, client=client, raise_app_exceptions=False)
        options = {"base_url": "http://localhost", "headers": {"accept": "text/html"}} | options
        self.http = httpx.AsyncClient(transport=transport, **options)
        self._root = root

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(f"{self._root}{path}", **options)

    async def token(self, page: str = "/job") -> str:
        """The token that forms carry; any page of ours that has a form has it."""
        visitor = await self.get(page)
        found = re.search(r'name="form_token" value="(\w+)"', visitor.text)
        assert found, visitor.text
        return found[1]

    @property
    def session(self) -> str:
        """The id of the session, as the dashboard's cookie has it."""
        return str(self.http.cookies[self.app.desk.keeper.cookie]).partition(".")[0]

    async def post(
        self, path: str, data: dict[str, Any], *, origin: str | None = "http://localhost", **options: Any
    ) -> httpx.Response:
        headers = {} if origin is None else {"origin": origin}
        return await self.http.post(f"{self._root}{path}", data=data, headers=headers, **options)


@pytest.fixture
async def browse(mq: RedisMessageQueue) -> AsyncIterator[Callable[..., Browser]]:
    """Opens the dashboard of ``mq``, with its options."""
    opened: list[Dashboard] = []

    def browse(**options: Any) -> Browser:
        app: Any = mq.dashboard(**options)
        opened.append(app)
        return Browser(app)

    yield browse
    for app in opened:
        app.close()
