"""``/live``: figures as they change, over server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse
from starlette.routing import Route

from mx_rmq.web.desk import Section
from mx_rmq.web.security import Refused

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from mx_rmq.web.poller import Poller


async def live(request: Request) -> Response:
    """Tell a tab what changes in the parts it follows."""
    poller: Poller = request.app.state.poller
    parts = poller.known(request.query_params.get("parts", ""))
    if not parts:
        raise Refused(404, "there is no such part of a page")
    if not poller.has_room(parts):
        raise Refused(503, "too many tabs are open; close some, and this one goes on by itself")
    last = request.headers.get("last-event-id", "")
    # Proxies that collect an answer before they pass it on would make live figures late.
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(poller.listen(parts, last), media_type="text/event-stream", headers=headers)


SECTION: Final = Section(routes=[Route("/live", live)])
