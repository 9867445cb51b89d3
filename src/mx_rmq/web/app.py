"""The dashboard as an ASGI application.

How to add a page
    A module in ``pages/`` with ``SECTION = Section(routes=…, nav=…, live=…)``, named in
    ``pages/__init__.py``.
    A page is ``async def page(request) -> Response``: ``desk = desk_of(request)`` has the queue, the shared
    looks, the jobs and the redactor; ``return desk.page(request, "name.html", title="…", …)`` renders a
    template that extends ``base.html``. What a page asks the queue for is bounded: a page of at most 200
    rows, a cursor in the URL. Errors of mx-rmq become a page with the right status; let them pass.

Links and names
    Every link and form action is relative to the dashboard's root (``base.html`` has ``<base>``), made with
    ``link("topic", name=…)``. Topics and ids may have any sign, so they are in the query, never in the path.

Text from strangers
    Templates escape everything, and show control characters and marks of direction as signs. Never use
    ``|safe``, ``Markup(text)`` or a ``style`` or ``on…`` attribute: the Content-Security-Policy refuses the
    latter. Long texts go through ``|cut``. Payloads and headers go through ``desk.redact`` before anything
    else, also before a search looks into them and before an export.

How to change something
    ``@act("/topic/pause", right="mend", what="pause", target="topic")`` on ``async def pause(call: Call) ->
    Done`` makes a POST route that checks the right, the origin and the form's token, and writes the trail.
    Its form is ``{{ form_begin("topic/pause", visitor) }} … </form>`` of ``forms.html``. What cannot be
    undone has a GET page before it that says how many messages it is about. No other route takes POST; a test
    looks.

How to work for long
    ``return call.start("Replay 211 dead letters", work, total=211, back=link("dlq"))`` in an act.
    ``work(job)`` calls ``job.progress(done)`` and returns what came of it; the stop button cancels it. The
    person is sent to ``job?id=…``, which survives a reload.

Live figures
    ``SECTION.live = {"topics": render}`` and ``{% block live %}topics{% endblock %}`` in the template.
    ``render(desk, argument)`` returns ``Live({element id: its whole HTML})``, made by
    ``desk.part("file.html", "macro", …)``, the macro that the page itself uses. It reads through
    ``desk.looks``, so many tabs cost no more than one. Without JavaScript the same page shows the
    figures of when it was loaded.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mx_rmq.errors import (
    ConfigError,
    InvalidName,
    InvalidPayload,
    MxRmqError,
    ServerUnavailable,
    UnknownTopic,
)
from mx_rmq.observing.asgi import AsgiApp
from mx_rmq.operating.letters import NotDead
from mx_rmq.web.desk import Desk
from mx_rmq.web.pages import SECTIONS
from mx_rmq.web.poller import Poller
from mx_rmq.web.redaction import Redactor
from mx_rmq.web.security import Doorkeeper, Guard, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from mx_rmq.web.needs import Queue
    from mx_rmq.web.security import Authenticate

_OPENING: Final = 5.0
"""Seconds that a page waits for the queue to open."""
_CLOSING: Final = 2.0
"""Seconds that the end of the dashboard waits for the notes of its jobs."""
_STATUS: Final[dict[type[Exception], int]] = {
    UnknownTopic: 404,
    NotDead: 404,
    ServerUnavailable: 503,
    InvalidName: 400,
    InvalidPayload: 400,
    ConfigError: 400,
}
_TITLES: Final = {
    400: "This does not work",
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed",
    429: "Too many attempts",
    503: "The server does not answer",
}


class Dashboard(AsgiApp):
    """``mq.dashboard()``.

    Args:
        queue: is opened at the first request, unless it is open.
        auth: see ``RedisMessageQueue.dashboard``.
        read_only: refuse every change.
        redact: fields of payloads and headers that are hidden.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        auth: str | Authenticate | None = None,
        read_only: bool = False,
        redact: Iterable[str] = (),
    ) -> None:
        config = queue.config
        keeper = Doorkeeper(auth, read_only=read_only, salt=f"{config.url}\0{config.name}")
        self.desk = Desk(queue, keeper, Redactor(redact), SECTIONS)
        self.poller = Poller(self.desk)
        routes = [route for section in SECTIONS for route in section.routes]
        handlers: dict[Any, Any] = dict.fromkeys(
            (Refused, HTTPException, MxRmqError, ResponseError, Exception), self._failed
        )
        app = self.app = Starlette(routes=routes, exception_handlers=handlers)
        app.state.desk, app.state.poller = self.desk, self.poller
        self._guarded = Guard(app, keeper, self._failed, self._ready)

    def close(self) -> None:
        """End the poller and the jobs."""
        self.poller.stop()
        self.desk.jobs.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or take part in the start and the end of a server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._guarded(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ConfigError(f"the dashboard answers HTTP, not {scope['type']}")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Run by itself: the queue is the dashboard's own, and is closed with it."""
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.shutdown":
                self.close()
                await self.desk.jobs.ended(_CLOSING)
                await self.desk.queue.close()
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    async def _ready(self, request: Request) -> Response | None:
        """Open the queue; what to answer if that is not possible."""
        try:
            async with asyncio.timeout(_OPENING):
                await self.desk.queue.open()
        except TimeoutError:
            shown = self.desk.queue.config.shown_url
            return self._failed(request, ServerUnavailable(f"{shown} has not answered for {_OPENING:g} s"))
        except (MxRmqError, ResponseError) as error:
            return self._failed(request, error)
        return None

    def _failed(self, request: Request, error: Exception) -> Response:
        """A page, or a line for programs, that says why a request failed."""
        status, said, headers = 500, "", dict[str, str]()
        if isinstance(error, Refused):
            status, said, headers = error.status, error.said, error.headers
        elif isinstance(error, HTTPException):
            status, said = error.status_code, str(error.detail)
            headers = dict(error.headers or {})
        elif isinstance(error, MxRmqError | ResponseError):
            status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
            said = str(error)
        else:
            logging.getLogger("mx_rmq").error(
                "the dashboard failed at %s %s", request.method, request.url.path, exc_info=error
            )
            said = "this is a bug of mx-rmq; the log of the application has its traceback"
        title = _TITLES.get(status, "This failed")
        response = self.desk.page(request, "error.html", status=status, title=title, said=said)
        response.headers.update(headers)
        return response
