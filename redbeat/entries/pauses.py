"""The pause of an entry, as beats keep it and as files have it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, NamedTuple

from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import bytes_of, moment_in, object_in, string_in
from redbeat.decoder import decode
from redbeat.errors import DecodeError

#: The name of the policy field that contains the pause in files.
FIELD: Final = "pause"

#: Maximum number of characters in a note, and in the name of an operator.
LONGEST: Final = 2000


class Pause(NamedTuple):
    """An operator's pause of an entry: since when (UNIX seconds), why, and by whom."""

    since: float
    note: str = ""
    by: str = ""

    @classmethod
    def read(cls, policy: str) -> Pause | None:
        """Return the pause in a policy of a file, None without one; raises :exc:`DecodeError`."""
        fields = decode(policy, "policy").get(FIELD) if f'"{FIELD}"' in policy else None
        if fields is None:
            return None
        if not isinstance(fields, dict):
            raise DecodeError(f"policy.{FIELD}", f"must be an object, not {fields!r:.60}")
        note, by = (string_in(fields.get(name), LONGEST) for name in ("note", "by"))
        since = moment_in(fields.get("since"))
        return cls(since.timestamp() if since else 0.0, note, by)

    @classmethod
    def of_entry(cls, entry: Any) -> Pause | None:
        """Return the pause of a loaded entry, None if the entry is not paused."""
        return None if entry is None or entry.enabled else entry.saved_state.pause

    @property
    def begin(self) -> str:
        """When the pause began, ISO 8601 in UTC."""
        return from_timestamp(self.since).isoformat(timespec="seconds")


def with_pause(policy: str, pause: Pause | None) -> str:
    """Return a policy with a pause, as files have it; raises :exc:`DecodeError`."""
    if pause is None:
        return policy
    fields = {"note": pause.note or None, "since": pause.begin}
    if pause.by:
        fields["by"] = pause.by
    return json.dumps({**object_in(policy, "policy"), FIELD: fields})


def without_pause(policy: str) -> str:
    """Return a policy without the pause of a file; raises :exc:`DecodeError`."""
    fields = object_in(policy, "policy")
    if fields.pop(FIELD, None) is None:
        return policy
    return json.dumps(fields) if fields else ""


def with_enabled(definition: str, value: bool) -> str:
    """Return a definition with the entry enabled or not; raises :exc:`DecodeError`."""
    return json.dumps({**object_in(definition, "definition"), "enabled": value})


def resumed(definition: str, policy: str) -> tuple[str, str]:
    """Return a definition and policy with the entry enabled, and without the pause of a file."""
    return with_enabled(definition, True), without_pause(policy)


def digest(definition: str, policy: str) -> str:
    """Return the SHA-1 digest of definition and policy."""
    whole = f"{definition}\n{policy}" if policy else definition
    return hashlib.sha1(bytes_of(whole), usedforsecurity=False).hexdigest()
