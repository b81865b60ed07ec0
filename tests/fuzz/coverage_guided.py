"""Searches for JSON strings that break the decoder, guided by code coverage.

This program needs atheris, which the tests do not require. From the root of the repository::

    pip install atheris
    python -m tests.fuzz.coverage_guided -max_total_time=300 -max_len=4096

The program stops at the first string that raises an error other than ``DecodeError`` or takes five
seconds, and writes this string to a file. The options are those of libFuzzer. If you name a
directory, libFuzzer stores the corpus there.
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


#: Minimum size in bytes of a definition that is worth mutating.
SHORTEST = 20


def targets() -> Any:
    """Import the instrumented decoder, and return a function that decodes one string."""
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
        except Exception:  # A beat would quarantine this entry; libFuzzer reports hangs.
            return

    return read


def seeds() -> list[bytes]:
    """Return valid definitions to start with."""
    return [f'{{"name": "a", "task": "t", "schedule": {tagged}}}'.encode() for tagged in TAGGED]


def main(arguments: list[str]) -> None:
    """Fuzz until a string breaks the decoder or a limit of libFuzzer is reached."""
    atheris: Any = importlib.import_module("atheris")
    read = targets()
    words = [word.encode("utf-8", "surrogatepass") for word in (*FIELDS, *TEXTS) if word]
    for seed in [*seeds(), *words]:
        read(seed)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        """Sometimes replace a part of the string with a valid definition or a known word."""
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
