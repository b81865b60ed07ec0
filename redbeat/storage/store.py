"""The store of a schedule, with shards or without: turns of beats and tools, lines for inboxes."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import chain, count
from operator import attrgetter
from time import time
from typing import Any, Final, cast

from redis.exceptions import RedisError

from redbeat.codec.stored import bytes_of, json_chunks, text_of
from redbeat.config import App, RedBeatConfig, client_of, ensure_conf, is_mock, key_aside
from redbeat.printing import get_logger
from redbeat.storage import reading
from redbeat.storage.keys import Keys, layout_of
from redbeat.storage.rows import Answer, Change, Hand, Look, Reply, Request, Row
from redbeat.storage.scripts import load_script, runs_once
from redbeat.storage.words import DIFFERS, DONE, LEADS, REFUSED, STANDBY

logger = get_logger("celery.beat")

#: Keys of the entries that programs changed in this thread, None if nobody wants to know.
CHANGED_KEYS: ContextVar[list[str] | None] = ContextVar("CHANGED_KEYS", default=None)

INBOX_LINES: Final = 100
INBOX_BYTES: Final = 16384

#: A change's fields with their usual values, which don't travel.
_FIELDS: Final = Change.__slots__
_values: Final = attrgetter(*_FIELDS)
_USUAL: Final = (None, *_values(Change(""))[1:])
#: Fields that travel as text, because Lua's JSON rounds numbers.
_NUMBERS: Final = ("score", "add", "not_after", "not_before")

IS_DONE: Final = Answer(DONE)

_chunks = json_chunks(json.JSONEncoder(ensure_ascii=False, default=text_of, separators=(",", ":")))


WAIT_SECONDS = 1.0


class Replicas:
    """Waits until ``required`` replicas confirm the last writes of a connection.

    If too few do so within a second, a warning is logged and the beat goes on without them. Another
    line follows once enough replicas confirm again.
    """

    def __init__(self, required: int) -> None:
        self.required = required
        self._enough = True

    def wait(self, connection: Any) -> None:
        """Wait for the replicas; after an error, close the connection. One round trip."""
        # At most half of the socket timeout, so that the reply arrives in time.
        seconds = min(WAIT_SECONDS, (connection.socket_timeout or WAIT_SECONDS * 2) / 2)
        try:
            connection.send_command("WAIT", self.required, max(1, int(seconds * 1000)))
            confirmed = int(connection.read_response())
        except (RedisError, OSError) as error:
            connection.disconnect()
            logger.warning("beat: Cannot tell whether replicas recorded the runs: %s", error)
            return
        before, self._enough = self._enough, confirmed >= self.required
        if before and not self._enough:
            message = (
                "beat: Only %d of %d replicas recorded the last runs within %.2f s; "
                "the beat continues"
            )
            logger.warning(message, confirmed, self.required, seconds)
        elif self._enough and not before:
            logger.warning("beat: Enough replicas record the runs again: %d", confirmed)


class Store(reading.Reading):
    """One schedule in one Redis. A request may be repeated, even if the first one was applied.

    The store remembers between turns whether its beat leads, what it noted and was told of entries
    in hand, and the version of the calendars, so each beat has its own. After a turn with changes
    it waits until ``wait_replicas`` replicas confirm them. With ``repeats``, which is for programs,
    the client repeats requests with its own retries.
    """

    def __init__(
        self, client: Any, keys: Keys, wait_replicas: int = 0, repeats: bool = False
    ) -> None:
        super().__init__(client, keys)
        self.parts: Sequence[Store] = (self,)
        self._repeats = repeats
        self._is_mock = is_mock(client)  # in a test of a program
        self._begins = runs_once(client) and not repeats
        self._aside = key_aside(keys.prefix, "")
        self._replicas = Replicas(wait_replicas)
        self._leads = self._noted = False
        self._version: str | None = None
        self._told: list[Hand] = []

    def turn(self, request: Request) -> Reply:
        """Send a request and wait for its reply. One round trip."""
        return self.begin_turn(request)()

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        """Send a request; the function returned waits for the reply.

        See :func:`redbeat.storage.scripts.overlaps` for when the client may be used in between.
        """
        if self._is_mock:
            answers = [Answer(DONE)] * len(request.changes)
            reply = Reply(LEADS, time(), None, answers, [], 0, request.token)
            return lambda: reply
        messages: list[bytes] = []
        texts = [self._encoded(change, messages) for change in request.changes]
        changed = CHANGED_KEYS.get() if self._repeats else None
        if changed is not None:
            changed += [change.key for change in request.changes if change.mark or change.delete]
        head = self._head(request, bool(texts))
        if messages:
            head["messages"] = len(messages)
        args = [
            "".join(_chunks(head, False)).encode("utf-8", "surrogateescape"),
            *[text for text in texts if text[:1] == b"{"],
            *messages,
        ]
        if request.in_hand and request.look is not None:
            self._noted = True  # if the reply is lost, the note may be there
        lock = [request.lock[0]] if request.lock else []
        keys = [self.keys.schedule, self.keys.statics, self.keys.wakeup, *lock]
        if self._begins:
            waits = bool(request.changes) and self._replicas.required
            then = self._replicas.wait if waits else None
            read = load_script("turn").begin(self.client, keys, args, then)
        else:  # with the retries of the client
            read = partial(load_script("turn"), self.client, keys, args)
        return lambda: self._reply(request, texts, read())

    def say(self, key: str, line: str, *, kind: str, age: float | None = None) -> str:
        """Append a line to an entry's inbox, and return DONE, ABSENT or FULL. One round trip.

        ``line`` is one ASCII JSON array without line feeds; that of an end begins with ``["end"``.
        With ``age``, it gets one more element: Redis's time ``age`` seconds ago. A line that is not
        an end may also be refused with QUARANTINED or UNSCHEDULED.
        """
        limits = (INBOX_LINES, INBOX_BYTES)
        dated = "" if age is None else repr(float(age))
        args = (self._aside, line, kind, self.keys.wakeup, *limits, dated)
        keys = (self.keys.schedule, bytes_of(key), self.keys.wakeup)
        return text_of(load_script("inbox")(self.client, keys, args))  # type: ignore[arg-type]

    # -- single values, and the lock -----------------------------------------------------------

    def save_layout_note(self, text: str) -> None:
        self.read_aside("HSET", self.keys.stats, reading.LAYOUT, text)

    def acquire_lock(self, key: str, token: str, ttl: float) -> bool:
        """Acquire or extend the lock for ``ttl`` seconds. One or two round trips.

        False if another beat holds it.
        """
        is_free = self._read("SET", key, token, "NX", "PX", int(ttl * 1000))
        return bool(is_free) or self.extend_lock(key, token, ttl)

    def extend_lock(self, key: str, token: str, ttl: float) -> bool:
        """Whether ``token`` holds the lock, which then lasts ``ttl`` seconds from now.

        One round trip.
        """
        return bool(load_script("extend")(self.client, [key], [token, int(ttl * 1000)]))

    def release_lock(self, key: str, token: str) -> bool:
        """Whether ``token`` held the lock. It is released, and standbys wake up. One round trip."""
        return bool(load_script("release")(self.client, [key], [token, self.keys.wakeup]))

    # -- requests and replies -------------------------------------------------------------------

    def _head(self, request: Request, busy: bool) -> dict[str, Any]:
        """What a request asks besides its changes, without what is empty."""
        look = request.look
        head: dict[str, Any] = {
            "token": request.token,
            "leads": self._leads,
            "noted": self._noted,
            "in_hand": request.in_hand,
            "leads_only": request.leads_only,
            "server": request.server,
            "counts_id": request.counts_id,
            "counts": dict(request.counts),
        }
        if request.lock is not None:
            _, head["ttl"], head["dead"] = request.lock
        busy = busy or self._noted or bool(request.counts_id)
        head["idle"] = look is not None and not (busy or look.only or look.soon)
        head = {name: value for name, value in head.items() if value}
        if look is not None:
            # Only what differs from an ordinary look, so that an idle turn costs Redis little.
            pairs = zip(look._fields, look, Look(), strict=True)
            head["look"] = {name: value for name, value, usual in pairs if value != usual}
        return head

    def _encoded(self, change: Change, messages: list[bytes]) -> bytes:
        """A change as JSON, or the reason why it is refused, which doesn't begin with {.

        Messages and twins are long, so they travel next to the JSON and are referred to by number.
        """
        triples = zip(_FIELDS, _values(change), _USUAL, strict=True)
        fields = {name: value for name, value, usual in triples if value != usual}
        for name in _NUMBERS:
            value = fields.get(name)
            if value is not None:
                fields[name] = repr(float(value))
        if "nan" in (fields.get("score"), fields.get("add")):
            return b"the score is not a number"
        if change.twins:
            fields["twins"] = len(messages) + 1, len(change.twins)
            messages += map(bytes_of, chain.from_iterable(change.twins.items()))
        try:
            if change.push:
                fields["push"] = commands = []
                for command in change.push:
                    end = command[-1]
                    data = end if isinstance(end, bytes) else end.encode("utf-8", "surrogateescape")
                    messages.append(data)
                    commands.append([*command[:-1], len(messages)])
            return "".join(_chunks(fields, False)).encode("utf-8", "surrogateescape")
        except (ValueError, TypeError) as error:
            return f"cannot be written as JSON: {error}".encode("utf-8", "backslashreplace")

    def _reply(self, request: Request, texts: list[bytes], reply: list[Any]) -> Reply:
        head: dict[str, Any] = json.loads(reply[0].decode("utf-8", "surrogateescape"))
        given, text_of_rows = reply[1:] if len(reply) > 1 else ((), b"[]")
        others = dict(zip(given[::2], given[1::2], strict=True))
        numbers = count(1)  # of those that were sent
        answers = [
            self._answer(others.get(next(numbers)))
            if text[:1] == b"{"
            else Answer(REFUSED, text_of(text))
            for text in texts
        ]
        rows = [] if text_of_rows == b"[]" else Row.read_all(text_of_rows)
        if len(reply) > 1 and request.look is not None:
            self._version = head.get("version")
        if request.lock is not None:
            self._leads = head["standing"] != STANDBY
            head.setdefault("holder", request.token)
            head.setdefault("holder_ttl", request.lock[1] / 1000)
        if request.look is not None:
            self._noted = bool(rows or request.look.in_hand) and request.in_hand
        due = float(head.get("next", "inf"))
        head |= {
            "now": float(head["now"]),
            "next": None if due == math.inf else due,
            "version": self._version,
            "hands": self._new_hands(head),
        }
        return Reply(answers=answers, rows=rows, **head)

    def _new_hands(self, head: dict[str, Any]) -> list[Hand]:
        """Notes of vanished beats that no earlier reply had."""
        new = list[Hand]()
        for token, note in head.get("hands", ()):
            hand = _hand(token, note)
            if hand not in self._told:
                new.append(hand)
        self._told += new
        return new

    def _answer(self, given: bytes | None) -> Answer:
        if given is None:
            return IS_DONE
        if given[:1] == b"{":
            return Answer(DIFFERS, row=Row.read(given))
        if given[:1] == b"[":
            return Answer(DONE, left=json.loads(text_of(given)))
        word, _, why = text_of(given).partition(": ")
        return Answer(word, why)


class ShardedStore(reading.Reading):
    """A :class:`Store` for a schedule with several shards, whose stores are the ``parts``.

    An operation on entries uses only their shards, one on the whole schedule every shard. Round
    trips are given in :class:`Store`, per shard.

    What only a beat uses is missing: a beat uses the store of one shard at a time.
    """

    def __init__(self, client: Any, keys: Keys, parts: Sequence[Store]) -> None:
        super().__init__(client, keys)
        self.layout = keys.layout
        self.parts: Sequence[Store] = parts

    def _own_key(self, key: str) -> str:
        """A key with its shard's prefix; programs may have made it of the base prefix."""
        shard, name = self.layout.split(key)
        return self.layout.prefixes[shard] + name

    # -- changes ----------------------------------------------------------------------------

    def turn(self, request: Request) -> Reply:
        """Carry out a request's changes, each in its part. One round trip per part.

        A change without a key goes to every part. A request that looks needs ``only``.
        """
        looks = None if request.look is None else self.layout.split(request.look.only)[0]
        shares: dict[int, list[int]] = {}
        if looks is not None or not request.changes:
            shares[looks or 0] = []
        for number, change in enumerate(request.changes):
            own = self.layout.split(change.key)[0]
            for shard in [own] if change.key else range(len(self.parts)):
                shares.setdefault(shard, []).append(number)
        answers: dict[int, Answer] = {}
        replies = []
        for shard, numbers in shares.items():
            changes = [self._own_change(request.changes[number]) for number in numbers]
            look = request.look if shard == looks else None
            reply = self.parts[shard].turn(request._replace(changes=changes, look=look))
            answers.update(zip(numbers, reply.answers, strict=True))
            replies.append(reply)
        return replies[-1]._replace(
            now=max(reply.now for reply in replies),
            answers=[answers[number] for number in range(len(request.changes))],
            rows=[row for reply in replies for row in reply.rows],
        )

    def _own_change(self, change: Change) -> Change:
        key = change.key and self._own_key(change.key)
        return change if key == change.key else replace(change, key=key)

    # -- single entries ----------------------------------------------------------------------

    def say(self, key: str, line: str, **more: Any) -> str:
        return self.parts[self.layout.split(key)[0]].say(self._own_key(key), line, **more)

    # -- lists of entries --------------------------------------------------------------------

    def read(self, keys: Sequence[str], history: bool = False) -> reading.Page:
        shares: defaultdict[int, dict[int, str]] = defaultdict(dict)
        for position, key in enumerate(keys):
            shares[self.layout.split(key)[0]][position] = self._own_key(key)
        found, now = dict[int, Row](), 0.0
        for shard, share in shares.items():
            page = self.parts[shard].read(list(share.values()), history)
            now = max(now, page.now)
            found.update(zip(share, page.rows, strict=True))
        return reading.Page(
            now or self.time(), [found[position] for position in range(len(keys))], None
        )


def _hand(token: str, note: str) -> Hand:
    """A beat's note. One that can't be read names no keys, and can be forgotten."""
    with suppress(ValueError, RecursionError):
        keys = json.loads(note)
        alone = isinstance(keys, str)
        keys = [keys] if alone else keys
        if isinstance(keys, list) and all(isinstance(key, str) and bytes_of(key) for key in keys):
            return Hand(token, keys, alone)
    return Hand(token, [], alone=True)


def store_of(app: App | None, client: Any = None) -> Store:
    """The store of an app's schedule for programs: it repeats requests like its client.

    ``client`` is the app's by default.
    """
    client = client_of(app) if client is None else client
    conf = ensure_conf(app)
    if conf.shards == 1:
        return store_of_shard(conf, client, 0, repeats=True)
    keys = Keys(conf.key_prefix, conf.warned_prefixes, conf.shards)
    shards = [store_of_shard(conf, client, shard, repeats=True) for shard in range(conf.shards)]
    # A ShardedStore lacks some methods of a Store, but only beats use those.
    return cast("Store", ShardedStore(client, keys, shards))


def base_store(conf: RedBeatConfig, client: Any) -> Store:
    """The store under the base prefix, which has no entries if there are several shards."""
    return Store(client, Keys(conf.key_prefix, conf.warned_prefixes), conf.wait_replicas)


def store_of_shard(conf: RedBeatConfig, client: Any, number: int, repeats: bool = False) -> Store:
    """The store of one shard; the only one of most schedules has the base prefix."""
    keys = Keys(layout_of(conf).prefixes[number], conf.warned_prefixes)
    return Store(client, keys, conf.wait_replicas, repeats)
