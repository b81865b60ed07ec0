"""Evaluates the expressions of our alert rules over two scrapes that are a minute apart.

It knows what the rules use: ``absent``, ``abs``, ``increase``, ``last_over_time``, ``max``,
``min``, ``sum`` and ``group``, a comparison with a number or with another vector times a number,
``unless`` and ``and``. Any other expression is an error. Counters are assumed to go on as between
the two scrapes, and to have begun within a day.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from prometheus_client.samples import Sample

__all__ = ("Scrapes", "evaluate")

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

TOKEN: Final = re.compile(
    r'\s*(\d+(?:\.\d+)?[smd]?|"[^"]*"|[a-z_]\w*|!~|=~|[{}()\[\],=<>*])', re.ASCII
)
AGGREGATES: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "group": lambda _values: 1.0,
}
COMPARISONS: Final = {"<": operator.lt, ">": operator.gt}


class Scrapes(NamedTuple):
    """The samples of two scrapes, by metric name."""

    first: dict[str, Vector]
    second: dict[str, Vector]

    @classmethod
    def of(cls, first: Iterable[Sample], second: Iterable[Sample]) -> Scrapes:
        """Return the samples by name."""
        return cls(by_name(first), by_name(second))


def by_name(samples: Iterable[Sample]) -> dict[str, Vector]:
    """Return the values of the samples by name and labels."""
    found: dict[str, Vector] = {}
    for sample in samples:
        found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
    return found


def evaluate(text: str, scrapes: Scrapes) -> Vector:
    """Return the result of an expression; the alert fires if it is not empty."""
    reader = Reader(text, scrapes)
    result = reader.expression()
    assert not reader.tokens, f"{text!r}: cannot read {reader.tokens}"
    return result


class Reader:
    """Reads one expression from its tokens, and evaluates it at the same time."""

    def __init__(self, text: str, scrapes: Scrapes) -> None:
        self.scrapes = scrapes
        self.tokens = TOKEN.findall(text)
        assert "".join(self.tokens) == re.sub(r"\s", "", text), f"unknown characters in {text!r}"
        self.tokens.reverse()

    def take(self, *expected: str) -> str:
        """Return the next token, which must be among ``expected`` if any are given."""
        token = str(self.tokens.pop())
        assert not expected or token in expected, f"{token!r} in place of {expected}"
        return token

    def next_is(self, *tokens: str) -> bool:
        """Return whether the next token is one of these."""
        return bool(self.tokens) and self.tokens[-1] in tokens

    def expression(self) -> Vector:
        """Read comparisons, joined by ``unless`` or ``and``."""
        left = self.comparison()
        while self.next_is("unless", "and"):
            both, right = self.take() == "and", self.comparison()
            left = {labels: value for labels, value in left.items() if (labels in right) is both}
        return left

    def comparison(self) -> Vector:
        """Read a vector, and a comparison with a number if there is one."""
        vector = self.vector()
        if not self.next_is(*COMPARISONS):
            return vector
        compare, number = COMPARISONS[self.take()], self.number()
        if self.next_is("*"):
            self.take()
            limits = {labels: number * value for labels, value in self.vector().items()}
        else:
            limits = dict.fromkeys(vector, number)
        return {
            labels: value
            for labels, value in vector.items()
            if labels in limits and compare(value, limits[labels])
        }

    def number(self) -> float:
        """Read a number."""
        token = self.take()
        assert token.replace(".", "").isdecimal(), f"{token!r} is not a number"
        return float(token)

    def vector(self) -> Vector:
        """Read a function, an aggregation or a metric."""
        name = self.take()
        if name in AGGREGATES:
            return self.aggregation(AGGREGATES[name])
        if not self.next_is("("):
            return self.metric(name, self.scrapes.second)
        self.take("(")
        result = self.function(name)
        self.take(")")
        return result

    def function(self, name: str) -> Vector:
        """Read the arguments of a function, and return its result."""
        if name == "increase":
            return self.growth()
        if name == "last_over_time":
            before, after, _ = self.both()
            return {**before, **after}
        vector = self.vector()
        if name == "absent":
            return {} if vector else {frozenset(): 1.0}
        assert name == "abs", f"{name} is not known here"
        return {labels: abs(value) for labels, value in vector.items()}

    def aggregation(self, function: Callable[[Iterable[float]], float]) -> Vector:
        """Read ``by (labels) (vector)``."""
        self.take("by")
        self.take("(")
        kept = {self.take()}
        while self.take(",", ")") == ",":
            kept.add(self.take())
        self.take("(")
        groups: dict[Labels, list[float]] = {}
        for labels, value in self.vector().items():
            group = frozenset((name, text) for name, text in labels if name in kept)
            groups.setdefault(group, []).append(value)
        self.take(")")
        return {labels: function(values) for labels, values in groups.items()}

    def growth(self) -> Vector:
        """Read a metric with a range, and return its growth within a minute, or since it began."""
        before, after, span = self.both()
        if span.endswith("d"):
            return after
        return {labels: after[labels] - before[labels] for labels in after.keys() & before.keys()}

    def both(self) -> tuple[Vector, Vector, str]:
        """Read a metric with a range; return its samples of both scrapes, and the range."""
        name = self.take()
        tokens = [*self.tokens]
        before = self.metric(name, self.scrapes.first)
        self.tokens = tokens
        after = self.metric(name, self.scrapes.second)
        self.take("[")
        span = self.take()
        self.take("]")
        return before, after, span

    def metric(self, name: str, scrape: dict[str, Vector]) -> Vector:
        """Read the labels after the name of a metric, and return its samples."""
        found = scrape.get(name, {})
        if not self.next_is("{"):
            return found
        self.take("{")
        while True:
            label, is_equal = self.take(), self.take("=", "=~", "!~") != "!~"
            pattern = re.compile(self.take().strip('"'))
            found = {
                labels: value
                for labels, value in found.items()
                if bool(pattern.fullmatch(dict(labels).get(label, ""))) is is_equal
            }
            if self.take(",", "}") == "}":
                return found
