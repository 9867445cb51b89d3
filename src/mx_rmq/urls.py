"""The URL of a server, a Sentinel set or a cluster: what it says, and what of it may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from mx_rmq.checks import refuse_unknown
from mx_rmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["server", "sentinel", "cluster", "embedded", "embedded cluster"]
"""What is at a URL: one server, a Sentinel set or a cluster; the last two are started by this package."""

Node = tuple[str, int]
"""The host and the port of a server; an IPv6 address is without its brackets."""

_KINDS: Final[dict[str, Kind]] = {
    "redis": "server",
    "rediss": "server",
    "unix": "server",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
    "embedded": "embedded",
    "embedded+cluster": "embedded cluster",
}
SCHEMES: Final = tuple(f"{scheme}://" for scheme in _KINDS)
WRONG_SCHEME: Final = (
    "url must begin with redis://, rediss://, unix:// or embedded://; "
    "write redis+sentinel:// for Sentinel and redis+cluster:// for a cluster"
)

_PORTS: Final = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_FORMS: Final[dict[Kind, str]] = {
    "server": "redis://user:password@host:port/database",
    "sentinel": "redis+sentinel://user:password@host:port,host:port/name/database",
    "cluster": "redis+cluster://user:password@host:port,host:port",
    "embedded": "embedded:// or embedded:///absolute/path",
    "embedded cluster": "embedded+cluster://",
}
_UNIX_FORM: Final = "unix:///absolute/path?db=number"

# Parameters have the names that redis-py gives them.
TLS_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS: Final = (*TLS_FILES, "ssl_ca_data", "ssl_ca_path", "ssl_cert_reqs", "ssl_check_hostname")
_TLS_RARE: Final = ("ssl_ciphers", "ssl_min_version", "ssl_password")
_TLS_RARE_FLAGS: Final = ("ssl_include_verify_flags", "ssl_exclude_verify_flags")
_OF_TLS: Final = frozenset((*_TLS, *_TLS_RARE, *_TLS_RARE_FLAGS))
_OF_SENTINEL: Final = ("sentinel_username", "sentinel_password")
_OF_SERVER: Final = ("username", "password", "db")
_RARE: Final = (
    "client_name",
    "decode_responses",
    "encoding",
    "encoding_errors",
    "health_check_interval",
    "max_connections",
    "protocol",
    "retry_on_timeout",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_read_size",
    "socket_timeout",
)
_PARAMETERS: Final = (*_OF_SERVER, *_OF_SENTINEL, *_TLS, *_TLS_RARE, *_TLS_RARE_FLAGS, *_RARE)
_INSTEAD: Final = {
    "database": "'db'",
    "user": "'username'",
    "ca": "'ssl_ca_certs'",
    "tls_ca": "'ssl_ca_certs'",
    "tls_cert": "'ssl_certfile'",
    "tls_key": "'ssl_keyfile'",
}

_PARAMETER: Final = re.compile("[a-z_]+=")
_WORD: Final = re.compile(r"[\w.-]+")
_HOST: Final = r"(?:\w[\w.-]*|\[[0-9a-fA-F:.]+\])(?::[0-9]+)?"
_ONE_HOST: Final = re.compile(rf"({_HOST})?[0-9/]*")
"""Host, port and database; any other text may be part of a password."""
_HOSTS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/[\w.-]*)?[0-9/]*")
_FILE: Final = re.compile(r"(/[^#]*)?")


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """What a URL and the options beside it say; its text shows no secret."""

    kind: Kind
    url: str = field(repr=False)
    """As it was given."""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of redis-py for connections to servers, besides those in the URL."""
    sentinel_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The same for connections to sentinels."""
    nodes: tuple[Node, ...] = ()
    """The sentinels to ask, or some nodes of the cluster."""
    service: str = ""
    """The name of the primary in the sentinels' configuration."""
    _database: int = 0
    _parameters: str = field(default="", repr=False)
    _tls_parameters: str = field(default="", repr=False)

    @property
    def is_private(self) -> bool:
        """Whether the server is started by this process, for itself only, and in memory."""
        return self.kind == "embedded cluster" or self.url == "embedded://"

    def of_server(self, node: Node) -> str:
        """The URL of a server of the set or cluster. The password is not in it, but in ``settings``."""
        return f"{self._scheme}://{at(node)}/{self._database}{self._parameters}"

    def of_sentinel(self, node: Node) -> str:
        """The URL of a sentinel."""
        return f"{self._scheme}://{at(node)}{self._tls_parameters}"

    @property
    def _scheme(self) -> str:
        return self.url.partition("+")[0]


def at(node: Node) -> str:
    """A node's host and port as they stand in a URL."""
    host, port = node
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_url(url: str, **options: str | None) -> ServerUrl:
    """Read a URL and the options of the queue that belong to it.

    Args:
        url: any of ``SCHEMES``.
        options: ``username``, ``password``, ``sentinel_username``, ``sentinel_password`` and ``TLS_FILES``.

    Raises:
        ConfigError: the URL cannot be used; says what to write. It shows no part that may belong to a
            password: an unescaped one can be in any part of the URL.
    """
    try:
        return _read(url, {name: value for name, value in options.items() if value is not None})
    except ConfigError as error:
        raise error from None  # what led to it may show the URL


def _read(url: str, given: dict[str, str]) -> ServerUrl:
    scheme = url.partition("://")[0]
    kind = _KINDS.get(scheme)
    if kind is None:
        raise ConfigError(WRONG_SCHEME)
    if kind == "sentinel" or kind == "cluster":
        return _read_many(kind, url, given)
    if kind == "server":
        return _read_one(url, given)
    if given:
        raise ConfigError(f"{next(iter(given))} is for a server that runs elsewhere, not for {scheme}://")
    if kind == "embedded cluster" and url != "embedded+cluster://":
        raise ConfigError(
            "an embedded cluster has no path and no options: its data is in memory and ends with it; "
            "write embedded+cluster://, or embedded:///absolute/path for one server that keeps its data"
        )
    return ServerUrl(kind, url)


def shown_url(url: str) -> str:
    """A URL without user, password and parameters, for logs and errors.

    An unescaped password may contain any character. If a part of it could be left, only the scheme is shown.
    """
    scheme, _, rest = url.partition("://")
    place, _, parameters = rest.partition("?")
    user, hidden, place = place.rpartition("@")
    plain = {"server": _ONE_HOST, "sentinel": _HOSTS, "cluster": _HOSTS}.get(_KINDS.get(scheme, ""), _FILE)
    if scheme == "unix":
        plain = _FILE
    if "@" in parameters or set("/#") & set(user) or not plain.fullmatch(place):
        return f"{scheme}://***"
    return f"{scheme}://{'***@' if hidden else ''}{place}"


def unreadable(kind: Kind, scheme: str = "") -> ConfigError:
    """The error for a URL that cannot be read."""
    form = _UNIX_FORM if scheme == "unix" else _FORMS[kind]
    what = f"the server's URL cannot be read; write {form}"
    if kind in ("embedded", "embedded cluster"):
        return ConfigError(what)
    return ConfigError(f"{what}, with special characters in the password as %XX")


# -- one server: redis-py reads the URL when a connection is opened


def _read_one(url: str, given: dict[str, str]) -> ServerUrl:
    """Read ``redis://``, ``rediss://`` or ``unix://``."""
    _refuse_several_hosts(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # half of an IPv6 address, or a port that is no number
        raise unreadable("server") from None
    database = parts.path[1:]
    if parts.scheme != "unix" and "@" not in url and _WORD.fullmatch(database) and not database.isdecimal():
        raise ConfigError(
            f"the database in the server's URL must be a number such as /0, got '/{database}'; "
            f"to give the queue a name, pass name={database!r}"
        )
    if not _is_plain(url):
        raise unreadable("server", parts.scheme)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    database = "" if parts.scheme == "unix" else database
    said = _said("server", parts.scheme, parts.query, username=user, password=password, db=database)
    _check_options("server", parts.scheme, given, said)
    return ServerUrl("server", url, settings=given)


def _is_plain(url: str) -> bool:
    """Whether a URL can be parsed in only one way.

    An unescaped ``/``, ``?`` or ``#`` in a password would end the host part early. A piece of the password
    would then be taken as the host: looked up, connected to and shown in errors.
    """
    parts = urlsplit(url)
    if "#" in url or not all(_PARAMETER.match(each) for each in parts.query.split("&") if each):
        return False
    if parts.scheme == "unix":
        return parts.path not in ("", "/") and (not parts.netloc or parts.netloc.endswith("@"))
    database = parts.path.replace("/", "")
    return not database or database.isdecimal()


def _refuse_several_hosts(url: str) -> None:
    """Refuse the hosts of a cluster or of sentinels in the URL of one server."""
    scheme, _, rest = url.partition("://")
    hosts = rest.partition("?")[0].rpartition("@")[2].partition("/")[0]
    if scheme == "unix" or "," not in hosts or shown_url(f"redis+cluster://{rest}").endswith("***"):
        return
    raise ConfigError(
        f"{scheme}:// leads to one server, but the URL has several hosts; write {scheme}+cluster:// for a "
        f"cluster, or {scheme}+sentinel://host,host/name for Sentinel"
    )


# -- several hosts: read here, since redis-py knows no such URL


def _read_many(kind: Literal["sentinel", "cluster"], url: str, given: dict[str, str]) -> ServerUrl:
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    hosts, _, path = rest.partition("/")
    user, _, hosts = hosts.rpartition("@")
    # An "@" elsewhere, or a second one, is from a password that is not escaped.
    escaped = "@" not in user + path + query and "#" not in url
    if not escaped or not all(_PARAMETER.match(each) for each in query.split("&") if each):
        raise unreadable(kind)
    nodes = _nodes(kind, hosts)
    name, _, secret = user.partition(":")
    said = _said(kind, scheme, query, username=unquote(name), password=unquote(secret))
    _check_options(kind, scheme, given, said)
    service, database = _path(kind, path, said.pop("db", ""))
    said |= given
    settings: dict[str, str] = {each: said.pop(each) for each in ("username", "password") if each in said}
    of_sentinel = {each.removeprefix("sentinel_"): said.pop(each) for each in _OF_SENTINEL if each in said}
    files: dict[str, str] = {each: said.pop(each) for each in TLS_FILES if each in said}
    tls = {each: value for each, value in said.items() if each in _OF_TLS}
    return ServerUrl(
        kind,
        url,
        settings=settings | files,
        sentinel_settings=of_sentinel | files,
        nodes=nodes,
        service=service,
        _database=database,
        _parameters=_query(said),
        _tls_parameters=_query(tls),
    )


def _query(parameters: Mapping[str, str]) -> str:
    return f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""


def _nodes(kind: Kind, hosts: str) -> tuple[Node, ...]:
    nodes = []
    for each in hosts.split(","):
        if not re.fullmatch(_HOST, each):
            raise unreadable(kind)
        host, colon, port = each.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = each, str(_PORTS[kind])
        if not 0 < int(port) < 65536:
            raise unreadable(kind)
        nodes.append((host.strip("[]"), int(port)))
    return tuple(dict.fromkeys(nodes))


def _path(kind: Kind, path: str, db: str) -> tuple[str, int]:
    """The service and the database that a URL names."""
    parts = path.split("/") if path else []
    service = ""
    if kind == "sentinel":
        service = parts.pop(0) if parts else ""
        if not service or service.isdecimal():
            raise ConfigError(
                "the URL of Sentinel must name the primary as the sentinels do: "
                "redis+sentinel://host:26379/mymaster"
            )
        if not _WORD.fullmatch(service):
            raise unreadable(kind)
    if len(parts) > 1 or (parts and parts[0] and not parts[0].isdecimal()):
        raise unreadable(kind)
    if db and parts and parts[0]:
        raise _twice("db")
    database = db or (parts[0] if parts else "") or "0"
    if not database.isdecimal():
        raise ConfigError("db in the server's URL must be a number")
    if kind == "cluster" and int(database):
        raise ConfigError(f"a cluster has only database 0, got {int(database)}; leave it out of the URL")
    return service, int(database)


# -- parameters and options


def _said(kind: Kind, scheme: str, query: str, **before: str) -> dict[str, str]:
    """The parameters of a URL, and what stands before them under the same names.

    Raises:
        ConfigError: a parameter is not known or does not belong here, or something is said twice.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    said = dict(pairs)
    _check_parameters(kind, scheme, said)
    stands = {name: value for name, value in before.items() if value}
    names = [*stands, *(name for name, _ in pairs)]
    if len(set(names)) < len(names):
        raise _twice(next(name for name in names if names.count(name) > 1))
    return said | stands


def _twice(name: str) -> ConfigError:
    return ConfigError(f"{name} stands twice in the server's URL; give it once")


def _check_parameters(kind: Kind, scheme: str, said: Mapping[str, str]) -> None:
    if not said.keys() <= set(_PARAMETERS) and any(name.endswith("password") for name in said):
        raise unreadable(kind)  # what looks like a name may be the rest of a password with an unescaped "&"
    refuse_unknown("parameter of the server's URL named", said, _PARAMETERS, _INSTEAD)
    _check_fit(kind, scheme, said)


def _check_options(kind: Kind, scheme: str, given: Mapping[str, str], said: Mapping[str, str]) -> None:
    _check_fit(kind, scheme, given)
    for name in given:
        if name in said:
            raise ConfigError(f"{name} is given twice: in the URL and as an option; give it once")


def _check_fit(kind: Kind, scheme: str, names: Mapping[str, str]) -> None:
    """Refuse what does not belong to this kind of URL."""
    for name in names:
        if name in _OF_TLS and not scheme.startswith("rediss"):
            tls = scheme.replace("redis", "rediss", 1)
            instead = "a unix socket has none" if scheme == "unix" else f"write {tls}://"
            raise ConfigError(f"{name} is for TLS; {instead}")
        if name in _OF_SENTINEL and kind != "sentinel":
            raise ConfigError(f"{name} is for Sentinel; write redis+sentinel://host:port/name")
