"""What a copy of entries to another prefix needs to know of their fields."""

from __future__ import annotations

from datetime import datetime
from json.encoder import encode_basestring_ascii as quoted

from redbeat.codec.stored import text_of
from redbeat.entries.decide import task_id_of
from redbeat.entries.runs import with_ids
from redbeat.storage.records import Keys
from tests.edition.beat.load import state_of
from tests.edition.state import history_texts
from tests.edition.storage.rows import Row
from tests.edition.words import DEFINITION, HISTORY, META, STATE

_HISTORY = HISTORY.encode()


def with_task_ids(keys: Keys, name: bytes, fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the fields of an entry, with the task id of each run added to the run history.

    RedBeat computes task ids from the prefix, so another prefix would change them.
    """
    if _HISTORY not in fields:
        return fields
    found = (fields.get(field.encode()) for field in (DEFINITION, META, STATE))
    definition, meta, state = (None if text is None else text_of(text) for text in found)
    entry = text_of(name)
    row = Row(keys.entry(entry), definition=definition, meta=meta, state=state)
    identity = state_of(row).identity

    def task_id(scheduled_at: datetime) -> str:
        return task_id_of(keys.prefix, entry, scheduled_at.isoformat(), identity)

    lines = with_ids("\n".join(history_texts(text_of(fields[_HISTORY]))), task_id).splitlines()
    history = ",\n".join(map(quoted, lines))
    return {**fields, _HISTORY: f"[{history}]".encode()}
