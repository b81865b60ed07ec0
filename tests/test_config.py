"""Tests of the configuration: setting names, defaults, invalid values, and log messages."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis.asyncio
from celery import Celery, current_app
from celery.local import Proxy
from redis import Redis
from redis.cluster import RedisCluster

from redbeat import RedBeatSchedulerEntry, Schedule
from redbeat.config import RedBeatConfig, ensure_conf, get_redis, real_app
from redbeat.connection.endpoint import client_parameters
from redbeat.connection.topology import build
from redbeat.errors import ConfigurationError
from redbeat.settings import BEAT_SETTINGS, MISSING, SETTINGS, find_setting

URL = "redis://localhost:6379/0"


def make_app(namespace: str | None = None, broker: Any = URL, **settings: Any) -> Celery:
    """Return an app that reads its settings from an object, as projects do."""
    app = Celery("conf", broker=broker, set_as_current=False)
    app.config_from_object(settings, namespace=namespace)
    return app


def config_of(**settings: Any) -> RedBeatConfig:
    return RedBeatConfig(make_app(**settings))


class LazySettings:
    """A settings object that is filled at its first use, as in Django."""

    def __init__(self, **values: Any) -> None:
        self.__dict__["_values"] = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self) -> Iterator[str]:
        return iter(self.__dict__["_values"])


def test_defaults() -> None:
    """``tests/test_settings_table.py`` compares the default of each setting with the manual."""
    config = config_of()
    assert config.key_prefix == "redbeat:"
    assert config.schedule_key == "redbeat::schedule"
    assert config.statics_key == "redbeat::statics"
    assert {".redbeat::quarantine", "redbeat::statics"} <= {*config.reserved_keys}
    assert config.lock_key == "redbeat::lock"
    assert config.redis_url == URL
    assert (config.redbeat_redis_options, config.endpoint.options.inherited) == ({}, True)
    assert not config.redis_use_ssl
    assert not config.cluster


def test_the_schedule_is_the_current_one() -> None:
    app = make_app()
    config = ensure_conf(app)
    assert config.schedule == {}
    app.conf.beat_schedule = {"a": {"task": "t", "schedule": 1}}
    assert list(config.schedule) == ["a"]
    config.schedule = {"b": {"task": "t", "schedule": 1}}
    assert list(app.conf.beat_schedule) == ["b"]


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        (None, "redbeat_key_prefix"),
        (None, "REDBEAT_KEY_PREFIX"),
        ("CELERY", "CELERY_REDBEAT_KEY_PREFIX"),
        ("CELERY_", "CELERY_REDBEAT_KEY_PREFIX"),
        ("celery", "celery_redbeat_key_prefix"),
        ("CELERY", "REDBEAT_KEY_PREFIX"),
    ],
)
def test_spellings(namespace: str | None, name: str) -> None:
    assert RedBeatConfig(make_app(namespace, **{name: "mine:"})).schedule_key == "mine::schedule"


def test_sources_of_every_kind() -> None:
    module = types.ModuleType("celeryconfig")
    vars(module)["redbeat_key_prefix"] = "m:"
    holder = type("Config", (), {"redbeat_key_prefix": "m:"})
    lazy = LazySettings(CELERY_REDBEAT_KEY_PREFIX="m:")
    for source, namespace in ((module, None), (holder, None), (holder(), None), (lazy, "CELERY")):
        app = Celery("conf", broker=URL, set_as_current=False)
        app.config_from_object(source, namespace=namespace)
        assert RedBeatConfig(app).key_prefix == "m:"


def test_a_setting_made_on_the_app_beats_the_source() -> None:
    app = make_app(redbeat_key_prefix="source:")
    app.conf.redbeat_key_prefix = "app:"
    assert RedBeatConfig(app).key_prefix == "app:"


@pytest.mark.parametrize("value", [None, "", False])
@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        (None, "redbeat_lock_key"),
        (None, "REDBEAT_LOCK_KEY"),
        ("CELERY", "CELERY_REDBEAT_LOCK_KEY"),
    ],
)
def test_an_empty_value_disables_the_lock(namespace: str | None, name: str, value: Any) -> None:
    lazy = Celery("conf", broker=URL, set_as_current=False)
    lazy.config_from_object(LazySettings(**{name: value}), namespace=namespace)
    for app in (make_app(namespace, **{name: value}), lazy):
        config = RedBeatConfig(app)
        assert config.lock_key is None
        assert config.is_key_in_conf("redbeat_lock_key")
    if namespace is None:
        pending = Celery("conf", broker=URL, set_as_current=False)
        pending.conf.update({name: value})
        assert RedBeatConfig(pending).lock_key is None


def test_custom_lock_key_gets_the_prefix_once() -> None:
    assert config_of(redbeat_lock_key="mine").lock_key == "redbeat:mine"
    assert config_of(redbeat_lock_key="redbeat:mine").lock_key == "redbeat:mine"


def test_helpers_of_redbeat_2() -> None:
    config = config_of(REDBEAT_ANYTHING=3, redbeat_nothing=None)
    assert config.either_or("redbeat_anything") == 3
    assert config.either_or("redbeat_nothing", "default") == "default"
    assert config.either_or("redbeat_missing") is None
    assert config.either_or("broker_url") == URL
    assert config.is_key_in_conf("redbeat_anything")
    assert config.is_key_in_conf("redbeat_nothing")
    assert not config.is_key_in_conf("redbeat_missing")


def test_broker_settings_are_the_defaults() -> None:
    transport = {"visibility_timeout": 5, "password": "secret", "master_name": "m"}
    config = config_of(broker_use_ssl={"ssl_cert_reqs": "none"}, broker_transport_options=transport)
    assert config.redis_use_ssl == {"ssl_cert_reqs": "none"}
    assert config.redbeat_redis_options == {"password": "secret", "master_name": "m"}
    assert config.endpoint.options.inherited


def test_own_settings_win_and_keep_everything() -> None:
    config = config_of(
        redbeat_redis_url="rediss://other",
        redbeat_redis_use_ssl=True,
        redbeat_redis_options={"health_check_interval": 3},
        broker_use_ssl={"ssl_cert_reqs": "none"},
        broker_transport_options={"password": "secret"},
    )
    assert config.redis_url == "rediss://other"
    assert config.redis_use_ssl is True
    assert config.redbeat_redis_options == {"health_check_interval": 3}
    assert not config.endpoint.options.inherited
    assert config.endpoint.url.setting == "redbeat_redis_url"
    assert config.endpoint.use_ssl.setting == "redbeat_redis_use_ssl"
    assert config.endpoint.options.setting == "redbeat_redis_options"


def test_alternative_urls_of_the_broker_are_kept() -> None:
    text = "sentinel://a:1;sentinel://b:2"
    assert config_of(broker=text).redis_url == text
    assert RedBeatConfig(make_app(broker=None, broker_url=text.split(";"))).redis_url == text


def test_broker_that_is_not_redis_does_not_prevent_the_configuration() -> None:
    assert config_of(broker="amqp://guest@localhost//").key_prefix == "redbeat:"


@pytest.mark.parametrize(
    "settings",
    [
        {"redbeat_redis_url": "redis-cluster://a"},
        {"redbeat_redis_options": {"cluster": True}},
    ],
)
def test_cluster_has_a_hash_tag(settings: dict[str, Any]) -> None:
    config = config_of(**settings)
    assert config.cluster
    assert config.schedule_key == "{redbeat}::schedule"
    assert config.lock_key == "{redbeat}::lock"
    assert config_of(redbeat_key_prefix="{a}b:", **settings).key_prefix == "{a}b:"
    for untagged in ("mine:", "{}mine:", "{}{mine}:", "{mine:"):
        with pytest.raises(ConfigurationError, match=r"redbeat_key_prefix.*hash tag"):
            config_of(redbeat_key_prefix=untagged, **settings)


def test_no_option_allows_a_prefix_without_a_hash_tag_in_a_cluster() -> None:
    options = {"cluster": True, "allow_untagged_prefix": True}
    with pytest.raises(
        ConfigurationError, match=r"'\{old\}:'.*redbeat\.management\.prefixes\.copy_untagged"
    ):
        config_of(redbeat_key_prefix="old:", redbeat_redis_options=options)


def test_the_client_of_the_user_decides_about_the_cluster() -> None:
    app = make_app(redbeat_redis_options={"cluster": True})
    app.redbeat_redis = Redis()
    assert not RedBeatConfig(app).cluster


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redbeat_key_prefix", 5),
        ("redbeat_lock_key", 5),
        ("redbeat_lock_key", "redbeat::schedule"),
        ("redbeat_lock_key", ":statics"),
        ("redbeat_lock_key", ":stats"),
        ("redbeat_lock_timeout", -1),
        ("redbeat_lock_timeout", 0.0009),
        ("redbeat_lock_timeout", False),
        ("redbeat_lock_timeout", "60"),
        ("redbeat_lock_timeout", True),
        ("redbeat_lock_timeout", float("nan")),
        ("redbeat_lock_timeout", float("inf")),
        ("redbeat_key_expiry_check", "panic"),
        ("redbeat_key_expiry_check", ["error"]),
        ("redbeat_redis_use_ssl", "yes"),
        ("redbeat_redis_options", "db=3"),
        ("redbeat_redis_options", [("db", 3)]),
        ("redbeat_metrics_port", 0),
        ("redbeat_metrics_port", 65536),
        ("redbeat_metrics_port", "9540"),
        ("redbeat_metrics_port", True),
        ("redbeat_metrics_host", ""),
        ("redbeat_metrics_host", 127),
        ("redbeat_metrics_entries", -1),
        ("redbeat_metrics_entries", 10_001),
        ("beat_cron_starting_deadline", timedelta(seconds=10)),
        ("beat_max_loop_interval", "5"),
        ("beat_max_loop_interval", -1),
        ("beat_sync_every", "1"),
        *(
            ("redbeat_max_rate", rate)
            for rate in (0, -1, "5", True, float("nan"), float("inf"), [5])
        ),
    ],
)
def test_impossible_value_names_its_setting(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        config_of(**{name: value})


@pytest.mark.parametrize(
    "client", [redis.asyncio.Redis(), Redis().pipeline(), Redis().connection_pool, "redis://h"]
)
def test_what_is_no_client_that_blocks(client: Any) -> None:
    app = make_app()
    app.redbeat_redis = client
    kind = type(client).__name__
    with pytest.raises(ConfigurationError, match=rf"app.redbeat_redis is of the type .*{kind},"):
        RedBeatSchedulerEntry("a", "t", 60, app=app).save()


@pytest.mark.parametrize("value", [None, "entries", [{"task": "t", "schedule": 1}]])
def test_a_schedule_that_is_no_dict(value: Any) -> None:
    config = config_of(beat_schedule=value)
    with pytest.raises(ConfigurationError, match=r"beat_schedule is .*, it must be a dict"):
        _ = config.schedule


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retry_period", "often"),
        ("sentinels", "localhost"),
        ("sentinels", [("localhost",)]),
        ("sentinels", [("localhost", "port")]),
        ("service_name", 5),
        ("sentinel_kwargs", ["password"]),
        ("startup_nodes", [{"host": "a"}]),
        ("startup_nodes", 5),
        ("password", 5),
        ("username", b"u"),
        ("db", "first"),
        ("socket_timeout", "long"),
        ("credential_provider", object()),
        ("credential_provider", "no.such.Provider"),
    ],
)
def test_impossible_option_names_setting_and_option(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^redbeat_redis_options\['{option}'\] "):
        config_of(redbeat_redis_options={option: value})
    with pytest.raises(ConfigurationError, match=rf"^broker_transport_options\['{option}'\] "):
        config_of(broker_transport_options={option: value})


CHOICES = {
    "redbeat_delivery": ("exactly_once", "at_least_once", "at_most_once"),
    "redbeat_on_lock_lost": ("standby", "exit"),
}
#: A delivery of None means the strongest guarantee that is possible.
CHOSEN = {"redbeat_delivery": None, "redbeat_on_lock_lost": "standby"}


@pytest.mark.parametrize("name", CHOICES)
def test_none_is_the_default_of_a_choice(name: str) -> None:
    for config in (config_of(), config_of(**{name: None})):
        assert getattr(config, name.removeprefix("redbeat_")) == CHOSEN[name]


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["", "AT_MOST_ONCE", "die", 1, True, ["exit"], b"exit"], ids=repr)
def test_a_wrong_choice_is_an_error_that_names_the_valid_ones(name: str, value: Any) -> None:
    for valid in CHOICES[name]:
        assert getattr(config_of(**{name: valid}), name.removeprefix("redbeat_")) == valid
    with pytest.raises(ConfigurationError) as raised:
        config_of(**{name: value})
    assert str(raised.value) == f"{name} is {value!r}, it must be one of {', '.join(CHOICES[name])}"


@pytest.mark.parametrize(("value", "rate"), [(None, None), (5, 5.0), (0.25, 0.25)])
def test_the_rate_of_late_runs(value: Any, rate: float | None) -> None:
    assert config_of(redbeat_max_rate=value).max_rate == rate


def test_options_are_converted() -> None:
    given = {
        "retry_period": "2.5",
        "db": "3",
        "sentinels": [["a", "1"], ("b", 2)],
        "startup_nodes": [{"host": "c", "port": 3}],
        "socket_timeout": None,
        "password": None,
    }
    assert config_of(redbeat_redis_options=given).redbeat_redis_options == {
        "retry_period": 2.5,
        "db": 3,
        "sentinels": [("a", 1), ("b", 2)],
        "startup_nodes": [("c", 3)],
        "socket_timeout": None,
    }


@pytest.mark.parametrize(
    ("setting", "argument", "interval", "timeout"),
    [
        (60, 30, 10, 30),
        (60, None, 10, 60),
        (60, 0, 10, 60),
        (0.5, None, 0, 0.5),
        (None, 0.5, 0, 0.5),
        *((unset, argument, 10, 50) for unset in (None, 0) for argument in (None, 0)),
        *((unset, argument, 0, 1500) for unset in (None, 0) for argument in (None, 0)),
        (None, None, 0.1, 1.0),
    ],
)
def test_the_lock_timeout_is_the_argument_the_setting_or_five_intervals(
    setting: float | None, argument: float | None, interval: float, timeout: float
) -> None:
    config = config_of(redbeat_lock_timeout=setting)
    assert config.lock_timeout == (setting or None)
    assert config.resolve_lock_timeout(argument, interval) == timeout
    if argument is None and not interval:
        assert config.resolve_lock_timeout() == timeout


@pytest.mark.parametrize("argument", [-5, True, False, "5", float("nan")])
def test_impossible_lock_timeout_as_an_argument(argument: Any) -> None:
    with pytest.raises(ConfigurationError, match="redbeat_lock_timeout"):
        config_of().resolve_lock_timeout(argument, 300)


def test_an_empty_prefix() -> None:
    config = config_of(redbeat_key_prefix="", redbeat_lock_key="mine")
    assert (config.schedule_key, config.lock_key) == (":schedule", "mine")
    with pytest.raises(ConfigurationError, match="redbeat_key_prefix"):
        config_of(redbeat_key_prefix="", redbeat_redis_options={"cluster": True})


class LocalProxy:
    """A proxy that looks up the app at each use, as in Flask programs."""

    __slots__ = ("_get_current_object",)

    def __init__(self, find: Callable[[], Any]) -> None:
        self._get_current_object = find

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get_current_object(), name)


@pytest.mark.parametrize("proxy", [Proxy, LocalProxy])
def test_a_proxy_is_resolved_to_its_app(proxy: Any) -> None:
    app = make_app()
    found = proxy(lambda: app)
    assert real_app(found) is real_app(proxy(lambda: found)) is app
    assert RedBeatConfig(found).app is app
    assert ensure_conf(found) is ensure_conf(app)
    assert RedBeatSchedulerEntry("a", "t", 60, app=found).app is app
    assert Schedule(found).app is app


def test_the_current_app_is_resolved() -> None:
    app, previous = make_app(), Celery("previous")
    app.set_current()
    try:
        assert RedBeatSchedulerEntry("a", "t", 60, app=current_app).app is app
    finally:
        previous.set_current()


def cluster_client(port: int) -> RedisCluster:
    """Return a Cluster client that does not connect until its first command."""
    client = build(
        client_parameters(config_of(redbeat_redis_url=f"redis-cluster://h:{port}").endpoint)
    )
    assert isinstance(client, RedisCluster)
    return client


def test_a_cluster_client_that_is_set_later_is_used() -> None:
    app = make_app()
    config = ensure_conf(app)
    app.redbeat_redis = cluster_client(7000)
    assert ensure_conf(app) is config
    assert (config.key_prefix, config.lock_key) == ("{redbeat}:", "{redbeat}::lock")
    assert config.schedule_key in config.reserved_keys
    assert RedBeatSchedulerEntry("a", "t", 60, app=app).key == "{redbeat}:a"


def test_a_cluster_client_that_is_set_later_needs_a_hash_tag() -> None:
    app = make_app(redbeat_key_prefix="mine:")
    ensure_conf(app)
    app.redbeat_redis = cluster_client(7000)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"redbeat_key_prefix is 'mine:'"):
            ensure_conf(app)


def test_ensure_conf_reads_once() -> None:
    app = make_app()
    config = ensure_conf(app)
    app.conf.redbeat_key_prefix = "later:"
    assert ensure_conf(app) is config
    assert app.redbeat_conf is config
    assert config.key_prefix == "redbeat:"
    get_redis(app)
    assert ensure_conf(app).key_prefix == "redbeat:"


def test_without_an_app_the_current_app_is_used() -> None:
    app = make_app(redbeat_key_prefix="current:")
    previous = Celery("previous")
    app.set_current()
    try:
        assert ensure_conf().app is app
        assert RedBeatConfig().key_prefix == "current:"
        assert get_redis() is app.redbeat_redis is get_redis(app)
    finally:
        previous.set_current()


def test_find_setting_in_the_configuration() -> None:
    app = make_app(redbeat_lock_key=None)
    assert find_setting(app, "redbeat_lock_key") is None
    assert find_setting(app, "redbeat_key_prefix") is MISSING


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "celery.beat"]


def reported(caplog: pytest.LogCaptureFixture, app: Celery) -> list[str]:
    """Return the warnings of the first use; assert that no warning is logged earlier."""
    config = ensure_conf(app)
    assert warnings_of(caplog) == []
    config.report()
    config.report()
    return warnings_of(caplog)


@pytest.mark.parametrize(
    ("namespace", "name", "nearest"),
    [
        (None, "redbeat_lock_timout", "redbeat_lock_timeout"),
        (None, "REDBEAT_REDIS_OPTION", "redbeat_redis_options"),
        ("CELERY", "CELERY_REDBEAT_PREFIX_KEY", "redbeat_key_prefix"),
        (None, "RedBeat_Lock_Timeout", "redbeat_lock_timeout"),
        (None, "RedBeat_Lock_Timout", "redbeat_lock_timeout"),
        ("CELERY", "CELERY_RedBeat_Lock_Timeout", "redbeat_lock_timeout"),
        ("CELERY", "Celery_REDBEAT_LOCK_TIMEOUT", "redbeat_lock_timeout"),
        ("CELERY", "RedBeat_Lock_Timeout", "redbeat_lock_timeout"),
        ("CELERY", "CELERY_REDBEAT_REDIS_UR", "redbeat_redis_url"),
        ("CELERY", "REDBEAT_REDIS_UR", "redbeat_redis_url"),
        ("CELERY", "CELERY_REBEAT_REDIS_URL", "redbeat_redis_url"),
        ("CELERY", "CELERY_BEAT_SHEDULE", "beat_schedule"),
        ("CELERY", "CELERY_BEAT_SCHEDULLER", "beat_scheduler"),
        (None, "REDBEAT_DELIVERYS", "redbeat_delivery"),
        (None, "redbeat_on_lock_loss", "redbeat_on_lock_lost"),
        # The names of redisbeater, another scheduler.
        (None, "redisbeater_redis_url", "redbeat_redis_url"),
        (None, "REDISBEATER_LOCK_TIMEOUT", "redbeat_lock_timeout"),
    ],
)
def test_a_misspelt_setting_is_reported_with_the_most_similar_one(
    caplog: pytest.LogCaptureFixture, namespace: str | None, name: str, nearest: str
) -> None:
    app = make_app(namespace, **{name: "s3cret"})
    assert reported(caplog, app) == [f"Unknown setting {name}: did you mean {nearest}?"]


@pytest.mark.parametrize("name", ["redbeat_xyzzy", "redisbeater_xyzzy"])
def test_unknown_setting_is_reported_with_all_valid_ones(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (message,) = reported(caplog, make_app(**{name: "s3cret"}))
    assert message.startswith(f"Unknown setting {name}: the valid settings are redbeat_redis_url")
    assert all(valid in message for valid in SETTINGS)
    assert "s3cret" not in message


def test_an_empty_lock_key_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = reported(caplog, make_app(redbeat_lock_key=""))
    assert message == "redbeat_lock_key is '', which turns the lock off: use None instead"


def test_misspelt_setting_in_an_object_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("conf", broker=URL, set_as_current=False)
    settings = LazySettings(CELERY_REDBEAT_LOCKKEY=None, DEBUG=True, BEAT_REDIS_URL="mine")
    app.config_from_object(settings, namespace="CELERY")
    assert reported(caplog, app) == [
        "Unknown setting CELERY_REDBEAT_LOCKKEY: did you mean redbeat_lock_key?"
    ]


@pytest.mark.parametrize(
    ("namespace", "name", "warning"),
    [
        ("CELERY", "BEAT_SCHEDULER", "The setting {} is not read: write CELERY_BEAT_SCHEDULER"),
        (
            "CELERY",
            "CELREY_REDBEAT_REDIS_URL",
            "The setting {} is not read: write CELERY_REDBEAT_REDIS_URL",
        ),
        (
            None,
            "CELERY_REDBEAT_REDIS_URL",
            "The setting {} is not read: pass namespace='CELERY' to config_from_object()",
        ),
        (
            None,
            "MYSITE_BEAT_SCHEDULE",
            "The setting {} is not read: pass namespace='MYSITE' to config_from_object()",
        ),
    ],
)
def test_a_setting_that_the_namespace_hides_is_reported(
    caplog: pytest.LogCaptureFixture, namespace: str | None, name: str, warning: str
) -> None:
    app = Celery("conf", set_as_current=False)
    app.config_from_object(LazySettings(**{name: "s3cret", "DEBUG": True}), namespace=namespace)
    assert reported(caplog, app) == [warning.format(name)]
    assert "s3cret" not in {find_setting(app, each) for each in SETTINGS}
    assert "s3cret" not in {app.conf[each] for each in BEAT_SETTINGS if each != "beat_schedule"}
    assert app.conf.beat_schedule == {}


@pytest.mark.parametrize(
    ("namespace", "names"),
    [
        ("CELERY", ["CELERY_REDBEAT_REDIS_URL", "CELERY_BEAT_SCHEDULER", "CELERY_TIMEZONE"]),
        ("CELERY", ["REDBEAT_REDIS_URL", "redbeat_lock_timeout", "beat_scheduler"]),
        ("CELERY", ["OTHER_REDBEAT_REDIS_URL", "OTHER_BEAT_SCHEDULE"]),
        ("CELERY", ["BEAT_SCHEDULE", "CELERY_BEAT_SCHEDULE"]),
        ("CELERY", ["CELERYBEAT_SCHEDULE"]),
        ("CELERY", ["REDBEAT_WEB_VIEW_PERMISSION", "REDBEAT_WEB_CHANGE_PERMISSION"]),
        ("CELERY", ["BEAT_REDIS_URL", "HEARTBEAT_SECONDS", "CELERY_RESULT_BACKEND"]),
        (None, ["CELERYBEAT_SCHEDULE", "CELERYBEAT_SCHEDULER"]),
        (None, ["beat_schedule", "redbeat_redis_url", "HEARTBEAT_SECONDS"]),
    ],
)
def test_other_settings_of_a_project_are_no_mistakes(
    caplog: pytest.LogCaptureFixture, namespace: str | None, names: list[str]
) -> None:
    app = Celery("conf", set_as_current=False)
    values: dict[str, Any] = {
        name: {} if name.endswith("SCHEDULE") else 9 if name.endswith("timeout") else "redis://h"
        for name in names
    }
    values |= {name: "UTC" for name in names if name.endswith("TIMEZONE")}
    app.config_from_object(LazySettings(**values), namespace=namespace)
    assert reported(caplog, app) == []


@pytest.mark.parametrize("url", ["redis://h", "unix:///run/redis.sock"])
def test_tls_beside_a_url_without_tls_is_reported_once(
    caplog: pytest.LogCaptureFixture, url: str
) -> None:
    tls = {"ssl_ca_certs": "/etc/ca.pem"}
    app = make_app(redbeat_redis_url=url, redbeat_redis_use_ssl=tls)
    (line,) = reported(caplog, app)
    scheme = url.partition("/")[0]
    assert line.startswith(f"redbeat_redis_use_ssl has no effect on redbeat_redis_url, a {scheme}")


@pytest.mark.parametrize(
    "settings",
    [
        {"redbeat_redis_url": "rediss://h"},
        {"redbeat_redis_url": "redis://h", "redbeat_redis_use_ssl": False},
        {"redbeat_redis_url": "redis://h", "redbeat_redis_options": {"ssl": True}},
        {"redbeat_redis_url": "redis://h", "redbeat_redis_use_ssl": None, "broker_use_ssl": True},
        {"redbeat_redis_url": "sentinel://h"},
        {"redbeat_redis_url": "redis-cluster://h", "redbeat_key_prefix": "{x}:"},
        {},
    ],
    ids=str,
)
def test_tls_that_is_used_or_off_is_not_reported(
    caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    assert reported(caplog, make_app(**{"redbeat_redis_use_ssl": True, **settings})) == []


def test_valid_settings_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(
        REDBEAT_LOCK_TIMEOUT=60,
        redbeat_key_prefix="x:",
        redbeat_lock_key=None,
        redis_backend_use_ssl=None,
        redis_socket_timeout=3,
        result_backend=None,
    )
    assert reported(caplog, app) == []
