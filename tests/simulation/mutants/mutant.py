"""A mistake that a change might make, as a text replacement."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake.

    Attributes:
        name: its name on the command line.
        broken: what is broken, in a sentence.
        path: the file below ``redbeat``.
        old: the replaced text; the file has it exactly once.
        new: the text in its place.
        by: what may detect it, tried in this order: profiles of the simulator, options of the
            simulator, and tests in pytest's notation.
    """

    name: str
    broken: str
    path: str
    old: str
    new: str
    by: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """Return the text of the file with the mistake.

        Raises ``ValueError`` unless the file has ``old`` exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} has its text {text.count(self.old)} times")
        return text.replace(self.old, self.new)
