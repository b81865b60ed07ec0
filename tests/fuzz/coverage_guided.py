"""Looks for texts that the decoder does not expect, guided by which code they reach.

Needs atheris, which is no dependency of the tests. From the root of the repository::

    pip install atheris
    python -m tests.fuzz.coverage_guided -max_total_time=300 -max_len=4096

It ends with the first text that raises something else than a ``DecodeError``, or takes five
seconds, and writes that text to a file. Options are libFuzzer's; a directory among them keeps what
was found.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from tests.fuzz.vocabulary import FIELDS, TAGGED, TEXTS

__all__ = ("main",)

NOW = datetime(2026, 3, 29, 0, 59, 59, tzinfo=timezone.utc)


#: Bytes below which a text is no definition worth changing.
SHORTEST = 20


def targets() -> Any:
    """Import what is tested, under instrumentation; return a function of one text."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["redbeat"]):
        definition = importlib.import_module("redbeat.entries.definition")
        errors = importlib.import_module("redbeat.errors")
        history = importlib.import_module("redbeat.entries.history")
        occurrences = importlib.import_module("redbeat.entries.decide")

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        with suppress(errors.DecodeError):
            history.History.read(text, text)
        try:
            found = definition.decode_policy("", definition.decode_definition(text))
        except errors.DecodeError:
            return
        try:
            occurrences.decide(found["schedule"], None, None, NOW, NOW, timezone.utc)
        except Exception:  # quarantined by a beat; a hang is what libFuzzer reports
            return

    return read


def seeds() -> list[bytes]:
    """Return good definitions to begin with."""
    return [f'{{"name": "a", "task": "t", "schedule": {tagged}}}'.encode() for tagged in TAGGED]


def main(arguments: list[str]) -> None:
    """Fuzz until something is found or libFuzzer's limits are reached."""
    atheris: Any = importlib.import_module("atheris")
    read = targets()
    words = [word.encode("utf-8", "surrogatepass") for word in (*FIELDS, *TEXTS) if word]
    for seed in [*seeds(), *words]:
        read(seed)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        """Put a good definition or a known word in place of a piece, now and then."""
        if len(data) < SHORTEST:
            return seeds()[seed % len(TAGGED)]
        if seed % 4:
            return bytes(atheris.Mutate(data, size))
        piece = words[seed % len(words)]
        at = seed % (len(data) + 1)
        return (data[:at] + piece + data[at + len(piece) // 2 :])[:size]

    atheris.Setup(["fuzz", "-timeout=5", *arguments], read, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
