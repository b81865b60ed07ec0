"""The store of one schedule: turns of beats and tools, and lines for the inbox of an entry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from time import time
from typing import Any, Final

from redis.exceptions import RedisError

from redbeat.codec.stored import bytes_of, text_of
from redbeat.config import is_mock, key_aside
from redbeat.storage.records import Keys
from redbeat.storage.scripts import Script, overlaps, runs_once
from redbeat.storage.store import Replicas
from tests.edition.storage.rows import (
    Answer,
    Change,
    Hand,
    Look,
    Reply,
    Request,
    Row,
    digest_of,
    joined_texts,
)
from tests.edition.storage.scripts import load_script
from tests.edition.words import CALENDARS, DIFFERS, DONE, LEADS, REFUSED, SCORE, STANDBY

#: The keys of the entries that programs changed in this thread, None if nobody wants to know.
CHANGED_KEYS: ContextVar[list[str] | None] = ContextVar("CHANGED_KEYS", default=None)

#: An inbox has at most this number of lines and bytes.
INBOX_LINES: Final = 100
INBOX_BYTES: Final = 16384

#: The fields of a change that travel as they are, unless they are empty.
_PLAIN: Final = (
    *("mark", "expect", "covers", "set", "unset", "delete", "push"),
    *("line", "replaces", "take", "results", "index"),
)
#: The fields that travel as texts, because Lua's JSON rounds numbers.
_NUMBERS: Final = ("score", "add", "not_after")

IS_DONE: Final = Answer(DONE)

_DEFAULT_LINES: Final = 10

_dumps = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, default=text_of, separators=(",", ":")
).encode


class Store:
    """One schedule in one Redis. A repeated request is safe, also if the first was applied.

    The store remembers between turns whether its beat leads, what it noted and was told of entries
    in hand, and the version of calendars. So each beat has a store of its own. After a turn with
    changes it waits until ``wait_replicas`` replicas confirm them. With ``repeats``, which is for
    programs, the client repeats requests with its own retries.
    """

    def __init__(
        self, client: Any, keys: Keys, wait_replicas: int = 0, repeats: bool = False
    ) -> None:
        self.client = client
        self.keys = keys
        self.parts: Sequence[Store] = (self,)
        self._repeats = repeats
        self._aside = key_aside(keys.prefix, "")
        self._replicas = Replicas(wait_replicas)
        self._guard = keys.wakeup
        self._leads = self._noted = False
        self._version: str | None = None
        self._told: list[Hand] = []
        #: On a server without SHA-1 (a fake one), the texts of the digests that were given out.
        self._texts: dict[str, str] | None = None

    def part_of(self, _key: str) -> Store:
        """Return this store: a schedule with shards has :class:`Parts`."""
        return self

    def turn(self, request: Request) -> Reply:
        """Send a request and return the reply. One round trip."""
        return self.begin_turn(request)()

    def begin_turn(self, request: Request) -> Callable[[], Reply]:
        """Send a request, and return a function that waits for the reply.

        See :func:`redbeat.storage.scripts.overlaps` for when the client may be used in between.
        """
        if is_mock(self.client):  # in a test of a program
            answers = [Answer(DONE)] * len(request.changes)
            reply = Reply(LEADS, time(), None, 0, request.token, 0.0, answers, [])
            return lambda: reply
        messages: list[bytes] = []
        texts = [self._encoded(change, messages) for change in request.changes]
        changed = CHANGED_KEYS.get() if self._repeats else None
        if changed is not None:
            changed += [change.key for change in request.changes if change.mark or change.delete]
        head = self._head(request, bool(texts))
        if messages:
            head["messages"] = len(messages)
        args = [_bytes(head), *[text for text in texts if text[:1] == b"{"], *messages]
        if request.in_hand and request.look is not None:
            self._noted = True  # If the reply is lost, the note may be there.
        lock = [request.lock[0]] if request.lock else []
        keys = [self.keys.schedule, self.keys.statics, self._guard, *lock]
        script = load_script("turn")
        if runs_once(self.client) and not self._repeats:
            waits = bool(request.changes) and self._replicas.required
            then = self._replicas.wait if waits else None
            read = script.begin(self.client, keys, args, then)
        else:
            read = self._begin_repeatable(script, keys, args, request.ahead)
        return lambda: self._read(request, texts, read())

    def _begin_repeatable(
        self, script: Script, keys: list[str], args: list[bytes], ahead: bool
    ) -> Callable[[], Any]:
        """Return a function that runs a script with the client's retries, and returns the reply.

        With ``ahead``, send the script now, and with the retries only if that fails.
        """
        repeat = partial(script, self.client, keys, args)
        can_send = runs_once(self.client) and overlaps(self.client, self.keys.schedule)
        if not (ahead and can_send):
            return repeat
        try:
            first = script.begin(self.client, keys, args)
        except (RedisError, OSError):
            return repeat

        def read() -> Any:
            try:
                return first()
            except (RedisError, OSError):
                return repeat()

        return read

    def say(
        self, key: str, line: str, *, kind: str, age: float | None = None, doubt: str = ""
    ) -> str:
        """Append a line to the inbox of an entry, and return DONE, ABSENT or FULL.

        ``line`` is one ASCII JSON array without line feeds; that of an end begins with ``["end"``.
        With ``age``, it gets one element more: the time of Redis ``age`` seconds ago. One round
        trip.

        A line that is not an end may also be refused with QUARANTINED, UNSCHEDULED, or with LOOK:
        the state has the text ``doubt``, so the caller is to look at it, and say it then without.
        """
        limits = (INBOX_LINES, INBOX_BYTES)
        dated = "" if age is None else repr(float(age))
        args = (self._aside, line, kind, self.keys.wakeup, *limits, dated, doubt)
        keys = (self.keys.schedule, bytes_of(key), self._guard)
        return text_of(load_script("inbox")(self.client, keys, args))  # type: ignore[arg-type]

    def note_rows(self, rows: Iterable[Row]) -> None:
        """Note rows that were read without a turn, so that changes may expect them."""
        if self._texts is not None:
            for row in rows:
                self._remember(row, self._texts)

    def _head(self, request: Request, busy: bool) -> dict[str, Any]:
        """Return what a request asks besides its changes; what is empty is left out."""
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
        head["idle"] = look is not None and not (busy or look.only)
        head = {name: value for name, value in head.items() if value}
        return head if look is None else {**head, "look": _look(look)}

    def _encoded(self, change: Change, messages: list[bytes]) -> bytes:
        """Return a change as JSON, or the reason why it is refused, which does not begin with {.

        The messages travel next to the JSON, by their numbers: they are long.
        """
        fields = _fields(change)
        if self._texts is not None and change.expect is not None:
            fields["expect"] = self._texts.get(change.expect, change.expect)
        if "nan" in (fields.get("score"), fields.get("add")):
            return b"the score is not a number"
        try:
            if change.push:
                fields["push"] = commands = []
                for command in change.push:
                    end = command[-1]
                    data = end if isinstance(end, bytes) else end.encode("utf-8", "surrogateescape")
                    messages.append(data)
                    commands.append([*command[:-1], len(messages)])
            return _bytes(fields)
        except (ValueError, TypeError) as error:
            return f"cannot be written as JSON: {error}".encode("utf-8", "backslashreplace")

    def _read(self, request: Request, texts: list[bytes], reply: list[Any]) -> Reply:
        head: dict[str, Any] = json.loads(text_of(reply[0]))
        if head.get("plain") and self._texts is None:
            self._texts = {}
        given = iter(reply[1] if len(reply) > 1 else ())
        answers = [
            self._answer(next(given)) if text[:1] == b"{" else Answer(REFUSED, text_of(text))
            for text in texts
        ]
        rows = [self._row(text) for text in reply[2]] if len(reply) > 1 else []
        standing = head["standing"]
        if len(reply) > 1 and request.look is not None:
            self._version = head.get("version")
        if request.lock is not None:
            self._leads = standing != STANDBY
        if request.look is not None:
            self._noted = bool(rows) and request.in_hand
        due = head.get("next")
        return Reply(
            standing,
            float(head["now"]),
            None if due is None or due == "inf" else float(due),
            head.get("members", -1),
            head.get("holder", request.token if request.lock else ""),
            head.get("ttl", request.lock[1] if request.lock else 0) / 1000,
            answers,
            rows,
            head.get("statics", -1),
            head.get("quarantined", -1),
            self._version,
            head.get("lost", ""),
            head.get("side_error", ""),
            self._new_hands(head),
            head.get("back", 0.0),
        )

    def _new_hands(self, head: dict[str, Any]) -> list[Hand]:
        """Return the notes of vanished beats that no earlier reply had."""
        notes = [_hand(*note) for note in head.get("hands", ())]
        new = [hand for hand in notes if hand not in self._told]
        self._told += new
        return new

    def _answer(self, given: bytes) -> Answer:
        if given == b"done":
            return IS_DONE
        if given[:1] == b"{":
            return Answer(DIFFERS, row=self._row(given))
        word, _, why = text_of(given).partition(": ")
        return Answer(word, why)

    def _row(self, text: bytes) -> Row:
        row = Row(**json.loads(text.decode("utf-8", "surrogateescape")))
        if self._texts is not None:
            self._remember(row, self._texts)
        return row

    def _remember(self, row: Row, texts: dict[str, str]) -> None:
        for covers in ("", SCORE, CALENDARS, SCORE + CALENDARS):
            digest = digest_of(row, covers, self._version)
            texts[digest] = text_of(joined_texts(row, covers, self._version))


def _bytes(value: Mapping[str, Any]) -> bytes:
    """Return JSON in which bytes that were not UTF-8 are those bytes again."""
    return _dumps(value).encode("utf-8", "surrogateescape")


def _fields(change: Change) -> dict[str, Any]:
    """Return what of a change travels: what is not empty."""
    found: dict[str, Any] = {"key": change.key}
    for name in _PLAIN:
        value = getattr(change, name)
        if value:
            found[name] = value
    for name in _NUMBERS:
        value = getattr(change, name)
        if value is not None:
            found[name] = repr(float(value))
    if change.lines != _DEFAULT_LINES:
        found["lines"] = change.lines
    return found


def _look(look: Look) -> dict[str, Any]:
    """Return what differs from an ordinary look, so that an idle turn costs Redis little."""
    pairs = zip(look._fields, look, Look(), strict=True)
    found = {name: value for name, value, usual in pairs if value != usual}
    return {**found, "skip": dict(look.skip)} if look.skip else found


def _hand(token: str, note: str) -> Hand:
    keys = json.loads(note)
    return Hand(token, [keys] if isinstance(keys, str) else keys, isinstance(keys, str))
