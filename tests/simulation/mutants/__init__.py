"""Mistakes that a change of the scripts or of the beat might make, by what they break."""

from __future__ import annotations

from typing import Final

from . import (
    brokers,
    changes,
    early,
    locks,
    looks,
    messages,
    occurrences,
    outcomes,
    programs,
    upkeep,
    verdicts,
)
from .mutant import Mutant

__all__ = ("MUTANTS", "Mutant")

_MODULES: Final = (
    *(changes, looks, locks, verdicts, occurrences, outcomes, messages, early, brokers),
    *(programs, upkeep),
)

MUTANTS: Final[tuple[Mutant, ...]] = tuple(one for module in _MODULES for one in module.MUTANTS)
