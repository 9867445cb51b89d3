"""What all pages share: the queue, the looks at it, the jobs, and how a page is made."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from mx_rmq.version import __version__
from mx_rmq.web.jobs import Jobs
from mx_rmq.web.looks import Looks
from mx_rmq.web.security import Doorkeeper, visitor_of
from mx_rmq.web.words import FILTERS, link, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from mx_rmq.web.needs import Queue
    from mx_rmq.web.redaction import Redactor

NOTE: Final = "note"
"""The part of an address with what was just done; sealed, so that no other site can write it."""


class Live(NamedTuple):
    """A part of a page that is kept up to date."""

    html: dict[str, str]
    """Elements by their id, whole."""
    order: dict[str, list[str]] = {}  # noqa: RUF012 - a named tuple is not changed
    """By the id of a list or table body: the ids of its elements, in order; others are removed."""


@dataclass(frozen=True, slots=True)
class Section:
    """What a module in ``pages/`` adds to the dashboard."""

    routes: Sequence[BaseRoute]
    nav: tuple[str, str] | None = None
    """Its title and path in the navigation; None if it is not there."""
    live: Mapping[str, Callable[[Desk, str], Awaitable[Live]]] = field(default_factory=dict)
    """Parts that are kept up to date, by name. The function takes what follows the name and a colon."""


class Desk:
    """One dashboard.

    Args:
        queue: what it shows.
        keeper: knows who comes.
        redact: hides fields.
        sections: all pages.
    """

    def __init__(
        self, queue: Queue, keeper: Doorkeeper, redact: Redactor, sections: Sequence[Section]
    ) -> None:
        self.queue = queue
        self.keeper = keeper
        self.redact = redact
        self.looks = Looks(queue)
        self.jobs = Jobs()
        self.live = {name: part for section in sections for name, part in section.live.items()}
        self._nav = [section.nav for section in sections if section.nav is not None]
        self._templates = Environment(
            loader=PackageLoader("mx_rmq.web"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= FILTERS
        self._templates.globals |= {"link": link, "version": __version__, "asset": _asset}

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """A page from a template that extends ``base.html``; it needs *title*.

        Beside *values*, the template has ``visitor``, ``queue`` (its name), ``nav`` and ``note``.
        """
        visitor = request.scope.get("state", {}).get("visitor")
        sealed = request.query_params.get(NOTE, "")[:2000]
        common = {
            "root": request.scope.get("root_path", "").rstrip("/") + "/",
            "here": str(request.url.path),
            "query": request.url.query,
            "queue": self.queue.config.name,
            "server": self.queue.config.shown_url,
            "nav": self._nav if visitor else [],
            "visitor": visitor,
            "note": self.keeper.unseal(sealed, visitor) if visitor and sealed else "",
        }
        return HTMLResponse(self._templates.get_template(template).render(common | values), status)

    def part(self, template: str, name: str, **values: Any) -> str:
        """A macro of a template as HTML, for live parts; a page calls the same macro."""
        module = self._templates.get_template(template).module
        return str(getattr(module, name)(**values))


def desk_of(request: Request) -> Desk:
    """The dashboard that a request is for."""
    desk: Desk = request.app.state.desk
    return desk


def address(request: Request, to: str, note: str = "") -> str:
    """An absolute path from one that is relative to the dashboard's root, with what was just done."""
    root = request.scope.get("root_path", "").rstrip("/")
    path = f"{root}/{to.removeprefix('/').removeprefix('.')}"
    if not note:
        return path
    sealed = desk_of(request).keeper.seal(note[:500], visitor_of(request))
    sign = "&" if "?" in path else "?"
    return f"{path}{sign}{link('', **{NOTE: sealed}).removeprefix('?')}"


_ASSETS: Final = {
    entry.name: entry.read_bytes()
    for entry in (files("mx_rmq.web") / "static").iterdir()
    if entry.name.endswith((".css", ".js", ".svg"))
}


def asset_bytes(name: str) -> bytes | None:
    """A file of ``static/``."""
    return _ASSETS.get(name)


def _asset(name: str) -> str:
    """The address of a file of ``static/``; it changes with the file, so browsers may keep it."""
    return f"static/{name}?v={hashlib.sha256(_ASSETS[name]).hexdigest()[:12]}"
