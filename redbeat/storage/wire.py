"""The text form of what scripts take and return: packed texts, rows, pages and counts."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

__all__ = (
    "Counts",
    "Cursor",
    "Page",
    "Presence",
    "Row",
    "pack",
    "pack_binary",
    "read_counts",
    "read_page",
    "text_in",
    "text_of",
    "unpack",
    "unpack_binary",
)


def pack(texts: Sequence[str]) -> tuple[str | bytes, str | bytes]:
    """Return the sizes in bytes, separated by spaces, and the texts in UTF-8.

    Surrogates stand for bytes that are no UTF-8, as in :func:`unpack`.
    """
    sizes, joined = _join(texts)
    return " ".join(map(str, sizes)), joined


def pack_binary(texts: Sequence[str]) -> tuple[bytes, str | bytes]:
    """As :func:`pack`, but that a size is four bytes, the highest first."""
    sizes, joined = _join(texts)
    return struct.pack(f">{len(texts)}I", *sizes), joined


def unpack(sizes: bytes, packed: bytes) -> list[str]:
    """Return the texts; bytes that are no UTF-8 become surrogates."""
    return _cut(map(int, sizes.split()), packed)


def unpack_binary(sizes: bytes, packed: bytes) -> list[str]:
    """As :func:`unpack`, for sizes as :func:`pack_binary` writes them."""
    return _cut(struct.unpack(f">{len(sizes) // 4}I", sizes), packed)


def _join(texts: Sequence[str]) -> tuple[Iterable[int], str | bytes]:
    joined = "".join(texts)
    if joined.isascii():
        return map(len, texts), joined
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return map(len, encoded), b"".join(encoded)


def _cut(sizes: Iterable[int], packed: bytes) -> list[str]:
    ends = list(accumulate(sizes))
    pieces = zip(chain((0,), ends), ends)  # noqa: B905 - the last end begins nothing
    if packed.isascii():
        text = packed.decode("ascii")
        return [text[begin:end] for begin, end in pieces]
    return [packed[begin:end].decode("utf-8", "surrogateescape") for begin, end in pieces]


def text_of(value: Any) -> str:
    """Return a reply as text; bytes that are not UTF-8 survive as surrogates."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value or ""


def text_in(stored: str) -> str:
    """Return the text in a JSON text; what is no JSON, by another writer, is returned as it is."""
    if not stored:
        return ""
    try:
        text = json.loads(stored)
    except (ValueError, RecursionError):
        return stored
    return text if isinstance(text, str) else ""


#: What follows the token of a beat that has a lock, as in ``claim.lua``.
LOCKED = " lock"

#: Score and key of the entry after which a page begins, as text.
Cursor = tuple[str, str]


class Row(NamedTuple):
    """What Redis holds of one entry.

    ``score`` is None for one that is no member, ``definition`` None for one that has none;
    ``problem`` is why nothing could be read. ``note`` is that of the quarantine, JSON; ``history``
    is there where it was asked for.
    """

    key: str
    score: float | None
    definition: str | None = None
    meta: str = ""
    policy: str = ""
    runtime: str = ""
    claim: str = ""
    running: str = ""
    trigger: str = ""
    identity: str = ""
    note: str = ""
    static: bool = False
    problem: str = ""
    history: str = ""


class Page(NamedTuple):
    """Rows in due order, parked ones last; ``now`` is UNIX seconds of Redis.

    ``after`` is where the next page begins, None when this is the last one.
    """

    now: float
    rows: list[Row]
    after: Cursor | None


class Presence(NamedTuple):
    """A beat that noted its presence, by its token, when, UNIX seconds, and whether it has a lock.

    One with a lock leads or stands by; those without share the work.
    """

    token: str
    seen: float
    locked: bool

    @classmethod
    def read(cls, member: str, seen: float) -> Presence:
        """Return a member of the sorted set of beats and its score."""
        return cls(member.removesuffix(LOCKED), seen, member.endswith(LOCKED))

    @property
    def member(self) -> str:
        """What it is called in the sorted set."""
        return self.token + LOCKED if self.locked else self.token


class Counts(NamedTuple):
    """How many entries there are of each kind, and which beats; times are UNIX seconds of Redis."""

    now: float
    members: int
    statics: int
    quarantined: int
    disabled: int
    parked: int
    due: int
    first_due: float | None
    holder: str
    beats: list[Presence]
    problem: str = ""


def read_page(reply: Sequence[Any]) -> Page:
    """Return the reply of ``page.lua``."""
    now, score, member, kinds, sizes, packed = reply
    fields = iter(unpack(sizes, packed))
    groups = zip(kinds.decode(), *[fields] * 13, strict=True)
    after = (text_of(score), text_of(member)) if score else None
    return Page(float(now), [_row(*group) for group in groups], after)


def _row(kind: str, key: str, score: str, definition: str, *texts: str) -> Row:
    meta, policy, runtime, claim, running, trigger, identity, note, static, history = texts
    place = key, float(score) if score else None
    about = note, bool(static)
    if kind == "x":
        return Row(
            *place, note=note, static=bool(static), problem=f"the key is not a hash ({definition})"
        )
    # Of a claim only what is before the texts that it was made of.
    claim = claim.removeprefix('["').partition('"')[0]
    running, trigger, identity = map(text_in, (running, trigger, identity))
    fields = meta, policy, runtime, claim, running, trigger, identity
    if kind == "g":
        return Row(*place, None, *fields, *about, "it has no definition")
    text = f"{definition}{meta}{policy}{runtime}"
    problem = "" if text.isascii() or _is_utf8(text) else "it is not UTF-8 text"
    return Row(*place, definition, *fields, *about, problem, text_in(history))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_counts(reply: Sequence[Any]) -> Counts:
    """Return the reply of ``count.lua``."""
    now, members, statics, quarantined, disabled, parked, due, first_due, *rest = reply
    holder, beats, problem = rest
    first = float(first_due) if first_due else None
    numbers = (members, statics, quarantined, disabled, parked, due)
    pairs = zip(beats[::2], beats[1::2], strict=True)
    present = [Presence.read(text_of(beat), float(seen)) for beat, seen in pairs]
    return Counts(float(now), *numbers, first, text_of(holder), present, text_of(problem))
