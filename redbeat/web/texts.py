"""What is stored of an entry that cannot be read."""

from __future__ import annotations

from typing import Final

from redbeat.storage.wire import Row

__all__ = ("texts_of",)

#: Characters of a text that are shown.
TEXT: Final = 4000


def texts_of(row: Row) -> dict[str, str]:
    """Return what is stored of an entry that cannot be read, as far as it can be shown."""
    found = {"definition": row.definition, "policy": row.policy, "meta": row.meta}
    if row.definition is None:
        return {"key": row.problem}
    return {name: clean(text) for name, text in found.items() if text}


def clean(text: str) -> str:
    """Return a text of any origin in what a page can hold, and not too much of it."""
    shown = text[:TEXT].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return shown + ("…" if len(text) > TEXT else "")
