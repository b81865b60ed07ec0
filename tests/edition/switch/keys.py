"""The keys aside of the prefix, which commands delete and rights are asked for."""

from __future__ import annotations

from redbeat.storage import records
from tests.edition.words import KEYS_ASIDE


def install() -> None:
    """Let the second edition know all keys of the third."""
    vars(records)["KEYS_ASIDE"] = KEYS_ASIDE
