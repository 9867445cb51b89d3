"""Logging in with a token, and out; the files of ``static/``."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mx_rmq.web.acts import act, read_form
from mx_rmq.web.desk import Section, address, asset_bytes, desk_of
from mx_rmq.web.security import Refused, check_origin, cookie

if TYPE_CHECKING:
    from starlette.requests import Request

    from mx_rmq.web.acts import Call

_PAUSE: Final = 0.3
"""Seconds that a wrong token costs."""
_PAGE: Final = re.compile(r"(?:[a-z]+(?:/[a-z]+)*)?(?:\?[!-~]{1,2000})?")
"""The address of a page of the dashboard: no other site can be meant by it."""


async def login(request: Request) -> Response:
    """Ask for the token, or look at the one that was sent."""
    desk = desk_of(request)
    if not desk.keeper.token:
        raise Refused(404, "this dashboard has no token")
    if request.method == "GET":
        to = _wanted(request.query_params.get("to", ""))
        return desk.page(request, "login.html", title="Log in", said="", to=to)
    check_origin(request)
    form = await read_form(request, 4096)
    to = _wanted(form.get("to"))
    if not desk.keeper.accepts(form.get("token"), request):
        await asyncio.sleep(_PAUSE)
        said = "This is not the token."
        return desk.page(request, "login.html", status=401, title="Log in", said=said, to=to)
    _, value = desk.keeper.new_session()
    response = RedirectResponse(address(request, to), 303)
    response.headers.append("set-cookie", cookie(request.scope, desk.keeper.cookie, value))
    return response


def _wanted(to: str) -> str:
    """The page that was asked for before the login, below the dashboard's root; empty if it is none."""
    return to if _PAGE.fullmatch(to) else ""


@act("/logout", right="look", what="log out")
async def logout(call: Call) -> Response:
    """End the session in this browser."""
    response = RedirectResponse(address(call.request, "login"), 303)
    response.headers.append("set-cookie", cookie(call.request.scope, call.desk.keeper.cookie, ""))
    return response


async def static(request: Request) -> Response:
    """A file of the dashboard itself."""
    name = request.path_params["name"]
    found = asset_bytes(name)
    if found is None:
        raise Refused(404, f"there is no file {name!r}")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    kept = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
    return Response(found, media_type=kind, headers={"cache-control": kept})


SECTION: Final = Section(
    routes=[
        Route("/login", login, methods=["GET", "POST"], name="login"),
        logout,
        Route("/static/{name}", static),
    ]
)
