"""Tests that the mutants match the code that they break, and the table of their killers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import redbeat
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.mutate import ROOT, SURVIVED, known_killers

PACKAGE = Path(redbeat.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_changes_its_file(mutant: Mutant) -> None:
    text = (PACKAGE / mutant.path).read_text()
    assert mutant.applied_to(text) != text


def test_each_mutant_was_killed_when_the_table_was_written() -> None:
    killers = known_killers()
    assert list(killers) == [mutant.name for mutant in MUTANTS]
    assert SURVIVED not in killers.values()


def test_the_manual_has_the_number_of_mutants() -> None:
    text = " ".join((ROOT / "docs" / "guarantees.rst").read_text().split())
    assert re.findall(r"[Aa]ll (\d+) :ref:`mutants", text) == [str(len(MUTANTS))]
