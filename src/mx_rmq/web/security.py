"""Who may use the dashboard: authentication, sessions, requests from other sites, and response headers.

``Guard`` stands before every route, so a page cannot forget to ask who looks. What changes something is an
act (``acts.py``), which checks the right, the origin and the form's token too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
import ipaddress
import os
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from mx_rmq.checks import refusal
from mx_rmq.errors import ConfigError
from mx_rmq.web.users import RIGHTS, WebUser
from mx_rmq.web.words import link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mx_rmq.web.users import Right

    Authenticate = Callable[[Request], Any]

USERS: Final = "MX_RMQ_WEB_USERS"
"""The variable with names and passwords for Basic authentication: ``anna:long-secret,ben:other-secret``."""
SESSION: Final = "mx_rmq_session"
"""How the name of the only cookie begins. Each dashboard has its own: cookies do not know ports, so on one
computer the dashboards of two queues would else end each other's sessions."""

_LASTS: Final = 12 * 3600
"""Seconds of a session."""
_SHORTEST: Final = 16
"""Characters of a token."""
_MOST_FAILURES: Final = 10
"""Wrong tokens and passwords in a minute from one address, after which it is refused for a while."""
_MOST_ADDRESSES: Final = 1000
"""Addresses whose wrong ones are counted; the oldest is forgotten first."""
_OPEN: Final = ("/static/", "/login")
"""Paths that are answered before authentication."""
_FORWARDED: Final = ("forwarded", "x-forwarded", "x-real-ip", "x-client-ip", "true-client-ip", "cf-", "via")
"""How headers begin that a proxy adds."""

HEADERS: Final = {
    # <base> makes links work under any prefix; a form or a script of another site never fits 'self'.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers then send "Origin: null" with forms, which the origin check refuses.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Refused(Exception):
    """A request that is not answered, with its status and the reason in words."""

    def __init__(self, status: int, said: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(said)
        self.status = status
        self.said = said
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks: the user, and the session that forms are bound to."""

    user: WebUser
    form_token: str
    """What every form carries."""
    can_log_out: bool = False

    def may(self, right: Right) -> bool:
        """Whether they have a right."""
        return right in self.user.may


def visitor_of(request: HTTPConnection) -> Visitor:
    """Who sent a request; the guard has made sure of it."""
    visitor: Visitor = request.scope["state"]["visitor"]
    return visitor


class Doorkeeper:
    """Knows who comes, by the way that was configured.

    Args:
        auth: a token; a function of the application that takes the request and returns a ``WebUser``, a name,
            None or a response, or that raises; None for Basic by the variable, or for loopback only.
        read_only: refuse every change.
        salt: what outsiders do not know about the queue, such as its URL. All processes of an application
            have the same one, so each accepts the sessions and forms of the others.
    """

    def __init__(self, auth: str | Authenticate | None, *, read_only: bool, salt: str) -> None:
        if auth is not None and not isinstance(auth, str) and not callable(auth):
            raise refusal("auth", "a token, or a function that takes the request and returns a user", auth)
        if isinstance(auth, str) and len(auth) < _SHORTEST:
            raise ConfigError(
                f"auth must be a token of {_SHORTEST} characters or more, got {len(auth)}; make one: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        self.token = auth if isinstance(auth, str) else ""
        self._ask = auth if callable(auth) else None
        self._users = _users(os.environ.get(USERS, "")) if auth is None else {}
        self._rights: tuple[Right, ...] = ("look",) if read_only else RIGHTS
        known = "\0".join((salt, self.token, *(f"{n}:{p}" for n, p in sorted(self._users.items()))))
        self._secret = hashlib.sha256(b"mx-rmq dashboard\0" + known.encode()).digest()
        self.cookie = f"{SESSION}_{hashlib.sha256(self._secret).hexdigest()[:8]}"
        """The name of the cookie."""
        self._failures: dict[str, deque[float]] = {}
        """By address, so that a stranger who guesses does not lock out those who know."""

    @property
    def is_open(self) -> bool:
        """Whether no authentication is configured, so only this computer may look."""
        return not self.token and self._ask is None and not self._users

    # -- who

    async def user(self, request: Request) -> WebUser | Response:
        """Who sent a request, or the response to send instead.

        Raises:
            Refused: it is not known, or not allowed.
        """
        if self._ask is not None:
            found = self._ask(request)
            if inspect.isawaitable(found):
                found = await found
            if isinstance(found, Response):
                return found
            if not found:  # also False: the answer of a function that only says whether
                raise Refused(401, "the application does not know you")
            if not isinstance(found, WebUser | str):
                # The name of any other object would let a stranger in, under a name that the object happens
                # to have.
                raise refusal("what auth returns", "a WebUser, a name, None or a response", found)
            user = WebUser(found) if isinstance(found, str) else found
            return WebUser(user.name, tuple(right for right in self._rights if right in user.may))
        if self.token:
            self._check_token(request)
            return WebUser("token", self._rights)
        if self._users:
            return WebUser(self._check_basic(request), self._rights)
        _check_loopback(request)
        return WebUser("local", self._rights)

    def accepts(self, token: str, request: HTTPConnection) -> bool:
        """Whether this is the token; wrong ones are counted for the address of the request.

        Raises:
            Refused: there were too many wrong ones.
        """
        self._refuse_guesses(request)
        right = hmac.compare_digest(token.encode(), self.token.encode())
        if not right:
            self._count_guess(request)
        return right

    def _check_token(self, request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self.accepts(given.strip(), request):
                return
        elif self.session_of(request) is not None:
            return
        raise Refused(401, "log in with the token", {"www-authenticate": "Bearer"})

    def _check_basic(self, request: Request) -> str:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        challenge = {"www-authenticate": 'Basic realm="mx-rmq", charset="UTF-8"'}
        if scheme.lower() != "basic":
            raise Refused(401, "log in with a name and a password", challenge)
        self._refuse_guesses(request)
        try:
            name, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except ValueError:
            name = password = ""
        # An unknown name takes as long as a wrong password.
        expected = self._users.get(name, secrets.token_hex())
        if not hmac.compare_digest(password.encode(), expected.encode()):
            self._count_guess(request)
            raise Refused(401, "the name or the password is wrong", challenge)
        return name

    def _count_guess(self, request: HTTPConnection) -> None:
        address = _address(request)
        failures = self._failures.pop(address, None) or deque(maxlen=_MOST_FAILURES)
        failures.append(time.monotonic())
        if len(self._failures) >= _MOST_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = failures

    def _refuse_guesses(self, request: HTTPConnection) -> None:
        since = time.monotonic() - 60
        failures = self._failures.get(_address(request))
        if failures and len(failures) == _MOST_FAILURES and failures[0] > since:
            raise Refused(429, "too many wrong passwords; try again in a minute", {"retry-after": "60"})

    # -- sessions and forms

    def session_of(self, request: HTTPConnection) -> str | None:
        """The id of the session that a request belongs to, None if it has none or an ended one."""
        id_, _, rest = request.cookies.get(self.cookie, "").partition(".")
        ends, _, sign = rest.partition(".")
        if not hmac.compare_digest(sign.encode(), self._sign("session", id_, ends).encode()):
            return None
        return id_ if ends.isdigit() and int(ends) > time.time() else None

    def new_session(self) -> tuple[str, str]:
        """The id of a new session, and the value of its cookie."""
        id_, ends = secrets.token_urlsafe(18), str(int(time.time()) + _LASTS)
        return id_, f"{id_}.{ends}.{self._sign('session', id_, ends)}"

    def form_token(self, session: str, user: WebUser) -> str:
        """What forms of a session carry."""
        return self._sign("form", session, user.name)

    def seal(self, text: str, visitor: Visitor) -> str:
        """A text that only this dashboard could have put into an address of this visitor."""
        return f"{self._sign('note', visitor.form_token, text)[:16]}{text}"

    def unseal(self, sealed: str, visitor: Visitor) -> str:
        """The text again, empty if it is not ours."""
        sign, text = sealed[:16], sealed[16:]
        expected = self._sign("note", visitor.form_token, text)[:16]
        return text if hmac.compare_digest(sign.encode(), expected.encode()) else ""

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._secret, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


def cookie(scope: Scope, name: str, value: str) -> str:
    """The session's cookie as a header: for this dashboard only, not for scripts or forms of other sites.

    A link on another site brings it along, so that addresses can be shared; a change needs a form token.
    """
    # Quoted as browsers quote the address: they compare the two, and a header is ASCII.
    path = quote(scope.get("root_path", "").rstrip("/") + "/", safe="/:@!$&'()*+,=")
    lasts = _LASTS if value else 0
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{name}={value}; Path={path}; Max-Age={lasts}; HttpOnly; SameSite=Lax{secure}"


def check_origin(request: Request) -> None:
    """Refuse a change that a page of another site asks for.

    Raises:
        Refused: it comes from elsewhere, or does not say from where.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin") or request.headers.get("referer")
    # Only the host is compared: behind a proxy the scheme may differ.
    is_own = origin is not None and _netloc(origin) == request.headers.get("host", "").lower()
    if not is_own or site not in (None, "same-origin"):
        raise Refused(403, f"a change must come from a page of the dashboard, not from {origin or 'nowhere'}")


def _check_loopback(request: Request) -> None:
    """Without authentication, answer this computer only, and no proxy on it, and no other site's name for it.

    Raises:
        Refused: says what to configure.
    """
    client = request.client.host if request.client else ""
    host = _hostname(request.headers.get("host", ""))
    local = host == "localhost" or host.endswith(".localhost") or _is_loopback(host)
    forwarded = any(name.startswith(_FORWARDED) for name in request.headers)
    if not _is_loopback(client) or not local or forwarded:
        raise Refused(
            403,
            "without auth the dashboard answers only on this computer: give dashboard(auth=…) a token or a "
            f"function, or set {USERS}=name:password",
        )


def _address(request: HTTPConnection) -> str:
    """Where guesses come from; of IPv6 the network, because a computer there has many addresses."""
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def _netloc(url: str) -> str:
    """The host and the port of an address, empty if it is none."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _hostname(host: str) -> str:
    """The name in a header ``Host``, empty if it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _users(text: str) -> dict[str, str]:
    """The users of the variable.

    Raises:
        ConfigError: it cannot be read; its text, which has passwords, is not shown.
    """
    users = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        name, _, password = entry.partition(":")
        if not name or len(password) < 8:
            raise ConfigError(f"{USERS} must be name:password,name:password with 8 characters or more each")
        users[name] = password
    return users


class Guard:
    """Stands before the routes: headers on every response, a user and a session on every request.

    Args:
        app: the routes.
        keeper: knows who comes.
        refuse: makes a page from a refusal.
        ready: called before a route is, for those who are let in.
    """

    def __init__(
        self,
        app: ASGIApp,
        keeper: Doorkeeper,
        refuse: Callable[[Request, Exception], Response],
        ready: Callable[[Request], Awaitable[Response | None]],
    ) -> None:
        self._app = app
        self._keeper = keeper
        self._refuse = refuse
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        request = Request(scope, receive)
        set_cookie = ""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    if name != "cache-control" or name not in headers:
                        headers[name] = value
                if set_cookie:
                    headers.append("set-cookie", set_cookie)
            await send(message)

        path = route_path(scope)
        if path.startswith(_OPEN):
            await self._app(scope, receive, with_headers)
            return
        try:
            user = await self._keeper.user(request)
            if isinstance(user, Response):
                await user(scope, receive, with_headers)
                return
            if "look" not in user.may:
                raise Refused(403, f"{user.name} may not look at the dashboard")
        except (Refused, HTTPException, ConfigError) as refused:
            is_unknown = isinstance(refused, Refused) and refused.status == 401
            if is_unknown and self._keeper.token and "text/html" in _accept(request):
                to = path.lstrip("/") + (f"?{request.url.query}" if request.url.query else "")
                login = link("login", to=to if request.method == "GET" else "")
                response: Response = RedirectResponse(f"{scope.get('root_path', '')}/{login}", 303)
            else:
                response = self._refuse(request, refused)
            await response(scope, receive, with_headers)
            return
        session = self._keeper.session_of(request)
        if session is None:
            session, value = self._keeper.new_session()
            set_cookie = cookie(scope, self._keeper.cookie, value)
        visitor = Visitor(user, self._keeper.form_token(session, user), bool(self._keeper.token))
        scope["state"] = {**scope.get("state", {}), "visitor": visitor}
        not_ready = await self._ready(request)
        await (not_ready or self._app)(scope, receive, with_headers)


def route_path(scope: Scope) -> str:
    """The path below the place where the dashboard is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path


def _accept(request: Request) -> str:
    return request.headers.get("accept", "")
