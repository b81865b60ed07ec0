"""What readers see: pages of entries, counts, and the history of one entry."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from redbeat.codec.stored import bytes_of, score_in, seconds_in, text_of, texts_in, valid_text
from redbeat.config import key_aside
from redbeat.storage import words
from redbeat.storage.commands import BATCH, SCAN_COUNT, Commands, batches
from redbeat.storage.keys import WRONG_TYPE, Keys
from redbeat.storage.rows import Row, digest_of, joined_texts
from redbeat.storage.views import Counts, Cursor, Page, Past, Presence, Shown

if TYPE_CHECKING:
    from redbeat.storage.store import Store

#: The most bytes of a page, and the most failing entries that :meth:`Reading.counts` returns.
MOST_BYTES: Final = 1 << 22
MOST_FAILING: Final = 1000

#: No row has this digest.
NOTHING_HAS: Final = "-"


def read_rows(store: Store, keys: Iterable[str]) -> list[Row]:
    """Return the rows of entries; see :meth:`Reading.read`. No round trip without keys."""
    keys = list(keys)
    return [shown.stored for shown in store.read(keys).rows] if keys else []


def static_among(store: Store, names: Iterable[str]) -> set[str]:
    """Return which of the ``names`` are names of static entries.

    Takes one round trip per 500 names, for each shard.
    """
    pages = map(store.read, batches(map(store.keys.entry, names)))
    return {store.keys.name_of(row.key) for page in pages for row in page.rows if row.static}


class Reading(Commands):
    """Reads the schedule under one key prefix.

    A side key of a wrong type, or without a right to it, counts as empty. :meth:`counts` names it.
    """

    def __init__(self, client: Any, keys: Keys) -> None:
        super().__init__(client, keys)
        self._version: str | None = None
        #: On a server without SHA-1 (a fake one), the texts of the digests that were given out.
        self._texts: dict[str, str] | None = None

    def _ask(self, script: str, args: Sequence[Any], *lock: str) -> Any:
        """Run a script that only reads. One round trip.

        Its last key never exists. While a Redis Cluster moves a slot, a node that lacks a key of a
        script refuses the script; without this key, it could run on a node that lacks entries.
        """
        keys = self.keys
        return self._run(script, [keys.schedule, keys.statics, keys.wakeup, *lock], args)

    def read(self, keys: Sequence[str]) -> Page:
        """Return one row per key, in the order of ``keys``.

        Takes one round trip per 2000 keys, or more if Redis needs longer than :attr:`max_seconds`
        or if the entries have more than 4 MiB in total.
        """
        page = self._page({}, keys[:SCAN_COUNT])
        while left := keys[len(page.rows) : len(page.rows) + SCAN_COUNT]:
            page.rows.extend(self._page({}, left).rows)
        return page

    def page(self, after: Cursor | None = None, limit: int = BATCH, history: bool = False) -> Page:
        """Return a page of entries in due order; entries that are never due come last.

        The page has fewer than ``limit`` entries if Redis needs longer than :attr:`max_seconds`, or
        if the entries have more than 4 MiB in total. One round trip.
        """
        score, member = after or ("", "")
        head = {"limit": limit, "score": score, "member": member, "history": history}
        return self._page(head, ())

    def _page(self, head: Mapping[str, Any], keys: Sequence[str]) -> Page:
        head = {**head, "max_bytes": MOST_BYTES, "max_seconds": self.max_seconds}
        text = bytes_of(json.dumps(head, ensure_ascii=False))
        found = self._ask("page", [text, *map(bytes_of, keys)])
        now, score, member, side_error, rows, flags, notes, histories, plain = found
        self._note_side_error(text_of(side_error))
        if plain and self._texts is None:
            self._texts = {}
        parts = zip(rows, text_of(flags), notes, histories, strict=True)
        after = (text_of(score), text_of(member)) if score else None
        return Page(score_in(now), [self._shown(*part) for part in parts], after)

    def counts(self, lock_key: str | None, disabled: float, within: float) -> Counts:
        """Return the number of entries of each kind, and the active beats.

        A beat is active if it was seen in the last ``within`` seconds. ``disabled`` is the score of
        disabled entries. A side key of a wrong type is the ``problem`` if there is no other. One
        round trip, one more if 500 entries or more may be overdue.
        """
        args = (disabled, within, BATCH, MOST_FAILING)
        text, rows = self._ask("count", args, *([lock_key] if lock_key else ()))
        head: dict[str, Any] = json.loads(text_of(text))
        now, beats = float(head["now"]), [valid_text(word) for word in head["beats"]]
        names = ("members", "statics", "quarantined", "disabled", "parked", "due")
        pairs = zip(beats[::2], beats[1::2], strict=True)
        return Counts(
            now=now,
            **{name: head[name] for name in names},
            first_due=score_in(head["first_due"]) if head["first_due"] else None,
            holder=valid_text(head["holder"]),
            beats=[Presence.read(beat, score_in(seen)) for beat, seen in pairs],
            problem=valid_text(head["problem"])
            or self._note_side_error(head.get("side_error", "")),
            failing=max(head["failing"] - MOST_FAILING, 0),
            perhaps_failing=[self._row(text) for text in rows],
            expected=self._expected(now, head["expected"]),
            last_tick=seconds_in(head["last_tick"]),
        )

    def _expected(self, now: float, first: list[str]) -> list[str]:
        """Return the keys of all entries that may be overdue, of which ``first`` are the first."""
        if len(first) < BATCH:
            return first
        key = self.keys.expected
        found = self._read_aside("ZRANGEBYSCORE", key, "-inf", f"{now:.6f}")
        return [text_of(key) for key in found or ()]

    def past(self, key: str) -> Past:
        """Return what is stored about the runs of an entry. One round trip."""
        names = (words.DEFINITION, words.META, words.POLICY, words.STATE, words.INBOX)
        reply = self._read("HMGET", bytes_of(key), *names, words.HISTORY, words.RESULTS)
        texts: list[Any] = [None if text is None else text_of(text) for text in reply]
        return Past("\n".join(texts_in(texts[5])), Row(key, "", *texts[:5]), texts[6])

    def _note_side_error(self, error: str) -> str:
        """Return what is wrong with a side key, and the command that mends it; "" if nothing is.

        A lack of rights is logged once. ``error`` is the name of the key and the error of Redis.
        """
        name, _, why = error.partition(": ")
        if WRONG_TYPE in why:
            key = key_aside(self.keys.prefix, name)
            return (
                f"the key {key!r} is not what RedBeat stores there, so that counts lack what it "
                f"tells: redis-cli DEL {shlex.quote(key)}"
            )
        self.warn_of_denied(why)
        return ""

    def _shown(self, text: bytes, flag: str, note: bytes, history: bytes) -> Shown:
        row = self._row(text)
        score = score_in(row.score) if row.score else None
        lines = "\n".join(texts_in(text_of(history)))
        return Shown(row.key, score, row, valid_text(note), flag == "1", lines)

    def _row(self, text: bytes) -> Row:
        """Return the row in the JSON of a script; bytes that are not UTF-8 become surrogates."""
        row = Row(**json.loads(text.decode("utf-8", "surrogateescape")))
        if self._texts is not None:
            for covers in ("", words.SCORE, words.CALENDARS, words.SCORE + words.CALENDARS):
                digest = digest_of(row, covers, self._version)
                self._texts[digest] = text_of(joined_texts(row, covers, self._version))
        return row
