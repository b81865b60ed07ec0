"""Tests of the client factory: topologies, precedence of options, TLS, and hidden passwords."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from fakeredis import FakeRedis
from kombu.utils.url import maybe_sanitize_url
from redis import Redis
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider
from redis.exceptions import (
    ClusterCrossSlotError,
    ClusterDownError,
    ClusterError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.sentinel import (
    Sentinel,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from redbeat.config import RedBeatConfig, ensure_conf, get_redis, unretried
from redbeat.connection.endpoint import client_parameters
from redbeat.connection.retrying import RetryingConnection
from redbeat.connection.topology import build, server_errors
from redbeat.connection.urls import parse_url, safe_url
from redbeat.errors import ConfigurationError
from redbeat.storage.scripts import connection_of
from tests.certificates import KEY_PASSWORD, CertificateFiles, write_certificates

SECRET = "s3cr3t"
BROKER = "redis://localhost:6379/0"
SENTINELS = [("a", 1), ("b", 2)]


def make_app(broker: Any = BROKER, **settings: Any) -> Celery:
    app = Celery("client", broker=broker, set_as_current=False)
    app.conf.update(settings)
    return app


def client_of(**settings: Any) -> Any:
    return build(client_parameters(RedBeatConfig(make_app(**settings)).endpoint))


def kwargs_of(**settings: Any) -> dict[str, Any]:
    """Return the arguments that redis-py's connections get."""
    kwargs: dict[str, Any] = client_of(**settings).connection_pool.connection_kwargs
    return kwargs


def credentials_of(**settings: Any) -> tuple[Any, ...]:
    credentials: tuple[Any, ...] = kwargs_of(**settings)["credential_provider"].get_credentials()
    return credentials


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return write_certificates(tmp_path)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "celery.beat")
    return caplog


class Provider(CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "from", "provider"


# One client per app


def test_threads_get_the_same_client() -> None:
    app = make_app()
    together = threading.Barrier(8)
    clients: list[Any] = []

    def ask() -> None:
        together.wait()
        clients.append(get_redis(app))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client) for client in clients}) == 1


def test_the_client_of_the_user_is_left_alone() -> None:
    app = make_app(broker="amqp://nowhere", redbeat_redis_options={"retry_period": 5})
    app.redbeat_redis = fake = FakeRedis()
    assert get_redis(app) is fake
    assert ensure_conf(app).key_prefix == "redbeat:"


@pytest.mark.parametrize("period", [5, 0, None])
def test_a_retry_period_wraps_the_client(period: Any) -> None:
    client = get_redis(make_app(redbeat_redis_options={"retry_period": period}))
    assert isinstance(client, RetryingConnection) is bool(period)
    assert isinstance(unretried(client), Redis)
    assert unretried(unretried(client)) is unretried(client)
    if period:
        assert client.retry_period == period


# Precedence of URL, options and defaults


def test_defaults_detect_a_dead_server_and_can_be_overridden() -> None:
    defaults = {
        "socket_timeout": 5,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "retry_on_error": [redis.exceptions.ConnectionError],
    }
    assert kwargs_of().items() >= defaults.items()
    own = {
        "socket_timeout": 1,
        "socket_connect_timeout": 2,
        "retry_on_error": [redis.exceptions.TimeoutError],
    }
    assert kwargs_of(redbeat_redis_options=own).items() >= own.items()
    url = "redis://localhost?socket_timeout=3"
    assert kwargs_of(redbeat_redis_url=url)["socket_timeout"] == 3


def test_explicit_option_beats_url_beats_inherited_option() -> None:
    url = "redis://u:from-url@localhost/1"
    explicit = {"password": "from-option", "db": 2}
    assert kwargs_of(redbeat_redis_url=url, redbeat_redis_options=explicit)["db"] == 2
    assert credentials_of(redbeat_redis_url=url, redbeat_redis_options=explicit) == (
        "u",
        "from-option",
    )
    assert kwargs_of(redbeat_redis_url=url, broker_transport_options=explicit)["db"] == 1
    assert credentials_of(redbeat_redis_url=url, broker_transport_options=explicit) == (
        "u",
        "from-url",
    )
    assert credentials_of(broker_transport_options=explicit) == ("from-option",)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("db", "2", 2),
        ("health_check_interval", "30", 30),
        ("socket_connect_timeout", "1.5", 1.5),
        ("socket_keepalive", "no", False),
        ("socket_timeout", "3", 3.0),
    ],
)
def test_text_is_read_as_in_a_url(name: str, text: str, value: Any) -> None:
    options = {name: text, "cluster": "false", "ssl": "0"}
    of_option = kwargs_of(redbeat_redis_url="redis://h", redbeat_redis_options=options)[name]
    of_url = kwargs_of(redbeat_redis_url=f"redis://h?{name}={text}")[name]
    assert of_option == of_url == value


def test_inherited_options_that_are_the_brokers_own_are_dropped() -> None:
    options = {"visibility_timeout": 5, "socket_timeout": 2, "global_keyprefix": "x"}
    assert kwargs_of(broker_transport_options=options)["socket_timeout"] == 2


def test_inherited_url_may_hold_an_option_of_kombu() -> None:
    assert kwargs_of(broker="redis://localhost?virtual_host=4")["db"] == 4


def test_quoted_credentials_are_decoded() -> None:
    assert credentials_of(redbeat_redis_url="redis://us%40er:p%2Fa%3As%25s@localhost") == (
        "us@er",
        "p/a:s%s",
    )


def test_the_credential_provider_of_the_user_wins() -> None:
    provider = Provider()
    url = "redis://u:p@localhost"
    options: dict[str, Any] = {"credential_provider": provider, "password": "x"}
    kwargs = kwargs_of(redbeat_redis_url=url, redbeat_redis_options=options)
    assert kwargs["credential_provider"] is provider
    options["credential_provider"] = f"{Provider.__module__}.{Provider.__qualname__}"
    kwargs = kwargs_of(redbeat_redis_url=url, redbeat_redis_options=options)
    assert isinstance(kwargs["credential_provider"], Provider)


#: A Sentinel without an option of its own.
SENTINEL = {"redbeat_redis_url": "redis-sentinel://"}


@pytest.mark.parametrize(
    ("settings", "setting", "option"),
    [
        ({"redbeat_redis_options": {"sockettimeout": 5}}, "redbeat_redis_options", "sockettimeout"),
        ({"redbeat_redis_options": {5: 5}}, "redbeat_redis_options", "strings"),
        ({"redbeat_redis_url": "redis://h?foo=1"}, "redbeat_redis_url", "foo"),
        ({"redbeat_redis_url": "redis://h?db=x"}, "redbeat_redis_url", "db"),
        ({"redbeat_redis_url": "redis://h/first"}, "redbeat_redis_url", "db"),
        ({"redbeat_redis_url": "redis://h?socket_timeout=x"}, "redbeat_redis_url", "timeout"),
        ({"redbeat_redis_options": {"protocol": 9}}, "redbeat_redis_options", "protocol"),
        (
            {**SENTINEL, "redbeat_redis_options": {"sentinels": SENTINELS, "foo": 1}},
            *("redbeat_redis_options", "foo"),
        ),
        (
            {
                **SENTINEL,
                "redbeat_redis_options": {"sentinels": SENTINELS, "sentinel_kwargs": {"foo": 1}},
            },
            *("redbeat_redis_options", "foo"),
        ),
        (
            {"redbeat_redis_url": "redis-cluster://h", "redbeat_redis_options": {"foo": 1}},
            *("redbeat_redis_options", "foo"),
        ),
        (
            {
                "redbeat_redis_url": "redis://localhost",
                "redbeat_redis_options": {"health_check_interval": "often"},
            },
            *("redbeat_redis_options", "health_check_interval"),
        ),
    ],
)
def test_wrong_option_names_setting_and_option(
    settings: dict[str, Any], setting: str, option: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s){setting}.*{option}"):
        client_of(**settings)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"broker": f"amqp://u:{SECRET}@h//"}, "redbeat_redis_url"),
        ({"broker": "memory://"}, "redbeat_redis_url"),
        ({"broker": None}, "redbeat_redis_url"),
        ({"redbeat_redis_url": 5}, "redbeat_redis_url"),
        ({"redbeat_redis_url": f"http://u:{SECRET}@h"}, "redbeat_redis_url"),
        ({"redbeat_redis_url": f"u:{SECRET}@localhost:6379"}, "redbeat_redis_url"),
        ({"redbeat_redis_url": f"redis://u:{SECRET}/x@h"}, "redbeat_redis_url"),
        ({"redbeat_redis_url": f"redis://u:12/{SECRET}@h"}, "redbeat_redis_url"),
        ({"redbeat_redis_url": "redis-cluster://h/1"}, "database"),
        ({"redbeat_redis_url": "unix:///s", "redbeat_redis_options": {"cluster": True}}, "cluster"),
    ],
)
def test_an_impossible_url_is_an_error_that_names_the_setting(
    settings: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigurationError, match=names) as caught:
        client_of(**settings)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_of_several_urls_the_first_is_used() -> None:
    urls = f"redis://u:{SECRET}@one:1/2;redis://u:{SECRET}@two:2/2"
    kwargs = kwargs_of(redbeat_redis_url=urls)
    assert (kwargs["host"], kwargs["port"], kwargs["db"]) == ("one", 1, 2)


# Topologies: single server, Sentinel and Cluster


@pytest.mark.parametrize("url", ["redis-sentinel", "redis-sentinel://", "Redis-Sentinel"])
def test_sentinel_by_its_bare_name(url: str) -> None:
    client = client_of(
        redbeat_redis_url=url, redbeat_redis_options={"sentinels": SENTINELS, "db": 3}
    )
    pool = client.connection_pool
    assert pool.service_name == "master"
    assert [node.get_connection_kwargs()["host"] for node in pool.sentinel_manager.sentinels] == [
        "a",
        "b",
    ]
    assert pool.connection_kwargs["db"] == 3


def test_socket() -> None:
    client = client_of(redbeat_redis_url=f"unix://:{SECRET}@/run/redis.sock?db=2")
    assert client.connection_pool.connection_class is UnixDomainSocketConnection
    assert client.connection_pool.connection_kwargs["path"] == "/run/redis.sock"
    assert client.connection_pool.connection_kwargs["db"] == 2


def test_socket_in_celerys_spelling() -> None:
    kwargs = kwargs_of(broker="redis+socket:///run/redis.sock?virtual_host=2")
    assert (kwargs["path"], kwargs["db"]) == ("/run/redis.sock", 2)


@pytest.mark.parametrize("use_ssl", [None, True])
def test_sentinel(use_ssl: Any) -> None:
    app = make_app(
        redbeat_redis_url="redis-sentinel://ignored:5/0",
        redbeat_redis_use_ssl=use_ssl,
        redbeat_redis_options={
            "sentinels": SENTINELS,
            "service_name": "mine",
            "sentinel_kwargs": {"password": SECRET},
            "password": SECRET,
            "socket_timeout": 2,
            "min_other_sentinels": 1,
        },
    )
    client: Any = get_redis(app)
    pool = client.connection_pool
    expected = SentinelManagedSSLConnection if use_ssl else SentinelManagedConnection
    assert pool.connection_class is expected
    assert pool.service_name == "mine"
    assert pool.connection_kwargs["socket_timeout"] == 2
    assert isinstance(app.redbeat_sentinel, Sentinel)
    assert app.redbeat_sentinel.min_other_sentinels == 1
    sentinel_options = [
        node.connection_pool.connection_kwargs for node in app.redbeat_sentinel.sentinels
    ]
    assert [(node["host"], node["port"]) for node in sentinel_options] == SENTINELS
    assert sentinel_options[0]["credential_provider"].get_credentials() == (SECRET,)
    assert sentinel_options[0]["socket_connect_timeout"] == 1


def test_the_error_of_unreachable_sentinels_names_each_cause() -> None:
    """redis-py 8 shows only the types of the errors, and all options of the clients."""
    app = make_app(
        redbeat_redis_url="redis-sentinel://",
        redbeat_redis_options={"sentinels": [("127.0.0.1", 1), ("127.0.0.1", 2)]},
    )
    with pytest.raises(redis.sentinel.MasterNotFoundError) as caught:
        get_redis(app).ping()
    assert str(caught.value).startswith("No master found for 'master': 127.0.0.1:1: ")
    assert str(caught.value).count("Connection refused") == 2
    assert "redis.client" not in str(caught.value)


def test_sentinel_in_celerys_spelling() -> None:
    app = make_app(
        broker="sentinel://:p@a:1/3;sentinel://:p@b",
        broker_transport_options={"master_name": "mine"},
    )
    client: Any = get_redis(app)
    pool = client.connection_pool
    assert pool.service_name == "mine"
    assert pool.connection_kwargs["db"] == 3
    sentinel_options = [
        node.connection_pool.connection_kwargs for node in app.redbeat_sentinel.sentinels
    ]
    assert [(node["host"], node["port"]) for node in sentinel_options] == [("a", 1), ("b", 26379)]


def test_tls_to_the_sentinels_is_verified_too() -> None:
    app = make_app(
        redbeat_redis_url="sentinel://a",
        redbeat_redis_options={"sentinel_kwargs": {"ssl": True}},
    )
    get_redis(app)
    pool = app.redbeat_sentinel.sentinels[0].connection_pool
    assert pool.connection_class is SSLConnection
    assert pool.connection_kwargs["ssl_cert_reqs"] == "required"
    assert pool.connection_kwargs["ssl_check_hostname"] is True


@pytest.mark.parametrize("form", ["url", "pair", "object"])
def test_a_cluster_that_is_away_is_a_connection_error_of_each_command(
    closed_port: int, form: str
) -> None:
    node = ("127.0.0.1", closed_port)
    nodes = [{"host": node[0], "port": node[1]}] if form == "object" else [node]
    url = f"redis-cluster://localhost:{closed_port}" if form == "url" else BROKER
    options = {} if form == "url" else {"cluster": True, "startup_nodes": nodes}
    client = client_of(redbeat_redis_url=url, redbeat_redis_options=options)
    for _ in range(2):
        with pytest.raises(redis.exceptions.ConnectionError, match=str(closed_port)):
            client.get("k")
    client.close()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (RedisClusterException("all keys must map to the same key slot"), ClusterCrossSlotError),
        (RedisClusterException("no node answers"), redis.exceptions.ConnectionError),
        (ClusterError("TTL exhausted."), TryAgainError),
        (ClusterDownError("CLUSTERDOWN"), ClusterDownError),
    ],
)
def test_each_error_of_a_cluster_is_an_error_of_redis(
    raised: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected), server_errors():
        raise raised


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NOREPLICAS Not enough good replicas to write.", ReadOnlyError),
        ("Error running script: -READONLY You can't write", ReadOnlyError),
        ("WRONGTYPE Operation against a key", ResponseError),
    ],
)
def test_a_server_that_refuses_writes_is_read_only(text: str, expected: type[Exception]) -> None:
    with pytest.raises(ResponseError) as caught, server_errors():
        raise ResponseError(text)
    assert type(caught.value) is expected


def test_a_pool_that_requires_the_name_of_the_command() -> None:
    """redis-py before 5.3 has such pools."""

    class Pool:
        def get_connection(self, command: str) -> str:
            return f"for {command}"

    assert connection_of(Pool(), "GET") == "for GET"


def test_a_server_that_is_not_a_cluster_is_an_error(redis_url: str) -> None:
    with pytest.raises(redis.exceptions.ConnectionError, match="not enabled"):
        client_of(redbeat_redis_url=redis_url, redbeat_redis_options={"cluster": True}).get("k")


def test_an_option_that_does_not_reach_cluster_nodes_is_an_error() -> None:
    options = {"health_check_interval": 5}
    with pytest.raises(ConfigurationError, match="health_check_interval"):
        client_of(redbeat_redis_url="redis-cluster://h", redbeat_redis_options=options)


def test_a_database_other_than_that_of_redbeat_2_is_logged(
    warnings: pytest.LogCaptureFixture,
) -> None:
    client_of(redbeat_redis_url="redis://h/1", redbeat_redis_options={"db": 2})
    (record,) = warnings.records
    assert record.getMessage() == (
        "The schedule is in database 2 of redbeat_redis_options; RedBeat 2 used database 1 of "
        "redbeat_redis_url"
    )


@pytest.mark.parametrize("settings", [{}, {"redbeat_redis_options": {"db": 0}}])
def test_the_usual_database_is_not_logged(
    warnings: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    client_of(**settings)
    assert not warnings.records


# Hidden passwords


@pytest.mark.parametrize(
    ("url", "printable"),
    [
        ("redis://localhost:7001/0", "redis://localhost:7001/0"),
        ("redis://:p@localhost:7001/0", "redis://:**@localhost:7001/0"),
        ("redis://u:p%40@localhost:7001/0", "redis://u:**@localhost:7001/0"),
        ("redis://u@localhost:7001/0", "redis://u@localhost:7001/0"),
        ("amqp://u:p@h:5672//", "amqp://u:**@h:5672//"),
    ],
)
def test_safe_url_as_celery_shows_it(url: str, printable: str) -> None:
    assert safe_url(url) == printable == maybe_sanitize_url(url)


@pytest.mark.parametrize(
    ("url", "printable"),
    [
        (None, ""),
        (["sentinel://:p@a", "sentinel://:p@b"], "sentinel://:**@a;sentinel://:**@b"),
        ("sentinel://:p@a:1;sentinel://:p@b:2/0", "sentinel://:**@a:1;sentinel://:**@b:2/0"),
        ("unix:///run/a@b.sock?db=1", "unix:///run/a@b.sock?db=1"),
        ("unix:///run/s?password=p&db=1", "unix:///run/s?password=**&db=1"),
        ("rediss://h?ssl_password=p#x", "rediss://h?ssl_password=**#x"),
        ("redis://u:p;q@h/0", "redis://u:**@h/0"),
        ("redis://u:p@q@h", "redis://u:**@h"),
        ("redis://u:p/q@h", "redis://u:**@h"),
        ("redis://u:p?q@h", "redis://u:**@h"),
        ("redis://u:p#q@h", "redis://u:**@h"),
        ("redis://u:p=q@h/0", "redis://u:**@h/0"),
        ("redis://a/b:p@h", "redis://a/b:**@h"),
        ("redis://me@example.com:p@h", "redis://me@example.com:**@h"),
        ("u:p://q@h", "u:**@h"),
        ("redis://u:p://q@h", "redis://u:**@h"),
        ("u:p@h:6379", "u:**@h:6379"),
        ("redis://h?client_name=a@b", "redis://h?client_name=a@b"),
    ],
)
def test_safe_url(url: Any, printable: str) -> None:
    assert safe_url(url) == printable


# TLS


def tls_of(**settings: Any) -> dict[str, Any] | None:
    """Return the TLS arguments of the connections, or None for connections without TLS."""
    pool = client_of(**settings).connection_pool
    if not issubclass(pool.connection_class, SSLConnection):
        assert issubclass(pool.connection_class, (Connection, UnixDomainSocketConnection))
        return None
    return {name: value for name, value in pool.connection_kwargs.items() if name[:4] == "ssl_"}


@pytest.mark.parametrize(
    "settings",
    [
        {"redbeat_redis_url": "rediss://h"},
        {"redbeat_redis_url": "rediss://h", "redbeat_redis_use_ssl": True},
        {"redbeat_redis_url": "rediss://h", "redbeat_redis_use_ssl": {}},
        {"redbeat_redis_url": "redis://h", "redbeat_redis_options": {"ssl": True}},
        {
            "redbeat_redis_url": "redis://h",
            "redbeat_redis_use_ssl": True,
            "redbeat_redis_options": {"ssl": True},
        },
        {"redbeat_redis_use_ssl": True},
        {"broker": "rediss://h"},
        {"broker_use_ssl": True},
        {"redbeat_redis_url": "sentinel://h", "redbeat_redis_use_ssl": True},
    ],
)
def test_tls_verifies_certificate_and_name(settings: dict[str, Any]) -> None:
    tls = tls_of(**settings)
    assert tls
    assert tls["ssl_cert_reqs"] == "required"
    assert tls["ssl_check_hostname"] is True


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"redbeat_redis_use_ssl": False, "broker_use_ssl": True},
        {"redbeat_redis_url": "redis://h", "broker_use_ssl": {"ssl_cert_reqs": "none"}},
        {"redbeat_redis_url": "redis://h", "redbeat_redis_use_ssl": True},
        {"redbeat_redis_url": "REDIS://h", "redbeat_redis_use_ssl": {"ssl_cert_reqs": "none"}},
        {"redbeat_redis_url": "unix:///s", "broker_use_ssl": True},
        {"redbeat_redis_url": "unix:///s", "redbeat_redis_use_ssl": True},
        {"redbeat_redis_url": "sentinel://h", "broker": "amqps://h", "broker_use_ssl": True},
        {"redbeat_redis_url": "sentinel://h", "broker_use_ssl": True},
    ],
)
def test_no_tls(settings: dict[str, Any]) -> None:
    assert tls_of(**settings) is None


def test_a_cluster_at_a_redis_url_uses_tls_if_the_setting_says_so() -> None:
    app = make_app(redbeat_redis_url="redis://h", redbeat_redis_options={"cluster": True})
    app.conf.redbeat_redis_use_ssl = True
    assert client_parameters(RedBeatConfig(app).endpoint).kwargs["ssl"] is True


@pytest.mark.parametrize("value", [ssl.CERT_NONE, "CERT_NONE", "none", "NONE", None, 0], ids=repr)
def test_switched_off_verification_is_warned_about(
    warnings: pytest.LogCaptureFixture, value: Any
) -> None:
    settings = {"redbeat_redis_use_ssl": {"ssl_cert_reqs": value}}
    for _ in range(2):
        tls = tls_of(**settings)
        assert tls
        assert tls["ssl_cert_reqs"] == "none"
        assert tls["ssl_check_hostname"] is False
    assert warnings.text.count("is not verified: ssl_cert_reqs is 'none'") == 2


def test_a_switched_off_host_name_check_is_warned_about(
    warnings: pytest.LogCaptureFixture,
) -> None:
    tls = tls_of(redbeat_redis_url="rediss://h?ssl_check_hostname=false")
    assert tls
    assert tls["ssl_cert_reqs"] == "required"
    assert tls["ssl_check_hostname"] is False
    assert "host name of the Redis server is not verified" in warnings.text


@pytest.mark.parametrize(
    ("in_url", "more", "expected"),
    [
        ("CERT_NONE", {}, "none"),
        ("none", {}, "none"),
        ("CERT_OPTIONAL", {}, "optional"),
        ("required", {}, "required"),
        ("optional", {"broker_use_ssl": {"ssl_cert_reqs": "none"}}, "optional"),
        ("optional", {"redbeat_redis_use_ssl": {"ssl_cert_reqs": "required"}}, "required"),
    ],
)
def test_tls_options_of_the_url(in_url: str, more: dict[str, Any], expected: str) -> None:
    tls = tls_of(redbeat_redis_url=f"rediss://h?ssl_cert_reqs={in_url}", **more)
    assert tls
    assert tls["ssl_cert_reqs"] == expected


def test_option_names_of_amqp_are_accepted(files: CertificateFiles) -> None:
    tls = tls_of(
        broker_use_ssl={
            "ca_certs": files.authority,
            "certfile": files.certificate,
            "keyfile": Path(files.key),
            "cert_reqs": ssl.CERT_REQUIRED,
            "server_hostname": "of the broker only",
        }
    )
    assert tls
    assert tls["ssl_ca_certs"] == files.authority
    assert tls["ssl_certfile"] == files.certificate
    assert tls["ssl_keyfile"] == Path(files.key)


@pytest.mark.parametrize(
    ("use_ssl", "names"),
    [
        ({"ssl_ca_cert": "x"}, "redbeat_redis_use_ssl.*ssl_ca_cert"),
        ({"xyzzy": 1}, "redbeat_redis_use_ssl.*xyzzy"),
        ({"ssl_cert_reqs": "sometimes"}, "Certificate Requirements Flag: sometimes"),
        ({"ssl_ca_certs": "/no/such/file"}, "ssl_ca_certs.*/no/such/file"),
        ({"ssl_ca_certs": 5}, "ssl_ca_certs"),
        ({"ssl_ca_path": 5}, "ssl_ca_path"),
    ],
)
def test_a_wrong_tls_option_is_named(use_ssl: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        client_of(redbeat_redis_use_ssl=use_ssl)


def test_tls_options_without_a_value_and_for_the_socket() -> None:
    """An option of None is as good as none; other options are passed on unchanged."""
    tls = tls_of(
        redbeat_redis_use_ssl={
            "ssl_ca_certs": None,
            "ssl_password": None,
            "ssl_ca_data": "the text of a certificate",
        }
    )
    assert tls
    assert tls.get("ssl_ca_certs") is None
    assert tls["ssl_ca_data"] == "the text of a certificate"


def test_unusable_files_are_errors(files: CertificateFiles) -> None:
    wrong: list[dict[str, Any]] = [
        {"ssl_ca_certs": files.key},
        {"ssl_certfile": files.authority, "ssl_keyfile": files.key},
        {"ssl_keyfile": files.key},
        {"ssl_certfile": files.certificate, "ssl_keyfile": files.encrypted_key},
        {
            "ssl_certfile": files.certificate,
            "ssl_keyfile": files.encrypted_key,
            "ssl_password": SECRET,
        },
    ]
    for use_ssl in wrong:
        with pytest.raises(ConfigurationError, match="files for TLS cannot be used") as caught:
            client_of(redbeat_redis_use_ssl=use_ssl)
        assert all(
            f"{name}={use_ssl[name]!r}" in str(caught.value) for name in use_ssl if "file" in name
        )
        assert SECRET not in str(caught.value)


def test_an_encrypted_key_is_decrypted_with_its_password(files: CertificateFiles) -> None:
    tls = tls_of(
        redbeat_redis_use_ssl={
            "ssl_certfile": files.certificate,
            "ssl_keyfile": files.encrypted_key,
            "ssl_password": KEY_PASSWORD,
            "ssl_ca_path": str(Path(files.key).parent),
        }
    )
    assert tls
    assert KEY_PASSWORD not in str(tls)


def test_tls_options_without_tls() -> None:
    with pytest.raises(ConfigurationError, match=r"redbeat_redis_url.*ssl_cert_reqs.*rediss"):
        client_of(redbeat_redis_url="redis://h?ssl_cert_reqs=none")
    with pytest.raises(ConfigurationError, match=r"redbeat_redis_options.*ssl_ca_certs"):
        client_of(redbeat_redis_options={"ssl_ca_certs": "x"})


# Connections


def test_a_stale_connection_is_replaced_at_once(redis_url: str) -> None:
    client = client_of(redbeat_redis_url=redis_url)
    with Redis.from_url(redis_url) as other:
        own = client.client_id()
        other.client_kill_filter(_id=own)
        assert client.set("k", 1)
        assert client.client_id() != own


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:99999/0", "127.0.0.1:99999"),
        ("redis://user:p%40ss@host:65536", "host:65536"),
        ("redis://host:0/1", "host:0"),
        ("redis://host:-1", "host:-1"),
        ("redis://host:http/0", "host:http"),
        ("redis://[::1]:70000", "[::1]:70000"),
        ("redis-sentinel://a:26379;redis-sentinel://b:99999", "b:99999"),
    ],
)
def test_a_wrong_port_is_shown(url: str, shown: str) -> None:
    with pytest.raises(ConfigurationError, match="a port is a number from 1 to 65535") as caught:
        parse_url(url, "redbeat_redis_url")
    assert str(caught.value).startswith("redbeat_redis_url is malformed: ")
    assert shown in str(caught.value)
    assert "p%40ss" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://user:p/ss@host:6379", "redis://user:p#1@host"])
def test_an_unquoted_password_is_not_taken_for_a_port(url: str) -> None:
    with pytest.raises(ConfigurationError, match="quote special characters of the user name"):
        parse_url(url, "redbeat_redis_url")
