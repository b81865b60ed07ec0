"""Pauses: what an operator's pause writes into the texts of an entry, and how it is undone."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any, Final, NamedTuple

from redbeat.calendar.zones import UTC
from redbeat.decoder import decode
from redbeat.errors import DecodeError

__all__ = ("FIELD", "Pause", "paused", "resumed")

#: The key of a pause in a policy.
FIELD: Final = "pause"


class Pause(NamedTuple):
    """Why an entry was paused, since when (ISO 8601, UTC), and a digest of what it was before."""

    note: str | None
    since: str
    of: str

    @classmethod
    def read(cls, policy: str) -> Pause | None:
        """Return the pause in a policy, None for none; raises :exc:`DecodeError`."""
        if f'"{FIELD}"' not in policy:
            return None
        found = decode(policy, "policy").get(FIELD)
        if found is None:
            return None
        if not isinstance(found, dict):
            raise DecodeError(f"policy.{FIELD}", f"must be an object, not {found!r:.60}")
        note = found.get("note")
        return cls(
            None if note is None else str(note), *(str(found.get(k)) for k in cls._fields[1:])
        )

    @classmethod
    def of_entry(cls, entry: Any) -> Pause | None:
        """Return the pause of an entry that was loaded, None for none."""
        return None if entry is None or entry.enabled else entry._pause

    def field(self) -> dict[str, Any]:
        """Return what a policy holds of it."""
        return {FIELD: self._asdict()}


def paused(definition: str, policy: str, note: str | None, now: datetime) -> tuple[str, str]:
    """Return definition and policy of an entry with an operator's pause on it."""
    earlier = Pause.read(policy)
    pause = Pause(
        None if note is None else str(note),
        now.astimezone(UTC).isoformat(timespec="seconds"),
        digest(definition, policy) if earlier is None else earlier.of,
    )
    texts = {**json.loads(policy or "{}"), **pause.field()}
    return _with_enabled(definition, False), json.dumps(texts)


def resumed(definition: str, policy: str) -> tuple[str, str]:
    """Return definition and policy of an entry that is enabled, as they were before the pause."""
    texts = json.loads(policy or "{}")
    if FIELD in texts:
        texts.pop(FIELD)
        policy = json.dumps(texts) if texts else ""
    return _with_enabled(definition, True), policy


def digest(definition: str, policy: str) -> str:
    """Return the SHA-1 of the texts, as ``sync.lua`` computes it."""
    whole = f"{definition}\n{policy}" if policy else definition
    return hashlib.sha1(whole.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


def _with_enabled(definition: str, enabled: bool) -> str:
    return json.dumps({**json.loads(definition), "enabled": enabled})
