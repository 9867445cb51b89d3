"""URLs: what they say, what is refused, and that no text shows a secret."""

from __future__ import annotations

import string
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_rmq import RedisMessageQueue
from mx_rmq.config import Config
from mx_rmq.errors import ConfigError
from mx_rmq.urls import SCHEMES, read_url, shown_url

HOSTS = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z]{2,5})?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)
NODES = st.lists(st.tuples(HOSTS, st.integers(1, 65535)), min_size=1, max_size=5, unique=True)
SECRETS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,10}", fullmatch=True)


def written(nodes: list[tuple[str, int]]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes)


def said_of(url: str) -> str:
    """What a URL says as a text, or why it is refused."""
    try:
        return repr(read_url(url))
    except ConfigError as error:
        return f"{error} {error.__cause__} {None if error.__suppress_context__ else error.__context__}"


# -- Sentinel and Cluster


@given(NODES, NAMES, st.integers(0, 15), SECRETS, SECRETS, st.sampled_from(["redis", "rediss"]))
def test_a_sentinel_url_says_what_was_written(
    nodes: list[tuple[str, int]], name: str, database: int, user: str, password: str, scheme: str
) -> None:
    secret = f"{quote(user, safe='')}:{quote(password, safe='')}"
    url = read_url(f"{scheme}+sentinel://{secret}@{written(nodes)}/{name}/{database}")
    assert (url.kind, list(url.nodes), url.service) == ("sentinel", nodes, name)
    assert url.settings == {"username": user, "password": password}
    assert url.sentinel_settings == {}
    assert url.of_server(("10.0.0.1", 7000)) == f"{scheme}://10.0.0.1:7000/{database}"
    assert url.of_sentinel(nodes[0]) == f"{scheme}://{written(nodes[:1])}"


@given(NODES, SECRETS)
def test_a_cluster_url_says_what_was_written(nodes: list[tuple[str, int]], password: str) -> None:
    url = read_url(f"rediss+cluster://:{quote(password, safe='')}@{written(nodes)}")
    assert (url.kind, list(url.nodes), url.settings) == ("cluster", nodes, {"password": password})
    assert url.of_server(("::1", 7000)) == "rediss://[::1]:7000/0"


@given(NODES, SECRETS, st.sampled_from(["redis+sentinel", "rediss+cluster"]), st.booleans())
def test_no_password_is_shown_escaped_or_not(
    nodes: list[tuple[str, int]], password: str, scheme: str, escaped: bool
) -> None:
    """Whatever is in it: if the URL can be read in another way, it is refused or only its scheme is shown."""
    password = f"pa55word{password}pa55word"
    secret = quote(password, safe="") if escaped else password
    url = f"{scheme}://user:{secret}@{written(nodes)}/mymaster/0"
    texts = [shown_url(url), said_of(url)]
    assert not any("pa55word" in text for text in texts)


def test_ports_and_databases_have_defaults() -> None:
    sentinel = read_url("redis+sentinel://a,b:5,[::1]/mymaster")
    assert sentinel.nodes == (("a", 26379), ("b", 5), ("::1", 26379))
    assert sentinel.of_server(("c", 1)) == "redis://c:1/0"
    for url in ("redis+cluster://a", "redis+cluster://a/", "redis+cluster://a/0", "redis+cluster://a?db=0"):
        assert read_url(url).nodes == (("a", 6379),)
        assert read_url(url).of_server(("c", 1)) == "redis://c:1/0"


def test_parameters_go_to_the_servers_and_those_of_tls_to_the_sentinels_too() -> None:
    url = read_url(
        "rediss+sentinel://a/mymaster?ssl_ca_certs=/etc/a%20b.pem&ssl_check_hostname=false&"
        "health_check_interval=3&sentinel_username=watch&sentinel_password=w%26w&password=p%40p&db=2"
    )
    assert url.settings == {"password": "p@p", "ssl_ca_certs": "/etc/a b.pem"}
    assert url.sentinel_settings == {"username": "watch", "password": "w&w", "ssl_ca_certs": "/etc/a b.pem"}
    assert url.of_server(("c", 1)) == "rediss://c:1/2?ssl_check_hostname=false&health_check_interval=3"
    assert url.of_sentinel(("c", 1)) == "rediss://c:1?ssl_check_hostname=false"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://host", "must name the primary as the sentinels do"),
        ("redis+sentinel://host/0", "must name the primary as the sentinels do"),
        ("redis+sentinel://host/a b", "cannot be read; write redis+sentinel://user:password@host:port,"),
        ("redis+sentinel://host/a/b", "cannot be read"),
        ("redis+sentinel://host/a/0/1", "cannot be read"),
        ("redis+sentinel://host:0/a", "cannot be read"),
        ("redis+sentinel://host:70000/a", "cannot be read"),
        ("redis+sentinel://host,/a", "cannot be read"),
        ("redis+sentinel:///a", "cannot be read"),
        ("redis+sentinel://[::1/a", "cannot be read"),
        ("redis+cluster://", "cannot be read; write redis+cluster://user:password@host:port,host:port, with"),
        ("redis+cluster://host/shop", "cannot be read"),
        ("redis+cluster://host/3", "a cluster has only database 0, got 3; leave it out"),
        ("redis+cluster://host?db=3", "a cluster has only database 0, got 3; leave it out"),
        ("redis+cluster://host?db=x", "db in the server's URL must be a number"),
        ("redis+cluster://host?ssl_ca_certs=x", "ssl_ca_certs is for TLS; write rediss+cluster://"),
        ("redis+cluster://host?sentinel_password=x", "sentinel_password is for Sentinel; write redis+sent"),
        ("redis://host?sentinel_password=x", "sentinel_password is for Sentinel"),
        ("redis://host?ssl_ca_certs=x", "ssl_ca_certs is for TLS; write rediss://"),
        ("unix:///run/x?ssl_ca_certs=x", "ssl_ca_certs is for TLS; a unix socket has none"),
        ("redis://host?pasword=x", "named 'pasword'; did you mean 'password'?"),
        ("redis+sentinel://host/a?sentinel_pass=x", "did you mean 'sentinel_password'?"),
        ("rediss://host?tls_ca=x", "did you mean 'ssl_ca_certs'?"),
        ("rediss+cluster://host?ssl_ca_cert=x", "did you mean 'ssl_ca_certs'?"),
        ("redis+cluster://host?password=x&yz=1", "cannot be read"),
        ("redis+cluster://host?password=x@y", "cannot be read"),
        ("redis+cluster://host?password", "cannot be read"),
        ("redis+cluster://a@b@host", "cannot be read"),
        ("embedded+cluster:///tmp/x", "has no path and no options"),
        ("redis+other://host", "url must begin with redis://"),
        (
            "redis://a:1,b:2",
            "redis:// leads to one server, but the URL has several hosts; write redis+cluster",
        ),
        (
            "rediss://user:x@a,b/0",
            "write rediss+cluster:// for a cluster, or rediss+sentinel://host,host/name",
        ),
        ("redis://host:port", "cannot be read; write redis://user:password@host:port"),
        ("unix://", "cannot be read; write unix:///absolute/path?db=number"),
        ("unix://run/x", "cannot be read; write unix:///absolute/path?db=number"),
        ("redis://:x@host?password=y", "password stands twice in the server's URL; give it once"),
        ("redis+cluster://user@host?username=y", "username stands twice"),
        ("redis://host?password=x&password=y", "password stands twice"),
        ("redis://host/1?db=2", "db stands twice"),
        ("redis+sentinel://host/m/1?db=1", "db stands twice"),
    ],
)
def test_what_cannot_be_used_says_what_to_write(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_url(url)
    assert said in str(refused.value)


# -- options beside the URL


def test_options_go_where_the_url_leads() -> None:
    files: dict[str, Any] = {"ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key"}
    config = Config(
        url="rediss+sentinel://a/m", username="u", password="p", sentinel_username="v", sentinel_password="q",
        **files,
    )  # fmt: skip
    assert config.server.settings == {"username": "u", "password": "p"} | files
    assert config.server.sentinel_settings == {"username": "v", "password": "q"} | files
    assert Config(url="rediss://a", password="p", **files).server.settings == {"password": "p"} | files


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("redis://u:p@a", "username"),
        ("redis://u:p@a", "password"),
        ("redis://a?password=x", "password"),
        ("redis+cluster://:p@a", "password"),
        ("redis+sentinel://a/m?sentinel_password=x", "sentinel_password"),
        ("rediss://a?ssl_ca_certs=x", "ssl_ca_certs"),
    ],
)
def test_what_is_given_twice_is_refused(url: str, option: str) -> None:
    options: dict[str, Any] = {option: "other"}
    with pytest.raises(ConfigError, match=f"{option} is given twice: in the URL and as an option"):
        RedisMessageQueue(url, **options)


@pytest.mark.parametrize(
    ("url", "option", "said"),
    [
        ("redis://a", "sentinel_password", "is for Sentinel"),
        ("redis://a", "ssl_certfile", "is for TLS; write rediss://"),
        ("embedded://", "password", "is for a server that runs elsewhere"),
        ("embedded+cluster://", "username", "is for a server that runs elsewhere"),
    ],
)
def test_an_option_that_the_url_has_no_use_for_is_refused(url: str, option: str, said: str) -> None:
    options: dict[str, Any] = {option: "x"}
    with pytest.raises(ConfigError, match=f"{option} {said}"):
        RedisMessageQueue(url, **options)


def test_no_text_of_a_config_shows_an_option_that_is_secret() -> None:
    config = Config(
        url="redis+sentinel://a/m", username="user7", password="pa55word",
        sentinel_username="user8", sentinel_password="pa55word",
    )  # fmt: skip
    queue = RedisMessageQueue(config=config)
    for text in map(str, (config, config.server, queue, queue.sync, config.shown_url)):
        assert "pa55word" not in text
        assert "user" not in text


def test_another_url_gets_nothing_that_belongs_to_the_first() -> None:
    config = Config(url="rediss://a", password="p", ssl_ca_certs="ca")
    assert config.changed(url="redis://b").server.settings == {}
    assert config.changed(url="redis://b", password="q").server.settings == {"password": "q"}
    assert config.changed(name="other").server.settings == {"password": "p", "ssl_ca_certs": "ca"}


# -- what is shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+sentinel://u:p@h1:26379,h2/mymaster/0", "redis+sentinel://***@h1:26379,h2/mymaster/0"),
        ("redis+cluster://h1:7000,[::1]:7001?password=x", "redis+cluster://h1:7000,[::1]:7001"),
        ("rediss+cluster://:p/w@h1", "rediss+cluster://***"),
        ("redis+sentinel://:p@w@h1/m", "redis+sentinel://***@h1/m"),
        ("redis+sentinel://h1/m?password=a@b", "redis+sentinel://***"),
        ("embedded+cluster://", "embedded+cluster://"),
    ],
)
def test_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@given(st.sampled_from(SCHEMES), st.text(string.printable, max_size=60))
def test_any_text_is_read_or_refused_with_a_config_error(scheme: str, rest: str) -> None:
    assert shown_url(scheme + rest).startswith(scheme)
    assert said_of(scheme + rest)
