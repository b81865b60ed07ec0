"""Makes a run from an entry's stored text, and decodes equal text only once."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from datetime import tzinfo
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

from celery import Celery
from celery.schedules import BaseSchedule

from redbeat import decoder
from redbeat.calendar.zones import UTC
from redbeat.codec.stored import is_valid_text
from redbeat.config import ensure_conf
from redbeat.entries import calendars, decide
from redbeat.entries.decide import Plan
from redbeat.entries.definition import FIELDS, decode_definition, warn_if_too_short
from redbeat.entries.history import History
from redbeat.entries.policy import DEFAULT
from redbeat.entries.run import Rule, Run
from redbeat.entries.state import Said, State, read_inbox
from redbeat.entry import RedBeatSchedulerEntry, check_allowed, plan_of
from redbeat.errors import DecodeError
from redbeat.schedules.calendars import Exclusion
from redbeat.schedules.next_run import asks_itself
from redbeat.storage.rows import Row

#: How many rules to keep that others may copy under another name, and how many characters the
#: definition of one may have.
MOST_TWINS: Final = 1000
LONGEST_TWIN: Final = 4096

#: How many rules a beat keeps; each takes about 3 KiB.
MOST_RULES: Final = 10_000


class Rules:
    """A beat's rules, by the keys of their entries. User code may replace the entry class."""

    def __init__(self, app: Celery, entry_class: type[Any]) -> None:
        self._app = app
        #: The time zone of the app.
        self.zone = app.timezone
        self._conf = ensure_conf(app)
        self._entry_class = entry_class
        self._decoder = decoder.names.RedBeatJSONDecoder
        self._rule = lru_cache(MOST_RULES)(self._make)
        self._exclusion = lru_cache(MOST_RULES)(self._make_exclusion)
        self._calendars: Mapping[str, str] = {}
        #: Rules by all of their text but the name, which is often the only difference.
        self._twins: dict[tuple[str, str], Rule] = {}
        self._schedules: dict[str, BaseSchedule] = {}
        #: The names in ``beat_schedule``. ``restore`` gives their entries the objects that Redis
        #: can't store.
        self.statics: Container[str] = ()
        self.restore: Callable[[Any], None] = lambda _entry: None

    def rule_of(self, row: Row) -> Rule:
        """What an entry says. Raises :exc:`DecodeError`, or an error of a user's class."""
        if row.definition is None:
            is_other = "WRONGTYPE" in row.problem
            problem = "the key is not a hash" if is_other else row.problem or "is missing"
            raise DecodeError("definition", problem)
        return self._rule(row.key, row.definition, row.policy or "")

    def run_of(self, row: Row, now: float) -> Run:
        """The run of an entry that was looked at at ``now``, Redis's time in UNIX seconds.

        Raises what :meth:`rule_of` raises.
        """
        return Run(row, self.rule_of(row), State.of(row), History.read(row.meta or ""), now)

    def inbox_of(self, run: Run) -> list[Said]:
        """What others say about an entry. The end of a run that it never had becomes an error.

        A worker trusts the headers of a message, and anyone who can reach the broker can send one.
        """
        said = read_inbox(run.row.inbox)
        return [
            one
            if one.end is None or one.run is None or self._is_of(run, one.end.id, one.run)
            else one._replace(end=None, error="it is the end of no run of this entry")
            for one in said
        ]

    def _is_of(self, run: Run, task_id: str, iso: str) -> bool:
        state, prefix, name = run.state, self._conf.key_prefix, run.rule.name
        known = {one.id for one in (state.running, state.hold) if one is not None}
        if task_id in {*known, *state.ids, decide.task_id_of(prefix, name, iso, state.identity)}:
            return True
        return any(
            task_id == decide.task_id_of(prefix, name, f"trigger {one}") for one in state.ids
        )

    def refresh(self, entry_class: type[Any]) -> None:
        """Forget all rules if a program has replaced the decoder or the entry class."""
        makers = decoder.names.RedBeatJSONDecoder, entry_class
        if makers != (self._decoder, self._entry_class):
            self.forget()
            self._decoder, self._entry_class = makers

    def use_calendars(self, texts: Mapping[str, str]) -> None:
        """Use these calendars from now on: name -> JSON."""
        self._calendars = texts
        self._exclusion.cache_clear()

    def plan_of(self, rule: Rule) -> Plan:
        """The plan of a rule that names calendars. Raises :exc:`DecodeError`."""
        names, plan = rule.policy.exclude, rule.plan
        exclusion = self._exclusion(names, plan.zone or UTC, rule.policy.on_excluded)
        return Plan(plan.schedule, plan.zone, plan.policy, plan.identity, exclusion)

    def _make_exclusion(self, names: tuple[str, ...], zone: tzinfo, moves: str) -> Exclusion:
        found = calendars.decode_calendars(self._calendars, names)
        missing = next((name for name in names if name not in found), None)
        if missing is not None:
            fix = "save the calendar first, or correct the name"
            raise DecodeError("exclude", f"there is no calendar {missing!r}; {fix}")
        return Exclusion([found[name] for name in names], zone, moves)

    def forget(self) -> None:
        """Forget all rules: ``beat_schedule`` may have other objects now."""
        self._rule.cache_clear()
        self._twins.clear()
        self._schedules.clear()

    def _make(self, key: str, definition: str, policy: str) -> Rule:
        name = key[len(self._conf.key_prefix) :]
        begin, rest = f'{{"name": {quoted(name)}, ', ""
        has_twins = self._conf.shards == 1 and self._entry_class is RedBeatSchedulerEntry
        is_usual = len(definition) <= LONGEST_TWIN and definition.startswith(begin)
        if has_twins and is_usual and name not in self.statics:
            rest = definition[len(begin) :]
            twin = self._twins.get((rest, policy))
            if twin is not None and name and (name.isascii() or is_valid_text(name)):
                plan = replace(twin.plan, identity=name)
                return replace(twin, key=key, name=name, plan=plan, definition=definition)
        rule = self._decoded(key, definition, policy)
        # A second "name" in the JSON would count, and a backslash may hide one.
        if rest and '"name"' not in rest and "\\" not in rest:
            if len(self._twins) >= MOST_TWINS:
                self._twins.clear()
            self._twins[rest, policy] = rule
        return rule

    def _decoded(self, key: str, definition: str, policy_text: str) -> Rule:
        is_whole = not policy_text and '"lazy"' not in definition  # a function's placeholder
        if self._entry_class is RedBeatSchedulerEntry and is_whole:
            fields = decode_definition(definition, self._schedule_of)
            if FIELDS.keys() >= fields.keys() and fields["name"] not in self.statics:
                return self._plain(key, definition, fields)
        entry = self._entry_class.from_definition(self._app, definition, policy_text)
        self._check_name(entry.name, entry.key, key)
        entry.check_allowed()
        warn_if_too_short(entry.name, entry.schedule)  # only other writers store such a thing
        self.restore(entry)
        policy, plan, name = entry.effective_policy, entry.plan_without_calendars(), str(entry.name)
        what = (entry.task, entry.args, entry.kwargs, entry.options, bool(entry.enabled))
        texts, asks = (definition, policy_text), asks_itself(entry.schedule)
        return Rule(key, name, *what, entry.schedule, policy, plan, *texts, asks)

    def _schedule_of(self, written: Any) -> BaseSchedule:
        """The schedule in a definition, shared by entries unless it decides by itself."""
        if not isinstance(written, dict):
            return decoder.decode_schedule(written)
        text = repr(written)
        schedule = self._schedules.get(text)
        if schedule is None:
            schedule = decoder.decode_schedule(written)
            if len(self._schedules) >= MOST_TWINS:
                self._schedules.clear()
            if not asks_itself(schedule):
                self._schedules[text] = schedule
        return schedule

    def _plain(self, key: str, definition: str, fields: dict[str, Any]) -> Rule:
        """The rule of an entry without a policy: it needs no entry object."""
        name, task, schedule = str(fields["name"]), fields["task"], fields["schedule"]
        options = fields.get("options") or {}
        self._check_name(name, RedBeatSchedulerEntry.generate_key(self._app, name), key)
        check_allowed(self._conf, task, options)
        schedule.app = self._app
        warn_if_too_short(name, schedule)
        plan = plan_of(self._app, schedule, DEFAULT, name)
        what = (task, fields.get("args"), fields.get("kwargs") or {}, options)
        enabled, asks = fields.get("enabled", True), asks_itself(schedule)
        return Rule(key, name, *what, enabled, schedule, DEFAULT, plan, definition, "", asks)

    def _check_name(self, name: Any, named: str, key: str) -> None:
        if named != key:
            raise DecodeError("definition.name", f"{name!r} does not match the key of the entry")
