"""Exactly once: a run's message leaves in the very change that records the run.

That needs broker and schedule on one Redis server. The beat captures the commands of a publish on
kombu's channel, and they travel as ``Change.push``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf
from typing import Any, Final

from celery.result import EagerResult
from celery.signals import after_task_publish
from kombu.exceptions import OperationalError
from redis import exceptions

from redbeat.beat.broker import impossible, is_about_one_message, is_refusal
from redbeat.beat.pipes import Capture, is_idle
from redbeat.codec.stored import text_of
from redbeat.config import RedBeatConfig
from redbeat.connection.topology import connection_like, is_cluster
from redbeat.entries.run import Run
from redbeat.errors import NoQueueError, RedBeatError, cause_of, described
from redbeat.printing import get_logger
from redbeat.settings import EXACTLY_ONCE
from redbeat.storage.checks import REFUSAL
from redbeat.storage.store import CHANGED_KEYS

logger = get_logger("celery.beat")

#: The broker's ``run_id`` and database, and the schedule's database: ``Request.server``.
Server = tuple[str, int, int]

INFO_LINE: Final = re.compile(r"^(\w+):(.*?)\r?$", re.MULTILINE)

#: Seconds between two searches for a common server.
CHECK_INTERVAL: Final = 30.0

#: Seconds between two checks that the broker connection is still open.
OPEN_CHECK_INTERVAL: Final = 0.01

#: Seconds for which runs go the other order after a script couldn't send a message.
REFUSED_FOR: Final = 300.0

#: How many entries, tasks and servers to remember for going the other order.
MOST_REMEMBERED: Final = 1000

BYPASSED: Final = "user code sends the messages on another channel"
CHANGES_ENTRY: Final = "user code in this beat changes the entry while its message is published"


class Watch:
    """Makes one call that publishes a run, and sees whether a message left in it.

    ``listens`` is for calls into code of users or libraries, which may publish elsewhere: the watch
    then hears of every task message that this process publishes during the call. (Celery's own code
    publishes on the channel of ``producer``, and the signal costs time.)
    """

    def __init__(self, producer: Any, listens: bool) -> None:
        self._producer = producer
        self._listens = listens
        self.channel: Any = producer.channel
        #: How many messages were published on the channel, and how many it accepted.
        self.count = self.accepted = 0
        self.heard: list[str] = []

    def call(self, run: Run, call: Callable[[], Any]) -> None:
        """Call ``call``, and set whether the run left in it, and its id. Raises what it raises.

        After an error, ``run.left`` says whether something may have left.
        """
        run.seen = False
        try:
            with self:
                result = call()
        except BaseException as error:
            run.seen = bool(self.accepted or self.heard)
            # RedBeat's own errors come before the publish.
            may_have = self._listens and not isinstance(cause_of(error), RedBeatError)
            run.left = may_have or run.seen or self.count > 0 or self.moved
            raise
        given = getattr(result, "id", None)
        heard = self.heard if given is None else str(given) in self.heard
        run.left = bool(self.count or heard or self.moved) or isinstance(result, EagerResult)
        run.left = run.left or (run.own is not None and run.own.sent)
        if run.left and given is not None:
            run.task_id = str(given)
        elif run.left and self.heard and run.task_id not in self.heard:
            run.task_id = self.heard[0]

    def __enter__(self) -> None:
        channel = self.channel
        self._replaced = vars(channel).get("basic_publish")
        self._publish = channel.basic_publish
        channel.basic_publish = self._count
        if self._listens:
            after_task_publish.connect(self._hear, weak=False, dispatch_uid=id(self))

    def __exit__(self, *exc_info: object) -> None:
        if self._replaced is None:
            del self.channel.basic_publish
        else:
            self.channel.basic_publish = self._replaced
        if self._listens:
            after_task_publish.disconnect(dispatch_uid=id(self))

    def _count(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        try:
            result = self._publish(*args, **kwargs)
        except NoQueueError:
            self.count -= 1  # it certainly did not leave
            raise
        self.accepted += 1
        return result

    def _hear(self, headers: Any = None, body: Any = None, **_: Any) -> None:
        # In version 1 of Celery's protocol, the id is in the body.
        self.heard.append(str((headers or {}).get("id") or body["id"]))

    @property
    def moved(self) -> bool:
        """Whether kombu replaced the channel because the connection broke during the call."""
        return getattr(self._producer, "_channel", self.channel) is not self.channel


class NotSameServerError(Exception):
    """Broker and schedule don't share a usable Redis server; the text says why."""


class OneStep:
    """Knows whether a message can leave with its record, and captures such messages.

    ``client`` is the schedule's; ``clock`` returns monotonic seconds.
    """

    def __init__(self, client: Any, conf: RedBeatConfig, clock: Callable[[], float]) -> None:
        self._client = client
        self._demanded = conf.delivery == EXACTLY_ONCE
        self._allowed = conf.delivery in (None, EXACTLY_ONCE)
        self._clock = clock
        self._server: Server | None = None
        #: Why there is no common server, "" if there is one or nobody has looked.
        self._reason = ""
        self._was_common = False
        self._channel: Any = None
        self._checked_at = 0.0
        #: A broker connection that stays open. Once it closes, the broker may have moved to another
        #: server.
        self._watched: Any = None
        #: What goes the other order, an entry's key, a task or a server's ``run_id``: the monotonic
        #: time until which it does, and why.
        self._others: dict[str, tuple[float, str]] = {}
        #: A server that was found, but that according to a script is another.
        self._denied: Server | None = None
        #: User methods in the sending of runs, which the log has named.
        self._told: set[str] = set()

    # -- the common server ---------------------------------------------------------------------

    def server(self, producer: Any) -> Server | None:
        """The server that broker and schedule share, None if runs go the other order.

        Two round trips for a new channel, after a dropped connection, and every 30 s while there is
        no common server; otherwise none. With ``redbeat_delivery = "exactly_once"`` the result is
        never None: raises :exc:`ConfigurationError` if exactly once was never possible, and
        ``ConnectionError`` (so the broker counts as down) if it no longer is. Raises the errors of
        broker and Redis.
        """
        channel, age = producer.channel, self._clock() - self._checked_at
        changed = age > OPEN_CHECK_INTERVAL and self._may_have_changed(age)
        if changed or channel is not self._channel:
            self._channel = self._server = None
            if self._allowed:
                self._server = self._check(producer)
            self._channel, self._checked_at = channel, self._clock()
        if self._demanded and self._server is None:
            raise ConnectionError(self.problem)
        return self._server

    def _may_have_changed(self, age: float) -> bool:
        """Whether to look again; the last look was ``age`` seconds ago."""
        if self._server is None:
            return self._allowed and age > CHECK_INTERVAL
        self._checked_at = self._clock()
        return not is_idle(self._watched)

    def _check(self, producer: Any) -> Server | None:
        try:
            server = self._find(producer.channel)
            refused = self._why_not(server[0])
            if refused:
                raise NotSameServerError(refused)
        except NotSameServerError as reason:
            self._report(str(reason))
            return None
        if self._reason:
            logger.warning("beat: Broker and schedule are on one Redis server again")
        self._reason, self._was_common = "", True
        # A program's own producer may lack ``own_keys``.
        own_keys = getattr(producer, "own_keys", None)
        if own_keys is not None and server[1] == server[2]:
            own_keys.shared = True
        return server

    def _find(self, channel: Any) -> Server:
        if not hasattr(channel, "conn_or_acquire"):
            raise NotSameServerError("messages do not go to Redis")
        if is_cluster(self._client):
            raise NotSameServerError("the schedule is in a Redis Cluster")
        with channel.conn_or_acquire() as client:
            pool = getattr(client, "connection_pool", None)
        if pool is None:
            raise NotSameServerError("the broker is a Redis Cluster")
        broker = _run_id("broker", lambda: self._ask_broker(pool))
        own_pool = getattr(self._client, "connection_pool", None)
        if broker != _run_id("schedule", lambda: own_pool and self._client.info("server")):
            raise NotSameServerError("broker and schedule are on two Redis servers")
        return broker, _database(pool), _database(own_pool)

    def _ask_broker(self, pool: Any) -> Any:
        """What the broker's server says about itself. The connection stays open."""
        self.close()
        self._watched = connection = connection_like(pool)
        try:
            connection.connect()
            connection.send_command("INFO", "server")
            return dict(INFO_LINE.findall(text_of(connection.read_response())))
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:  # as kombu does
            raise OperationalError(str(error)) from error

    @property
    def problem(self) -> str:
        """Why nothing is sent any more, "" if that isn't so."""
        if not (self._demanded and self._reason):
            return ""
        return f"nothing is sent, because exactly once is not possible any more: {self._reason}"

    def _report(self, reason: str) -> None:
        if self._demanded and not self._was_common:
            raise impossible(reason)
        known, self._reason = self._reason, reason
        if reason == known:
            return
        if self._demanded:
            logger.error("beat: PROBLEM: %s", self.problem)
        elif self._was_common:
            logger.warning("beat: Runs are sent at least once from now on: %s", reason)
        else:
            logger.info("beat: Runs are sent at least once: %s", reason)

    def close(self) -> None:
        if self._watched is not None:
            self._watched.disconnect()

    # -- the other order -----------------------------------------------------------------------

    def takes(self, key: str, task: str = "") -> bool:
        """Whether a message of an entry, a run of ``task``, may leave with its record.

        False for some time after :meth:`refused` and :meth:`bypassed`. Given ``task``, that goes
        for all entries of a task that has bypassed the capture.
        """
        return not self._others or not (self._why_not(key) or self._why_not(task))

    def refused(self, key: str, why: str) -> bool:
        """Note that a script answered ``refused: why`` for a message of the entry ``key``.

        True: the run goes the other order, because the schedule's Redis user may not write to its
        queue, or not send messages at all. False: only this entry fails.
        """
        if REFUSAL.search(why) is None:
            return False
        if not is_about_one_message(exceptions.NoPermissionError(why)):
            self._refuse(f"the Redis user of the schedule has no right to send messages: {why}")
            return True
        if self._demanded:
            return False
        # One line for all: the text doesn't name the queue.
        if not any(why == known for _, known in self._others.values()):
            logger.warning("beat: Runs of %s are sent at least once: %s", key, why)
        self._send_other_way(key, why, REFUSED_FOR)
        return True

    def elsewhere(self, server: Server | None) -> None:
        """Note that a script answered ``elsewhere`` to a request with ``server``.

        The server may have restarted, so the next :meth:`server` looks for it again.
        """
        if server is None or server != self._server:
            return
        if server == self._denied:
            self._refuse("scripts cannot use INFO to read the run_id of their server")
        self._denied = server
        self._channel = self._server = None

    def told(self, method: str) -> None:
        """Log once that user code takes part in sending, so that its runs are held first."""
        if self._allowed and method not in self._told:
            self._told.add(method)
            logger.info(
                "beat: Runs are sent at least once: %s takes part in sending, and may do anything "
                "after its message is out",
                method,
            )

    def bypassed(self, run: Run, why: str = CHANGES_ENTRY) -> None:
        """Send an entry's runs the other order from now on, and log why once.

        By default, because the entry differed twice in a row: code in this beat edits it while its
        message is published.
        """
        rule = run.rule
        if not (self._why_not(rule.key) or self._why_not(rule.task)):
            logger.warning(
                "beat: Runs of %s (%s) are sent at least once: %s", rule.name, rule.task, why
            )
        self._send_other_way(rule.key, why, inf)
        if why == BYPASSED:
            self._send_other_way(rule.task, why, inf)

    def _refuse(self, reason: str) -> None:
        """Leave this server alone for a while; the next :meth:`server` looks again."""
        if self._server is not None:  # an earlier refusal may have reset it
            pause = CHECK_INTERVAL if self._demanded else REFUSED_FOR
            self._send_other_way(self._server[0], reason, pause)
            self._channel = self._server = None

    def _send_other_way(self, who: str, why: str, seconds: float) -> None:
        self._others.pop(who, None)
        if len(self._others) >= MOST_REMEMBERED:
            del self._others[next(iter(self._others))]
        self._others[who] = self._clock() + seconds, why

    def _why_not(self, who: str) -> str:
        """Why an entry, task or server goes the other order, "" if it doesn't."""
        until, why = self._others.get(who, (0.0, ""))
        if why and self._clock() >= until:
            del self._others[who]
            return ""
        return why

    # -- capture -------------------------------------------------------------------------------

    def capture(self, run: Run, producer: Any, call: Callable[[], Any], own: bool = False) -> bool:
        """Call ``call``, which publishes the run, and capture its commands instead of sending them.

        Sets ``run.push``, ``run.left``, ``run.task_id`` (the id that the call returned, if
        something left) and ``run.error`` (what the call raised). ``own`` means that the call runs
        code of users or libraries (``OwnCode.part_in``).

        Returns False if a message is already out, because it didn't leave on the channel of
        ``producer``. The run must then be recorded as published, along with what is in
        ``run.push``; with ``run.error``, only a part of the run may be out. The next runs of its
        task go the other order. Raises the errors of a channel that can't be used.
        """
        run.push, run.left, run.error = [], False, None
        watch, changed = Watch(producer, own), list[str]()
        capture = Capture(watch.channel)
        before = CHANGED_KEYS.set(changed)
        try:
            with capture:
                watch.call(run, call)
        except Exception as error:
            run.error = error
            elsewhere = bool(watch.heard) and not watch.count
            run.left = watch.moved or capture.executed or elsewhere
            return not run.left
        finally:
            CHANGED_KEYS.reset(before)
        if watch.moved:  # kombu has repeated the whole publish on its new channel
            return False
        run.push = capture.commands
        run.left = run.left or bool(run.push)  # perhaps not through ``basic_publish``
        if capture.executed or (run.left and not run.push):
            self.bypassed(run, BYPASSED)
            return False
        if run.push and run.rule.key in changed:
            return self._send_alone(run, capture)
        return True

    def _send_alone(self, run: Run, capture: Capture) -> bool:
        """Send a message whose entry was changed or deleted by the very call that made it.

        Redis would refuse it together with its record. Returns what :meth:`capture` returns.
        """
        self.bypassed(run)
        try:
            capture.send()
        except Exception as error:
            run.error, run.left = error, not is_refusal(error)
            return not run.left
        return False


def _run_id(role: str, ask: Callable[[], Any]) -> str:
    try:
        run_id, why = (ask() or {}).get("run_id"), ""
    except (exceptions.ConnectionError, exceptions.TimeoutError):
        raise
    except (exceptions.RedisError, AttributeError) as error:
        run_id, why = None, f": {described(error)}"
    if not run_id:
        raise NotSameServerError(f"the Redis of the {role} does not report its run_id in INFO{why}")
    return str(run_id)


def _database(pool: Any) -> int:
    return int(pool.connection_kwargs.get("db") or 0)
