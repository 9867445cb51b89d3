"""Acts: everything that changes something. Each is a POST with a right, an origin, a token and a trail."""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mx_rmq.errors import MxRmqError
from mx_rmq.web.desk import address, desk_of
from mx_rmq.web.jobs import Job
from mx_rmq.web.security import Refused, check_origin, visitor_of
from mx_rmq.web.words import link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from mx_rmq.web.desk import Desk
    from mx_rmq.web.jobs import Work
    from mx_rmq.web.users import Right, WebUser

TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
_MOST_FIELDS: Final = 2000
_AGAIN: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Seconds after which the end of a job is noted again, if that was not possible."""
_PATIENCE: Final = 30.0
"""Seconds that a form may take to arrive; a sender that stops would keep its connection open."""
_ENCODED: Final = 3
"""Bytes of a form for one byte of a payload, at most."""


class Form:
    """The fields of a form; a name may have several values."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def get(self, name: str, default: str = "") -> str:
        """The first value of a field."""
        return next((value for key, value in self._pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        """All values of a field, such as those of ticked boxes."""
        return [value for key, value in self._pairs if key == name]


@dataclass(frozen=True, slots=True)
class Done:
    """What an act did."""

    said: str
    """What to tell the person on the next page."""
    to: str = ""
    """The next page, relative to the dashboard's root, as ``link()`` makes it."""
    count: int = 0
    """How many messages were changed."""


@dataclass(frozen=True, slots=True)
class Call:
    """An act that was asked for, and may be done."""

    request: Request
    desk: Desk
    user: WebUser
    form: Form
    what: str
    target: str
    right: Right = "mend"

    def start(self, title: str, work: Work, *, total: int | None = None, back: str = "") -> Done:
        """Do it as a job, and go to the page of that job; takes what ``begin`` takes."""
        job = self.begin(title, work, total=total, back=back)
        return Done(f"{title}: begun", link("job", id=job.id))

    def begin(self, title: str, work: Work, *, total: int | None = None, back: str = "") -> Job:
        """Do it as a job; the trail has its beginning and its end, unless it only looks.

        Args:
            title: what is done, in words.
            work: does it: calls ``job.progress(done)`` and returns what came of it.
            total: how much there is to do, if that is known.
            back: the page to go to afterwards, relative to the dashboard's root.
        """

        async def ended(job: Job) -> None:
            self.desk.looks.forget()
            if self.right == "look":
                return
            # A server that is away, which is why jobs fail, cannot be told so at once.
            for pause in _AGAIN:
                said = f"{job.title}: {job.state}: {job.said}"
                if not await note(self.desk, self.user, self.what, self.target, job.done, said):
                    return
                await asyncio.sleep(pause)

        job = Job(title, self.user.name, total, back, only_looks=self.right == "look")
        return self.desk.jobs.start(job, work, ended=ended)


def act(
    path: str, *, right: Right, what: str, target: str = ""
) -> Callable[[Callable[[Call], Awaitable[Done | Response]]], Route]:
    """Declare an act; the decorated function becomes a route, for ``SECTION.routes``.

    Args:
        path: where forms send it, such as ``/topic/pause``.
        right: what the user must have. Acts that only ``look``, such as a search, leave no note in the trail.
        what: the word for the trail.
        target: the field of the form that names what it is done to.
    """

    def declare(function: Callable[[Call], Awaitable[Done | Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            desk, visitor = desk_of(request), visitor_of(request)
            check_origin(request)
            if not visitor.may(right):
                raise Refused(403, f"{visitor.user.name} may not {what}: it needs the right {right!r}")
            form = await read_form(request, desk.queue.config.max_bytes)
            if not hmac.compare_digest(form.get(TOKEN).encode(), visitor.form_token.encode()):
                raise Refused(403, "this form is too old; go back, reload the page and try again")
            on = form.get(target) if target else ""
            try:
                done = await function(Call(request, desk, visitor.user, form, what, on, right))
            except MxRmqError as error:
                if right != "look":
                    await note(desk, visitor.user, what, on, 0, f"failed: {error}")
                raise
            said = done.said if isinstance(done, Done) else ""
            if right != "look":
                count = done.count if isinstance(done, Done) else 0
                missed = await note(desk, visitor.user, what, on, count, said)
                said = f"{said}; it is not in the trail: {missed}" if missed else said
            desk.looks.forget()
            if not isinstance(done, Done):
                return done
            return RedirectResponse(address(request, done.to, said), 303)

        return Route(path, endpoint, methods=["POST"], name=f"act:{what}")

    return declare


async def note(desk: Desk, user: WebUser, what: str, target: str, count: int, said: str) -> str:
    """Write an act into the trail; returns why that was not possible, empty if it was."""
    try:
        await desk.queue.note_act(user.name, what, target, count=count, said=said)
    except Exception as error:
        # The act is done, so its person is told, not refused.
        logging.getLogger("mx_rmq").warning(
            "%s by %s on %r is not in the trail: %s", what, user.name, target, error
        )
        return str(error) or type(error).__name__
    return ""


async def read_form(request: Request, max_bytes: int) -> Form:
    """The fields of a form that was sent.

    Raises:
        Refused: it is no form, too long, or too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, f"a form must be application/x-www-form-urlencoded, got {kind or 'nothing'}")
    most = _ENCODED * max_bytes + 256 * 1024
    body = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise Refused(413, f"a form may have {most:,} bytes")
    except TimeoutError:
        raise Refused(408, f"the form did not arrive within {_PATIENCE:g} s; nothing was done") from None
    except ClientDisconnect:  # its sender is gone, so no one reads this
        raise Refused(400, "the form did not arrive; nothing was done") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Refused(400, f"the form cannot be read: {error}") from None
    return Form(pairs)
