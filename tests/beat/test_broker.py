"""Tests of the broker connection of a beat, and of the warnings about publisher confirms."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from redbeat.beat.broker import (
    checked_producer,
    publishing_connection,
    warn_about_confirms,
)
from redbeat.beat.message import LONGEST_TIMEOUT, ONE_RETRY, retry_options
from redbeat.errors import ConfigurationError

KOMBU: Any = kombu

REDIS = {"socket_timeout", "socket_connect_timeout"}
AMQP = {"read_timeout", "write_timeout"}
BOUNDED = [
    ("redis://127.0.0.1:1/0", REDIS),
    ("rediss://127.0.0.1:1/0?ssl_cert_reqs=required", REDIS),
    ("sentinel://127.0.0.1:1/0", REDIS),
    ("amqp://127.0.0.1:1//", AMQP),
    ("pyamqp://127.0.0.1:1//", AMQP),
]


def make_app(broker: str, **options: Any) -> Celery:
    """Return an app with these transport options; its broker is never contacted."""
    app = Celery("broker", broker=broker, set_as_current=False)
    if options:
        app.conf.broker_transport_options = options
    return app


def options_of(app: Celery, patience: float = 30.0) -> dict[str, Any]:
    """Return the transport options of the connection on which a beat publishes."""
    with publishing_connection(app, patience) as connection:
        return dict(connection.transport_options or {})


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Return a port that accepts connections but never replies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class TestTimeouts:
    @pytest.mark.parametrize(("broker", "names"), BOUNDED)
    @pytest.mark.parametrize(("patience", "seconds"), [(30.0, 5.0), (12.0, 2.0), (5.0, 1.0)])
    def test_timeouts_are_a_sixth_of_the_lease_and_at_least_a_second(
        self, broker: str, names: set[str], patience: float, seconds: float
    ) -> None:
        found = options_of(make_app(broker), patience)
        assert {name: found.get(name) for name in names} == dict.fromkeys(names, seconds)
        assert set(found) == names

    @pytest.mark.parametrize(("broker", "names"), BOUNDED)
    def test_a_timeout_of_the_user_wins(self, broker: str, names: set[str]) -> None:
        users_option, default_option = sorted(names)
        found = options_of(make_app(broker, **{users_option: 77.0, "visibility_timeout": 9}))
        assert found == {users_option: 77.0, default_option: 5.0, "visibility_timeout": 9}

    def test_other_kinds_of_brokers_get_no_timeouts(self) -> None:
        found = options_of(make_app("redis://127.0.0.1:1/0", read_timeout=3))
        assert found == {"read_timeout": 3, **dict.fromkeys(REDIS, 5.0)}

    def test_the_memory_transport_gets_no_timeouts(self) -> None:
        assert options_of(make_app("memory://")) == {}
        assert options_of(make_app("memory://", polling_interval=1)) == {"polling_interval": 1}

    def test_the_settings_of_the_app_do_not_change(self) -> None:
        app = make_app("redis://127.0.0.1:1/0", visibility_timeout=9)
        options_of(app)
        assert app.conf.broker_transport_options == {"visibility_timeout": 9}
        with app.connection_for_write() as connection:
            assert connection.transport_options == {"visibility_timeout": 9}

    def test_the_connection_uses_the_write_url_of_the_app(self) -> None:
        app = Celery("broker", broker="memory://", set_as_current=False)
        app.conf.broker_write_url = "redis://127.0.0.1:7/3"
        with publishing_connection(app, 30.0) as connection:
            assert (connection.port, connection.virtual_host) == (7, "3")

    @pytest.mark.parametrize("scheme", ["redis", "amqp"])
    def test_a_broker_that_never_answers_does_not_block(
        self, scheme: str, silent_port: int
    ) -> None:
        """Setup: a listening broker. Fault: the broker never replies. Invariant: connecting raises
        an error within 8 s.
        """
        app = make_app(f"{scheme}://127.0.0.1:{silent_port}//")
        started = time.monotonic()
        with publishing_connection(app, 5.0) as connection:
            with pytest.raises(connection.connection_errors):
                connection.connect()
            # Kombu tries twice and waits 2 s between the tries. Each try times out after 1 s.
            # Celery's default timeout is 4 s.
            assert time.monotonic() - started < 8.0

    def test_a_connection_timeout_of_the_user_wins(self) -> None:
        app = make_app("amqp://127.0.0.1:1//")
        with publishing_connection(app, 12.0) as connection:
            assert connection.connect_timeout == 2.0
        with publishing_connection(app, 30.0) as connection:
            assert connection.connect_timeout == app.conf.broker_connection_timeout == 4
        app = make_app("amqp://127.0.0.1:1//")
        app.conf.broker_connection_timeout = 9
        with publishing_connection(app, 12.0) as connection:
            assert connection.connect_timeout == 9


class TestRetryOptions:
    def test_at_least_once_tries_once_more(self) -> None:
        assert retry_options({"queue": "q"}, False) == {"queue": "q", "retry_policy": ONE_RETRY}
        assert ONE_RETRY["max_retries"] == 1

    @pytest.mark.parametrize(
        "policy",
        [
            {"max_retries": 10**9},
            {"max_retries": None},
            {"max_retries": 9, "interval_start": 86400, "interval_max": 86400},
            {"interval_start": 1e9, "interval_step": 1e9, "interval_max": 1e9},
            {"socket_timeout": None, "read_timeout": 1e9},
            {"max_retries": "many"},
            {},
            None,
            "often",
        ],
    )
    def test_an_entry_cannot_have_more_retries(self, policy: Any) -> None:
        options_given = {"retry_policy": policy, "retry": True}
        assert retry_options(options_given, False) == {"retry_policy": ONE_RETRY, "retry": True}

    def test_an_entry_can_have_fewer_retries(self) -> None:
        options_given = {"retry_policy": {"max_retries": 0, "interval_start": 5}}
        expected = {"retry_policy": {**ONE_RETRY, "max_retries": 0}}
        assert retry_options(options_given, False) == expected
        assert retry_options({"retry": False}, False)["retry"] is False

    @pytest.mark.parametrize("name", ["timeout", "confirm_timeout"])
    @pytest.mark.parametrize("once", [True, False])
    def test_an_entry_cannot_wait_for_hours(self, name: str, once: bool) -> None:
        assert retry_options({name: 36000}, once)[name] == LONGEST_TIMEOUT
        assert retry_options({name: 0.5}, once)[name] == 0.5
        assert retry_options({name: None}, once)[name] is None

    @pytest.mark.parametrize("once", [True, False])
    def test_a_stored_policy_does_not_delay_a_publish(self, closed_port: int, once: bool) -> None:
        """Setup: no broker. Fault: the retry policy allows hours of retries. Invariant: the error
        is raised at once.
        """
        app = make_app(f"amqp://127.0.0.1:{closed_port}//")
        hours = dict.fromkeys(("interval_start", "interval_step", "interval_max"), 36000)
        options_given = {"retry_policy": {"max_retries": 10**6, **hours}, "timeout": 36000}
        started = time.monotonic()
        with publishing_connection(app, 5.0) as connection:
            producer = app.amqp.Producer(connection, auto_declare=False)
            with pytest.raises(OperationalError):
                app.send_task("t", producer=producer, **retry_options(options_given, once))
        assert time.monotonic() - started < 20.0

    @pytest.mark.parametrize(
        "options_given", [{}, {"retry": True}, {"retry_policy": {"max_retries": 9}}]
    )
    def test_at_most_once_never_retries(self, options_given: dict[str, Any]) -> None:
        assert retry_options(options_given, True) == {"retry": False}


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis-sentinel://u:s3cret@h", "sentinel://:PASSWORD@HOST:26379/DATABASE"),
        ("unix:///path", r"use redis\+socket:// as broker_url"),
        ("redis-cluster://h", "set redbeat_redis_url"),
        ("rediss2://h", "correct its scheme"),
    ],
)
def test_a_url_that_celery_does_not_know(url: str, hint: str) -> None:
    app = make_app(url)
    for use in (warn_about_confirms, lambda app: publishing_connection(app, 30.0)):
        with pytest.raises(ConfigurationError, match=f"(?s)broker_url is .*{hint}") as caught:
            use(app)
        assert "s3cret" not in str(caught.value)


class TestConfirms:
    @pytest.mark.parametrize("broker", ["amqp://127.0.0.1:1//", "pyamqp://127.0.0.1:1//"])
    @pytest.mark.parametrize("options", [{}, {"confirm_publish": False}])
    def test_rabbitmq_without_confirms_is_warned_about(
        self, caplog: pytest.LogCaptureFixture, broker: str, options: dict[str, Any]
    ) -> None:
        warn_about_confirms(make_app(broker, **options))
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("celery.beat", "WARNING")
        assert "'confirm_publish': True" in record.getMessage()

    @pytest.mark.parametrize(
        ("broker", "options"),
        [
            ("amqp://127.0.0.1:1//", {"confirm_publish": True}),
            ("redis://127.0.0.1:1/0", {}),
            ("memory://", {}),
        ],
    )
    def test_other_brokers_are_not_warned_about(
        self, caplog: pytest.LogCaptureFixture, broker: str, options: dict[str, Any]
    ) -> None:
        warn_about_confirms(make_app(broker, **options))
        assert caplog.records == []


class TestDeclaringOnce:
    @pytest.fixture
    def connection(self) -> Iterator[Any]:
        with KOMBU.Connection("memory://") as connection:
            yield connection

    @staticmethod
    def declarations(producer: Any, queue: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Publish three messages and return the names of the declared queues."""
        declared: list[str] = []
        channel = producer.channel
        declare = channel.queue_declare

        def queue_declare(queue: str, *args: Any, **kwargs: Any) -> Any:
            declared.append(queue)
            return declare(queue, *args, **kwargs)

        monkeypatch.setattr(channel, "queue_declare", queue_declare)
        for number in range(3):
            producer.publish({"n": number}, routing_key=queue.name, declare=[queue], retry=True)
        return declared

    def test_a_queue_is_declared_once_on_a_connection(
        self, connection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        producer, queue = checked_producer(KOMBU.Producer)(connection), KOMBU.Queue("once")
        assert self.declarations(producer, queue, monkeypatch) == ["once"]
        assert queue(connection.default_channel).get().payload == {"n": 0}

    def test_a_queue_is_declared_again_on_the_next_connection(
        self, connection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        producer, queue = checked_producer(KOMBU.Producer)(connection), KOMBU.Queue("again")
        self.declarations(producer, queue, monkeypatch)
        connection.close()
        producer = checked_producer(KOMBU.Producer)(connection)
        assert self.declarations(producer, queue, monkeypatch) == ["again"]

    def test_a_queue_that_may_be_gone_is_declared_each_time(
        self, connection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        producer, queue = (
            checked_producer(KOMBU.Producer)(connection),
            KOMBU.Queue("short", auto_delete=True),
        )
        assert self.declarations(producer, queue, monkeypatch) == ["short"] * 3

    def test_a_channel_factory_that_is_not_a_class_is_left_alone(self) -> None:
        def factory(channel: Any) -> Any:
            return KOMBU.Producer(channel)

        assert checked_producer(factory) is factory
