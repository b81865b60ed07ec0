"""What a source of entries gives, whatever it reads."""

from __future__ import annotations

from dataclasses import dataclass

from redbeat.entry import RedBeatSchedulerEntry

__all__ = ("EntryType", "Incoming", "UnreadableSourceError", "fail")

EntryType = type[RedBeatSchedulerEntry]


class UnreadableSourceError(ValueError):
    """A file is not at all what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One entry of a source, or what is wrong with it.

    ``where`` tells where it stands, such as ``line 3``. ``problem`` names the field and is "" for
    an entry that could be read. A ``static`` entry is one of ``beat_schedule``. ``meta`` and
    ``runtime`` are its run history as stored; "" for an entry without, which keeps the stored one.
    ``history`` are the lines of its last runs, ``identity`` is that of an entry that comes back.
    ``texts`` are its definition and policy as stored, where the source knows them already.
    """

    where: str
    entry: RedBeatSchedulerEntry | None = None
    problem: str = ""
    static: bool = False
    meta: str = ""
    runtime: str = ""
    history: str = ""
    identity: str = ""
    texts: tuple[str, str] | None = None


def fail(where: str, error: Exception) -> Incoming:
    """Return what stands for an entry that cannot be read."""
    return Incoming(where, problem=str(error) or repr(error))
