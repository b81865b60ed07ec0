"""Makes hostile data from valid examples: by structure, as JSON, or by bytes. Seeded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeVar

from tests.fuzz.vocabulary import BYTES, FIELDS, NUMBERS, TAGGED, TEXTS

__all__ = ("TAGGED_VALUES", "Mutator")

T = TypeVar("T")

TAGGED_VALUES: Final = tuple(map(json.loads, TAGGED))
#: Depths of nested brackets: around the limit of the decoder, and around that of the interpreter.
DEPTHS: Final = (50, 199, 201, 990, 5_000, 100_000)
DEEPEST: Final = 3
#: The words in a stored line.
WORDS: Final = re.compile(r"[^\s/~:,]+")
#: Other spellings of numbers, which Python, Lua and Redis read differently.
SPELLINGS: Final = (
    *("10.0", "1e1", "+1", "01", "1_0", "0x10", "1e-9", "nan", "inf", "-inf", "infinity", "\u0663"),
    *("-", "", "0", "-0", "done", "-1", ".5", "5.", "1e300", "9" * 400),
)


class Mutator:
    """A source of hostile data; equal seeds give equal data."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)

    def chance(self, share: float) -> bool:
        """Return true with this probability."""
        return self.random.random() < share

    def choice(self, values: Sequence[T]) -> T:
        """Return one of the values."""
        return values[int(self.random.random() * len(values))]

    # -- text and bytes --------------------------------------------------------------------------

    def text(self) -> str:
        """Return a known word, or some characters of any kind."""
        if self.chance(0.6):
            return self.choice(TEXTS)
        largest = self.choice((0x7F, 0x2FF, 0xFFFF, 0x10FFFF))
        return "".join(
            chr(self.random.randint(0, largest)) for _ in range(self.random.randint(0, 12))
        )

    def noise(self) -> bytes:
        """Return a few bytes of any kind."""
        kind = self.random.random()
        if kind < 0.4:
            return self.choice(BYTES)
        if kind < 0.7:
            return self.text().encode("utf-8", "surrogatepass")
        return self.random.randbytes(self.random.randint(0, 12))

    def damaged(self, data: bytes, times: int = 2) -> bytes:
        """Return the bytes with some parts removed, repeated, changed or added."""
        for _ in range(self.random.randint(1, times)):
            start = self.random.randint(0, len(data))
            end = min(len(data), start + self.choice((0, 1, 1, 4, 20)))
            piece = self.choice(
                (b"", data[start:end] * 2, self.noise(), self.noise() + data[start:end])
            )
            data = data[:start] + piece + data[end:]
        if self.chance(0.05):
            data = data[: self.random.randint(0, len(data))]
        if self.chance(0.01):
            data *= self.choice((2, 100, 3000))
        return data

    # -- JSON ------------------------------------------------------------------------------------

    def scalar(self) -> Any:
        """Return a JSON value without parts."""
        kind = self.random.random()
        if kind < 0.4:
            return self.text()
        if kind < 0.7:
            return self.choice(NUMBERS)
        if kind < 0.8:
            return self.random.randint(-100, 2100)
        return self.choice((None, True, False, float("nan"), float("inf"), [], {}, "1", [[]]))

    def value(self, depth: int = 0) -> Any:
        """Return any JSON value."""
        kind = self.random.random()
        if kind < 0.6 or depth >= DEEPEST:
            return self.scalar()
        if kind < 0.75:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        if kind < 0.85:
            return self.tweaked(self.choice(TAGGED_VALUES))
        pairs = range(self.random.randint(0, 3))
        return {self.choice(FIELDS): self.value(depth + 1) for _ in pairs}

    def tweaked(self, value: Any) -> Any:
        """Return a copy of a JSON value in which one part is replaced, removed or added."""
        if isinstance(value, dict) and value:
            return self._tweaked_object(value)
        if isinstance(value, list) and value and self.chance(0.7):
            at = self.random.randrange(len(value))
            part = [] if self.chance(0.2) else [self.tweaked(value[at])]
            return [*value[:at], *part * self.choice((1, 1, 2)), *value[at + 1 :]]
        if isinstance(value, str) and self.chance(0.7) and len(WORDS.findall(value)) > 1:
            return self.reworded(value)
        kind = self.random.random()
        if kind < 0.2 and isinstance(value, (int, float)):
            return self.choice(
                (
                    -value,
                    value + 1,
                    value * 10,
                    str(value),
                    [value],
                    value / 7.0 if abs(value) < 1e300 else 7,
                )
            )
        if kind < 0.3:
            return self.choice(([value], {"__type__": value}, {"a": value}, str(value)))
        return self.value(1)

    def reworded(self, value: str) -> str:
        """Return a text whose words are fields of a line, with another word for one of them."""
        found = self.choice(tuple(WORDS.finditer(value)))
        word = self.choice((*SPELLINGS, str(self.choice(NUMBERS)), found[0] * 2, self.text()))
        return value[: found.start()] + word + value[found.end() :]

    def _tweaked_object(self, value: dict[str, Any]) -> dict[str, Any]:
        copy = dict(value)
        key = self.choice(tuple(copy))
        kind = self.random.random()
        if kind < 0.7:
            copy[key] = self.tweaked(copy[key])
        elif kind < 0.8:
            del copy[key]
        elif kind < 0.95:
            copy[self.choice(FIELDS)] = self.value(1)
        else:
            copy[self.text()] = copy.pop(key)
        return copy

    def json(self, example: Any) -> bytes:
        """Return the JSON of an example after some damage; in one of ten cases, of none."""
        for _ in range(self.choice((0, 1, 1, 1, 1, 1, 2, 2, 3, 4))):
            example = self.tweaked(example)
        data = json.dumps(example).encode("ascii")
        kind = self.random.random()
        if kind < 0.75:
            return data
        if kind < 0.92:
            return self.damaged(data)
        if kind < 0.95:
            return json.dumps(example, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if kind < 0.98:
            return self.noise()
        return self.nested(data)

    def nested(self, data: bytes) -> bytes:
        """Return brackets inside of brackets, closed or not."""
        depth, (left, right) = self.choice(DEPTHS), self.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return left * depth + (data if self.chance(0.5) else b"") + right * self.choice((0, depth))

    def one(self, *makers: Callable[[], T]) -> T:
        """Return what one of the functions returns."""
        return self.choice(makers)()
