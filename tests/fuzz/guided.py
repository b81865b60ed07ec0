"""Coverage-guided fuzzing of the code that reads the fields of an entry, with Atheris.

::

    pip install atheris
    python -m tests.fuzz.guided -runs=1000000 -timeout=10 CORPUS

``CORPUS`` is a directory, which receives the inputs that reach new code. The arguments are those of
libFuzzer. The program ends at the first input that raises anything else than a ``DecodeError``; to
see that error again, pass the file ``crash-...`` in place of the directory.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["redbeat"], enable_loader_override=False):
    from celery import Celery

    from redbeat import RedBeatSchedulerEntry
    from redbeat.codec.stored import text_of
    from redbeat.entries.history import read_history
    from redbeat.entries.saving import entry_of
    from redbeat.entries.status import quarantine_note
    from redbeat.errors import DecodeError
    from redbeat.presentation.describe import as_json
    from redbeat.storage.rows import Row

from tests.fuzz.seeds import SEEDS

__all__ = ()

#: Separates the fields of an entry in an input.
END = b"\0"
FIELDS = (b"definition", b"meta", b"policy", b"beat_state", b"history")

APP = Celery("fuzz", broker="memory://", set_as_current=False)


def read(data: bytes) -> None:
    """Read the fields of an entry, as a beat and a list of entries do."""
    parts = data.split(END)[: len(FIELDS)]
    *texts, history = map(text_of, parts + [b""] * (len(FIELDS) - len(parts)))
    quarantine_note(history)
    read_history(history.splitlines())
    with suppress(DecodeError):
        definition, meta, policy, state = (text or None for text in texts)
        row = Row("", "", definition, meta, policy, state)
        as_json(entry_of(row, APP, RedBeatSchedulerEntry))


def write_seeds(corpus: Path) -> None:
    """Write the entries of the kept cases, so that the search begins with valid entries."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS):
        if seed.surface == "stored":
            fields = {command[2]: command[3] for command in seed.case if command[0] == "HSET"}
            (corpus / f"seed-{number}").write_bytes(END.join(fields.get(f, b"") for f in FIELDS))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if not argument.startswith("-") and not Path(argument).is_file():
            write_seeds(Path(argument))
    atheris.Setup(sys.argv, read)
    atheris.Fuzz()
