"""Strategies for data that other programs may write: almost right, wrong or absurd."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.vocabulary import FIELDS, HASH_FIELDS, NUMBERS, TAGGED, TEXTS

__all__ = ("definitions", "lists", "metas", "names", "policies", "scores", "states")

Strategy = st.SearchStrategy[Any]

texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=12))
numbers = st.one_of(
    st.sampled_from(NUMBERS), st.integers(), st.floats(allow_nan=True, allow_infinity=True)
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)


def _containers(inner: Strategy) -> Strategy:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(FIELDS), texts), inner, max_size=4),
        _tagged(inner),
    )


@st.composite
def _tagged(draw: st.DrawFn, inner: Strategy) -> dict[str, Any]:
    """Return a valid tagged object with some values replaced, added or missing."""
    value = json.loads(draw(st.sampled_from(TAGGED)))
    for key in draw(st.lists(st.sampled_from([*value, *FIELDS]), max_size=3)):
        if draw(st.booleans()):
            value[key] = draw(inner)
        else:
            value.pop(key, None)
    return dict(value)


values = st.recursive(scalars, _containers, max_leaves=5)


@st.composite
def _definition(draw: st.DrawFn) -> dict[str, Any]:
    definition = {
        "name": "bad",
        "task": "t",
        "args": [],
        "kwargs": {},
        "options": {},
        "schedule": json.loads(draw(st.sampled_from(TAGGED))),
        "enabled": True,
    }
    if draw(st.booleans()):
        definition["schedule"] = draw(_tagged(values))
    for key in draw(st.lists(st.sampled_from([*definition, *FIELDS]), max_size=2)):
        definition[key] = draw(values)
    return definition


@st.composite
def _broken(draw: st.DrawFn, whole: Strategy) -> str:
    """Return a JSON string with a part removed, duplicated or replaced."""
    text = json.dumps(draw(whole))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 20)))
    return text[:start] + draw(st.sampled_from(("", text[start:end] * 2, *TEXTS))) + text[end:]


def _text_of(whole: Strategy) -> Strategy:
    """Return valid JSON in most cases, else broken JSON or any other string."""
    deep = st.sampled_from((50, 199, 201, 1500, 9000)).map(lambda depth: "[" * depth)
    return st.one_of(
        whole.map(json.dumps),
        whole.map(json.dumps),
        _broken(whole),
        values.map(json.dumps),
        st.text(max_size=40),
        deep,
        deep.map(lambda text: text + "]" * len(text)),
    )


definitions = _text_of(_definition())
metas = _text_of(
    st.fixed_dictionaries(
        {}, optional={"last_run_at": st.one_of(_tagged(values), values), "total_run_count": values}
    )
)
policies = st.one_of(
    st.just(""),
    _text_of(
        st.fixed_dictionaries(
            {},
            optional={"delivery": values, "dtstart_zone": texts, "until_zone": texts},
        )
    ),
)


@st.composite
def _state(draw: st.DrawFn) -> dict[str, Any]:
    """Return a valid state without some parts, of which others are replaced."""
    valid: Any = HASH_FIELDS["beat_state"]
    state = {name: valid[name] for name in draw(st.sets(st.sampled_from([*valid])))}
    for name in draw(st.lists(st.sampled_from([*valid]), max_size=2)):
        state[name] = draw(values)
    return state


def lists(field: str) -> Strategy:
    """Return texts of a field that holds a list: ``inbox``, ``history`` or ``results``."""
    valid: Any = HASH_FIELDS[field]
    return _text_of(st.lists(st.one_of(st.sampled_from(valid), values), max_size=3))


states = _text_of(_state())
names = st.one_of(st.sampled_from(TEXTS), st.text(max_size=30), st.binary(max_size=12))
scores = st.one_of(
    st.floats(allow_nan=False),
    st.sampled_from((0.0, -1.0, -2.0, 1.0, float("inf"), float("-inf"), 1e308, -1e-300)),
)
