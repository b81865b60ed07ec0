"""What readers see: pages of entries, counts, and the history of one entry."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError

from redbeat.codec.stored import bytes_of, is_valid_text, score_in, seconds_in, text_of, valid_text
from redbeat.config import key_aside
from redbeat.storage import reading
from redbeat.storage.reading import BATCH, NO_KEY
from redbeat.storage.wire import NO_HASH, Counts, Cursor, Page, Presence
from tests.edition.state import State, history_texts
from tests.edition.storage.portions import FIELDS, WRONG_TYPE
from tests.edition.storage.rows import Row, row_in
from tests.edition.storage.scripts import load_script
from tests.edition.words import HISTORY, RESULTS, STATE

#: The most bytes of a page, and the most failing entries that :meth:`Reading.counts` looks at.
MOST_BYTES: Final = 1 << 22
MOST_FAILING: Final = 1000


class Shown(NamedTuple):
    """An entry as readers see it.

    Attributes:
        key: the key of the entry.
        score: when the entry is due, UNIX seconds; None if it is not in the schedule.
        definition, meta, policy: the stored texts; None and "" if they are missing.
        stored: the row as beats see it.
        note: the JSON note of the quarantine, "" without one.
        static: whether the entry is from ``beat_schedule``.
        problem: why the entry cannot be read, "" if its texts can.
        history: lines of runs, the latest first; "" if they were not asked for.
    """

    key: str
    score: float | None
    definition: str | None = None
    meta: str = ""
    policy: str = ""
    stored: Row = Row("")
    note: str = ""
    static: bool = False
    problem: str = ""
    history: str = ""

    @property
    def is_hash(self) -> bool:
        """Whether the key of the entry is a hash."""
        return not self.problem.startswith(NO_HASH)


class Past(NamedTuple):
    """The stored runs of an entry.

    ``lines`` are the lines of its history, the latest first. ``row`` is the entry without its
    score. ``results`` are the texts of the ends that beats have taken in.
    """

    lines: str
    row: Row
    results: str | None


class Reading(reading.Reading):
    """Reads the schedule under one key prefix.

    A side key of a wrong type, or without a right to it, counts as empty. :meth:`counts` names it.
    """

    def _ask(self, script: str, args: Sequence[Any], more_keys: Iterable[str] = ()) -> Any:
        """Run a script that only reads. One round trip."""
        self.round_trips += 1
        keys = [self.keys.schedule, self.keys.statics, self.keys.wakeup, *more_keys]
        with self._naming_wrong_types():
            return load_script(script)(self.client, keys, args)

    def read(self, keys: Sequence[str]) -> Page:
        """Return one row per key, in the order of ``keys``.

        Pass at most 500 keys. Takes one round trip, or more if Redis needs longer than
        :attr:`max_seconds` or if the entries have more than 4 MiB in total.
        """
        page = self._page({}, keys)
        while left := keys[len(page.rows) :]:
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
        now, score, member, side_error, rows, flags, notes, histories = found
        self._note_side_error(text_of(side_error))
        parts = zip(rows, text_of(flags), notes, histories, strict=True)
        after = (text_of(score), text_of(member)) if score else None
        shown: list[Any] = [_shown(*part) for part in parts]
        return Page(score_in(now), shown, after)

    def counts(self, lock_key: str | None, disabled: float, within: float) -> Counts:
        """Return the number of entries of each kind, and the active beats.

        Also returns the keys of at most 500 entries that may be overdue. A beat is active if it was
        seen in the last ``within`` seconds. ``disabled`` is the score of disabled entries. A side
        key of a wrong type is the ``problem`` if there is no other. One round trip.
        """
        args = (disabled, within, BATCH, MOST_FAILING)
        text, rows = self._ask("count", args, () if lock_key is None else (lock_key,))
        head: dict[str, Any] = json.loads(text_of(text))
        late = [found for text in rows if (found := _failing_in(text)) is not None]
        now, beats = float(head["now"]), [valid_text(word) for word in head["beats"]]
        first = [due for due, _ in late]
        if head["first_due"]:
            first.append(score_in(head["first_due"]))
        names = ("members", "statics", "quarantined", "disabled", "parked")
        pairs = zip(beats[::2], beats[1::2], strict=True)
        return Counts(
            now=now,
            **{name: head[name] for name in names},
            due=head["due"] + sum(score > now for _, score in late),
            first_due=min(first, default=None),
            holder=valid_text(head["holder"]),
            beats=[Presence.read(beat, score_in(seen)) for beat, seen in pairs],
            problem=valid_text(head["problem"])
            or self._note_side_error(head.get("side_error", "")),
            failing=len(late) + max(head["failing"] - MOST_FAILING, 0),
            expected=list(head["expected"]),
            last_tick=seconds_in(head["last_tick"]),
        )

    def past(self, key: str) -> Past:
        """Return what is stored about the runs of an entry. One round trip."""
        names = (*FIELDS, HISTORY, RESULTS)
        reply = self._read("HMGET", bytes_of(key), *names)
        texts = {
            name: None if text is None else text_of(text)
            for name, text in zip(names, reply, strict=True)
        }
        lines, results = "\n".join(history_texts(texts.pop(HISTORY))), texts.pop(RESULTS)
        row = Row(key, state=texts.pop(STATE), **texts)  # type: ignore[arg-type]
        return Past(lines, row, results)

    def _note_side_error(self, error: str) -> str:
        """Return what is wrong with a side key, and the command that mends it; "" if nothing is.

        A lack of rights is logged once. ``error`` is the name of the key and the error of Redis.
        """
        name, _, why = error.partition(": ")
        key = key_aside(self.keys.prefix, name)
        if WRONG_TYPE in why:
            return (
                f"the key {key!r} is not what RedBeat stores there, so that counts lack what it "
                f"tells: redis-cli DEL {shlex.quote(key)}"
            )
        if NO_KEY.search(why):
            self._lacks_keys_aside(NoPermissionError(why))
        return ""


def _shown(text: bytes, flag: str, note: bytes, history: bytes) -> Shown:
    row = row_in(text)
    problem = ""
    if row.problem:
        problem = f"{NO_HASH} ({row.problem})"
    elif row.definition is None:
        problem = "the definition is missing"
    elif not is_valid_text(f"{row.definition}{row.meta}{row.policy}"):
        problem = "the stored text is not UTF-8"
    return Shown(
        row.key,
        score_in(row.score) if row.score else None,
        row.definition,
        row.meta or "",
        row.policy or "",
        row,
        valid_text(note),
        flag == "1",
        problem,
        "\n".join(history_texts(text_of(history))) if history else "",
    )


def _failing_in(text: bytes) -> tuple[float, float] | None:
    """Return when a run that cannot be sent was due, and its next try; None if it was sent."""
    row = row_in(text)
    failing = State.read(row.state, row.meta).failing
    if failing is None or not row.score or float(row.score) < 0:
        return None
    return failing.due, float(row.score)
