"""Formats numbers and lists in English."""

from __future__ import annotations

from collections.abc import Sequence


def joined(items: Sequence[str], word: str = "and") -> str:
    """Return the items as a list in English, such as ``a, b and c``."""
    *most, last = items
    return f"{', '.join(most)} {word} {last}" if most else last


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a number with a noun, such as ``1 hour`` or ``2 hours``.

    ``nouns`` is the plural of the noun if the plural is irregular.
    """
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def ordinal(number: int) -> str:
    """Return a positive number as an ordinal, such as ``1st``, ``2nd`` or ``11th``."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if 10 <= number % 100 <= 20 else endings.get(number % 10, "th")
    return f"{number}{ending}"
