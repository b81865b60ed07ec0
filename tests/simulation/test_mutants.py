"""Tests that the mutants match the code that they break, and the table of their killers."""

from __future__ import annotations

import re
from pathlib import Path

import redbeat
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.mutate import ROOT, SURVIVED, known_killers

PACKAGE = Path(redbeat.__file__).parent


def problem_of(mutant: Mutant) -> str:
    """Return why a mutant does not change its file, or an empty string."""
    text = (PACKAGE / mutant.path).read_text()
    try:
        return "" if mutant.applied_to(text) != text else f"{mutant.name} changes nothing"
    except ValueError as error:
        return str(error)


def test_each_mutant_still_changes_its_file() -> None:
    assert [*filter(None, map(problem_of, MUTANTS))] == []


def test_each_mutant_was_killed_when_the_table_was_written() -> None:
    killers = known_killers()
    assert list(killers) == [mutant.name for mutant in MUTANTS]
    assert SURVIVED not in killers.values()


def test_the_manual_has_the_number_of_mutants() -> None:
    text = " ".join((ROOT / "docs" / "tested.rst").read_text().split())
    assert re.findall(r"All (\d+) mutants are found", text) == [str(len(MUTANTS))]
