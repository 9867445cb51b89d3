"""The options of a queue, checked when they are set."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

from mx_rmq.checks import (
    Duration,
    check_choice,
    check_name,
    check_seconds,
    check_takes,
    check_whole,
    refusal,
    refuse_unknown,
)
from mx_rmq.errors import ConfigError
from mx_rmq.limits import CALL_MEMORY, MAX_BYTES, MOST_SHARDS
from mx_rmq.retry import Retry
from mx_rmq.urls import SCHEMES, TLS_FILES, WRONG_SCHEME, ServerUrl, read_url, shown_url

Durability = Literal["memory", "disk", "replicated"]
"""What produce waits for: the message is in the server's memory, also on its disk, or also on replicas."""

DURABILITIES: tuple[Durability, ...] = get_args(Durability)

ServerCheck = Literal["warn", "refuse", "off"]
"""What to do about a server that could lose messages: log a warning, refuse it, or do not check."""

SERVER_CHECKS: tuple[ServerCheck, ...] = get_args(ServerCheck)

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Takes the queue and returns an async context manager around a worker's life."""

DEFAULT_URL = "redis://localhost:6379/0"
WEEK = 7 * 86400.0

# For options in seconds: the shortest value. For options that may be None: what None means.
_SHORTEST = {
    "lease": 0.01,
    "socket_timeout": 0.01,
    "poll": 0.01,
    "stop_grace": 0.0,
    "patience": 0.0,
    "durability_timeout": 0.001,
}
_OPTIONAL = {"timeout": "no limit", "ttl": "no end", "dlq_max_age": "no limit"}
_WHOLE = {"concurrency": 1, "prefetch": 0, "crash_limit": 1, "max_bytes": 256, "replicas": 1}

_ELSEWHERE = {
    "max_retries": "retry=Retry(max_attempts=…)",
    "queue_name": "name",
    "grace": "stop_grace",
    "worker": "worker_name",
    "check": "server_check",
}
"""Names that other libraries or earlier versions use."""

_ACCESS = ("username", "password", "sentinel_username", "sentinel_password", *TLS_FILES)
"""The options that belong to the URL."""


def _host() -> str:
    host = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in socket.gethostname())
    return host[:60] or "host"


class QueueOptions(TypedDict, total=False):
    """The options of a queue beside its URL, as callers may give them; explained at ``Config``."""

    name: str
    shards: int | None
    username: str | None
    password: str | None
    sentinel_username: str | None
    sentinel_password: str | None
    ssl_ca_certs: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    worker_name: str
    concurrency: int
    prefetch: int
    lease: Duration
    timeout: Duration | None
    retry: Retry
    recovery_grace: Duration | None
    crash_limit: int
    ttl: Duration | None
    max_bytes: int
    stop_grace: Duration
    socket_timeout: Duration
    patience: Duration
    durability_timeout: Duration
    durability: Durability
    replicas: int
    poll: Duration
    dlq_max_age: Duration | None
    dlq_max_count: int | None
    server_check: ServerCheck
    history: bool
    lifespan: Lifespan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The options of a queue; durations in seconds."""

    url: str = field(default_factory=lambda: os.environ.get("MX_RMQ_URL") or DEFAULT_URL, repr=False)
    """``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``, the same with
    ``rediss+`` for TLS, ``embedded://`` or ``embedded+cluster://``; by default the variable MX_RMQ_URL."""
    name: str = "default"
    """Name of the queue, which is a namespace of topics."""
    shards: int | None = None
    """Over how many shards the queue is spread, up to 1,024. None takes the number that is stored with the
    queue, or 1 for a new one. A queue keeps its number; ``reshard`` changes it."""
    username: str | None = field(default=None, repr=False)
    """The user at the server, unless the URL names one."""
    password: str | None = field(default=None, repr=False)
    """The user's password, unless it is in the URL."""
    sentinel_username: str | None = field(default=None, repr=False)
    """The user at the sentinels, which have users of their own."""
    sentinel_password: str | None = field(default=None, repr=False)
    """The password at the sentinels."""
    ssl_ca_certs: str | None = None
    """File with the certificates of the CAs that are trusted, for TLS; by default those of the system."""
    ssl_certfile: str | None = None
    """File with the client's certificate, if the server asks for one."""
    ssl_keyfile: str | None = None
    """File with the key of the client's certificate, unless *ssl_certfile* has it too."""
    worker_name: str = field(default_factory=_host)
    """Prefix of worker names in leases, histories and logs; the pid and a random suffix follow."""
    concurrency: int = 64
    """How many handlers run at once, over all topics."""
    prefetch: int = 1000
    """Most messages held ready beyond the running ones; the number held follows the pace of the handlers."""
    lease: float = 15.0
    """How long a message stays with its worker if the worker does not extend the lease."""
    timeout: float | None = 300.0
    """How long a handler may run, unless it has its own timeout; None for no limit."""
    retry: Retry = field(default_factory=Retry)
    """When to retry, unless a handler has its own policy."""
    recovery_grace: float | None = 1.0
    """How long a worker may be disconnected before others take over; None waits for its leases to run out."""
    crash_limit: int = 3
    """How many workers a message may take down before it goes to the DLQ."""
    ttl: float | None = WEEK
    """How long a message lives, unless produce is given a ttl; None for no end."""
    max_bytes: int = MAX_BYTES
    """The largest message in bytes, envelope included."""
    stop_grace: float = 25.0
    """How long running handlers may continue after a stop is requested."""
    socket_timeout: float = 5.0
    """How long the server may take to answer before the connection counts as dead."""
    patience: float = 30.0
    """How long produce keeps trying while the server cannot be reached. The sum of *patience*,
    *socket_timeout* and *durability_timeout* is at most 60."""
    durability_timeout: float = 5.0
    """How long produce waits for a message to be on disk or replicated."""
    durability: Durability = "memory"
    """What produce waits for, unless the call says otherwise: memory, disk or replicated."""
    replicas: int = 1
    """How many replicas must have a message when durability is replicated."""
    poll: float = 2.0
    """How often to look for messages even if no wake-up arrives. Of many workers each looks more seldom."""
    dlq_max_age: float | None = None
    """Dead messages older than this are deleted; None keeps them."""
    dlq_max_count: int | None = None
    """Dead messages beyond this many are deleted, oldest first; None keeps them."""
    server_check: ServerCheck = "warn"
    """What to do at the start if the server could lose messages: warn, refuse or off."""
    history: bool = True
    """Whether to count what happens, by topic and minute, for ``history`` and ``rates``."""
    lifespan: Lifespan | None = None
    """An async context manager that takes the queue. A worker enters it before it claims anything and leaves
    it after its last handler; handlers find what it yields in ``ctx.state``."""

    if TYPE_CHECKING:  # durations may be given as a timedelta and are kept in seconds

        def __init__(self, *, url: str = ..., **options: Unpack[QueueOptions]) -> None: ...

    @classmethod
    def of(cls, **options: Any) -> Config:
        """Make a configuration from options.

        Raises:
            ConfigError: an option is unknown or its value is invalid.
        """
        refuse_unknown("option", options, [f.name for f in fields(cls)], _ELSEWHERE)
        return cls(**options)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(SCHEMES):
            raise ConfigError(WRONG_SCHEME)
        for name in _ACCESS:
            _check_text(name, getattr(self, name))
        check_name("queue", self.name)
        if len(check_name("worker_name", self.worker_name)) > 80:
            raise refusal("worker_name", "at most 80 characters", self.worker_name)
        seconds: dict[str, dict[str, Any]] = {
            name: {"least": shortest} for name, shortest in _SHORTEST.items()
        }
        seconds |= {name: {"least": 0.001, "none": none} for name, none in _OPTIONAL.items()}
        # A worker needs up to half a second to notice a cut connection and to reconnect.
        seconds["recovery_grace"] = {"least": 0.5, "none": "the lease"}
        for name, rule in seconds.items():
            object.__setattr__(self, name, check_seconds(name, getattr(self, name), **rule))
        if self.patience + self.socket_timeout + self.durability_timeout > CALL_MEMORY:
            raise ConfigError(
                f"patience + socket_timeout + durability_timeout must be at most {CALL_MEMORY:g} seconds, "
                f"got {self.patience!r} + {self.socket_timeout!r} + {self.durability_timeout!r}: "
                "a call sent again later than that could store a message twice"
            )
        for name, least in _WHOLE.items():
            check_whole(name, getattr(self, name), least)
        check_whole("shards", self.shards, 1, MOST_SHARDS, none="as many as the queue has")
        check_whole("dlq_max_count", self.dlq_max_count, 0, none="no limit")
        check_choice("durability", self.durability, DURABILITIES)
        check_choice("server_check", self.server_check, SERVER_CHECKS)
        if not isinstance(self.history, bool):
            raise refusal("history", "True or False", self.history)
        if not isinstance(self.retry, Retry):
            raise refusal("retry", "a Retry(...)", self.retry)
        if self.lifespan is not None:
            _check_lifespan(self.lifespan)

    @property
    def server(self) -> ServerUrl:
        """What the URL and the options that belong to it say.

        Raises:
            ConfigError: they cannot be used.
        """
        return read_url(self.url, **{name: getattr(self, name) for name in _ACCESS})

    @property
    def shown_url(self) -> str:
        """The URL without user, password and parameters, for logs and errors."""
        return shown_url(self.url)

    def changed(self, **changes: Any) -> Config:
        """A copy with other values. What belongs to the URL does not go to another one."""
        if "url" in changes:
            changes = dict.fromkeys(_ACCESS) | changes
        return replace(self, **changes)


def _check_text(name: str, value: object) -> None:
    """Refuse what is no text, without showing it: it may be a secret."""
    if value is None or (isinstance(value, str) and value):
        return
    given = "an empty text" if value == "" else f"a value of type {type(value).__name__}"
    raise ConfigError(f"{name} must be a text, or None, got {given}")


def _check_lifespan(lifespan: Any) -> None:
    if inspect.isasyncgenfunction(lifespan):  # what asynccontextmanager wraps is not one any more
        raise ConfigError(
            f"lifespan must be a context manager: put @asynccontextmanager on {lifespan.__name__}"
        )
    if not callable(lifespan) or inspect.iscoroutinefunction(lifespan):
        raise refusal("lifespan", "a function with @asynccontextmanager, or None", lifespan)
    check_takes("lifespan", lifespan, "queue")
