"""What becomes of a run: the change that stores a verdict, and what the answer to it means."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from redbeat.beat.retries import OTHERS_WAIT, BackOff
from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import object_in
from redbeat.config import RedBeatConfig
from redbeat.entries.decide import PARKED
from redbeat.entries.runs import cause_of, failed
from redbeat.errors import reason_of
from redbeat.metrics.counters import Counters
from redbeat.presentation.english import plural
from redbeat.printing import encodable, get_logger
from redbeat.signals import (
    emit,
    entry_dispatched,
    entry_failed,
    entry_finished,
    entry_missed,
    entry_quarantined,
)
from redbeat.storage.layout import layout_of
from tests.edition import plan
from tests.edition.beat.load import keep_due
from tests.edition.beat.suspects import ENDED_A_BEAT
from tests.edition.plan import DELETE, DISABLE, Recorded, Rest
from tests.edition.run import FIRST, HOLD, INSIDE, RECORD, RELEASE, REST, Run
from tests.edition.state import (
    Failing,
    Quarantine,
    State,
    digest_of_meta,
    failed_again,
    history_line,
    result_line,
    result_start,
)
from tests.edition.storage.rows import Answer, Change, Row, digest_of, new_mark
from tests.edition.words import (
    ABSENT,
    CALENDARS,
    DEFINITION,
    DIFFERS,
    DONE,
    ELSEWHERE,
    EXPECTED,
    FAILING,
    META,
    QUARANTINE,
    REFUSED,
    SCORE,
    STALE,
    STATE,
    WAITS,
)

logger = get_logger("celery.beat")

#: Seconds after the look for which a decision holds.
VALID: Final = 5.0

#: Seconds for which nobody else takes over a held run, and for which its owner may start to publish
#: it, counted from before the request that held it.
HELD, MAY_PUBLISH = 30.0, 20.0

#: Seconds until the next look after user code declined a run and did not say until when.
DECLINED_FOR: Final = 5.0

#: The back-off of an entry that ended a beat's process, or perhaps only was in its hand.
SUSPECT_WAIT: Final = BackOff(60.0, 3600.0)

#: Why a run is lost whose record was perhaps another's.
OVERTAKEN: Final = "Redis refused its record or confirmed it too late"

#: What the beat does after an answer.
NOTHING, AGAIN, PUBLISH, OTHER_ORDER, FAILED = "", "again", "publish", "other order", "failed"
RECORD_OVER = "record over"


class Outcome:
    """Makes the changes of runs, and reads the answers to them. It counts, logs and signals runs.

    Arguments:
        scheduler: the sender of signals, which also makes entry objects for their receivers.
        conf: the settings.
        counters: the counters of the beat.
        entry_of: returns the entry object of a run, for receivers of signals.
    """

    def __init__(
        self,
        scheduler: Any,
        conf: RedBeatConfig,
        counters: Counters,
        entry_of: Callable[[Run], Any],
    ) -> None:
        self._scheduler = scheduler
        self._lines = conf.history_size
        self._conf = conf
        self._counters = counters
        self._entry_of = entry_of

    # -- changes -------------------------------------------------------------------------------

    def inside(self, run: Run, version: str | None) -> Change:
        """Return the change that publishes and records a run in one step."""
        run.stage, covers = INSIDE, _covers(run)
        change = self._record(run, run.state, digest_of(run.row, covers, version))
        change.covers = covers
        change.push = run.push
        change.not_after = run.now + VALID
        return change

    def first(self, run: Run, version: str | None) -> Change:
        """Return the change that records a run before its message is published."""
        run.stage, run.left = FIRST, True
        change = self._record(run, run.state, _expected(run, version))
        change.covers = _covers(run)
        change.not_after = run.now + VALID
        run.held = change.set[STATE]
        return change

    def hold(self, run: Run, version: str | None) -> Change:
        """Return the change that holds a decided run, before its message is published."""
        assert run.verdict is not None
        run.stage = HOLD
        until, mark = run.now + HELD, new_mark()
        state = plan.hold(run.verdict, run.state, run.row.meta, until, run.task_id)
        state.sign(mark, hold=True)
        run.held, run.held_state = state.text(), state
        return Change(
            run.row.key,
            mark,
            _expected(run, version),
            _covers(run),
            {STATE: run.held},
            score=until,
            take=run.verdict.take,
            results=_results(run),
            lines=self._lines,
            not_after=run.now + VALID,
        )

    def record(self, run: Run) -> Change:
        """Return the change that records a run whose message is out."""
        run.stage = RECORD
        return self._record(run, _stored_state(run), digest_of(run.stored))

    def rest(self, run: Run, version: str | None) -> Change:
        """Return the change that stores a verdict by which nothing leaves."""
        assert run.verdict is not None
        run.stage = REST
        rest = run.verdict.rest
        if (
            rest.state is run.state
            and run.row.state is not None
            and not (run.verdict.take or rest.end or rest.meta or rest.outcome or rest.waits)
        ):
            # Nothing but the score: a mark would let the owner of a live hold differ. An entry
            # without a state has none, and gets one: it says that this score is ours.
            return Change(run.row.key, score=rest.score)
        change = self._change(run, plan.record_unsent(run.verdict, run.now), mark_run=False)
        change.expect, change.covers = _expected(run, version), _covers(run)
        return change

    def release(self, run: Run, score: float) -> Change:
        """Return the change that gives back a held run, due at ``score``.

        A run that has perhaps left stays decided: the next look sends it again, with its id.
        """
        run.stage = RELEASE
        assert run.verdict is not None
        assert run.verdict.send is not None
        stored, held = _stored_state(run), run.verdict.send.held
        if run.left and stored.hold is not None:
            held = stored.hold._replace(until=score)
        state = plan.release(stored, held)
        mark, expect = new_mark(), digest_of(run.stored)
        state.sign(mark)
        return Change(run.row.key, mark, expect, set={STATE: state.text()}, score=score)

    def decline(self, run: Run) -> Change:
        """Return the change that leaves an occurrence which user code does not send now."""
        assert run.own is not None
        score = run.own.score if run.own.score is not None else run.now + DECLINED_FOR
        if run.stage == FIRST:
            return self.put_back(run, score)
        run.stage = RELEASE
        state = plan.release(_stored_state(run)) if run.held else run.state.copy()
        if run.history.last_run_at is None and state.due is None:
            state.due = run.at.timestamp()
        mark, row = new_mark(), run.stored
        state.sign(mark)
        return Change(row.key, mark, digest_of(row), set={STATE: state.text()}, score=score)

    def put_back(
        self, run: Run, score: float | None = None, failing: Failing | None = None
    ) -> Change:
        """Return the change that takes back the record of a run that was not sent.

        The entry is due at ``score``, or when it was due before. ``failing`` is why.
        """
        run.stage = RELEASE
        assert run.verdict is not None
        assert run.verdict.known is not None
        state, mark, row = run.verdict.known.state.copy(), new_mark(), run.row
        if score is None:
            score = float(row.score or 0)
        elif run.history.last_run_at is None and state.due is None:
            state.due = run.at.timestamp()
        state.failing = state.failing if failing is None else failing
        state.sign(mark)
        fields, recorded = {STATE: state.text()}, run.recorded
        assert recorded is not None
        if row.meta is not None:
            fields[META] = row.meta
        if row.definition is not None and recorded.definition != row.definition:
            fields[DEFINITION] = row.definition
        unset, expect = ((META,) if row.meta is None else ()), digest_of(recorded)
        return Change(row.key, mark, expect, "", fields, unset, score=score, replaces=True)

    def not_running(self, run: Run) -> Change:
        """Return the change by which nothing waits for the end of a recorded run that was lost."""
        run.stage = RELEASE
        row, mark = run.recorded, new_mark()
        assert row is not None
        state = State.read(row.state, row.meta)
        state.running = None
        state.sign(mark)
        return Change(row.key, mark, digest_of(row), set={STATE: state.text()})

    def failure(self, run: Run, error: Exception, score: float) -> Change:
        """Return the change that notes a run that could not be sent, and is due at ``score``.

        Without a verdict, the schedule of the entry raised the error.
        """
        is_recorded = run.stage == FIRST and run.recorded is not None
        run.stage = REST
        row, stored, verdict = run.stored, _stored_state(run), run.verdict
        if verdict is not None:
            at = run.at.timestamp()
        else:
            at = stored.failing.due if stored.failing else float(row.score or run.now)
        reason, mark = reason_of(cause_of(error)), new_mark()
        failing = failed_again(stored.failing, run.now, reason, at)
        attempts = failing.attempts
        if verdict is not None:
            state = plan.put_back(verdict, stored, run.now, failing, unsure=run.left)
            state.sign(mark, hold=state.hold is not None)
        else:
            state = stored.copy()
            keep_due(row, state)
            state.failing = failing
            state.sign(mark)
        outcome = failed(error) + (f":{attempts}" if attempts > 1 else "")
        line = history_line(at, run.now, outcome)
        index = [["ZADD", FAILING, repr(at), row.key]]
        self._counters.failed(run.rule.name, False)
        emit(entry_failed, self._scheduler, name=encodable(run.rule.name), error=error, lost=False)
        if is_recorded:
            change = self.put_back(run, score, failing)
            change.line, change.lines, change.index = line, self._lines, index
            return change
        return Change(
            *(row.key, mark, digest_of(row), "", {STATE: state.text()}),
            score=score,
            line=line,
            lines=self._lines,
            replaces=attempts > 2,  # the first failure stays
            index=index,
        )

    def left_to_others(self, key: str, name: str, error: BaseException) -> None:
        """Log and count an entry that this beat cannot run. Nothing is stored."""
        logger.error(
            "beat: Entry %s cannot run here and is left to other beats; this beat tries again "
            "within %.0f s: %s",
            *(key, OTHERS_WAIT.longest, error),
        )
        self._counters.failed(name, False)
        emit(entry_failed, self._scheduler, name=encodable(name), error=error, lost=False)

    def suspect(self, row: Row, now: float) -> Change:
        """Return the change that delays an entry that ended a beat's process, and log it.

        Nothing of the entry is decoded. It is tried again later, because the process may have ended
        for another reason.
        """
        if row.problem:
            return self.quarantine(row, row.problem, now)
        state, mark = State.read(row.state, row.meta), new_mark()
        score = float(row.score or now)
        due = score if state.failing is None else state.failing.due
        state.failing = failed_again(state.failing, now, ENDED_A_BEAT, due)
        wait = SUSPECT_WAIT.after(state.failing.attempts)
        logger.error("beat: Entry %s is set aside for %.0f s: %s", row.key, wait, ENDED_A_BEAT)
        keep_due(row, state)
        state.sign(mark)
        index = [["ZADD", FAILING, repr(due), row.key]]
        expect, fields = digest_of(row), {STATE: state.text()}
        return Change(row.key, mark, expect, set=fields, score=now + wait, index=index)

    def quarantine(self, row: Row, reason: str, now: float, version: str | None = None) -> Change:
        """Return the change that sets aside an entry that nobody can read, and log it.

        It leaves the quarantine when its texts change, or the ``version`` of calendars if it names
        some.
        """
        name = layout_of(self._conf).name_of(row.key)
        logger.error("beat: Entry %s is quarantined: %s", row.key, reason)
        self._counters.add("quarantined", name)
        emit(entry_quarantined, self._scheduler, name=encodable(name), reason=reason)
        note = {"reason": reason, "since": now, "digest": seen_texts(row)}
        if '"exclude"' in f"{row.policy}{row.definition}":
            note["version"] = version or ""
        index = [["HSET", QUARANTINE, row.key, json.dumps(note)]]
        if row.problem:
            return Change(row.key, score=PARKED, index=index)
        state, mark = State.read(row.state, row.meta), new_mark()
        state.quarantine = Quarantine(now, reason)
        keep_due(row, state)
        state.sign(mark)
        expect = digest_of(row)
        return Change(row.key, mark, expect, set={STATE: state.text()}, score=PARKED, index=index)

    def record_over(self, run: Run, now: Run) -> Change:
        """Return the change that records a published run of an entry that was edited in between.

        ``now`` is the entry as it is now, with the hold of the run.
        """
        assert run.verdict is not None
        recorded = plan.record_held(
            *(now.rule, now.history, now.state, run.verdict, now.now),
            *(run.task_id, run.task_id == run.own_id, run.left),
        )
        change = self._change(run, recorded, mark_run=True)
        change.expect = digest_of(now.row)
        return change

    def _record(self, run: Run, state: State, expect: str) -> Change:
        assert run.verdict is not None
        own_id = run.task_id == run.own_id
        recorded = plan.record(run.verdict, state, run.now, run.task_id, own_id, run.left)
        if run.own is not None and run.own.meta is not None:
            recorded = recorded._replace(meta=run.own.meta)
            recorded.state.meta = digest_of_meta(run.own.meta)
        change = self._change(run, recorded, mark_run=True)
        change.expect = expect
        if run.stage == RECORD and run.held:  # the hold took it in
            change.take, change.results = "", []
        if run.own is not None and run.own.score is not None and not recorded.end:
            change.score = run.own.score
        others = {name: text for name, text in change.set.items() if name != STATE}
        # A run that leaves sets no WAITS.
        run.recorded = run.row._replace(state=change.set[STATE], **others)
        return change

    def _change(self, run: Run, recorded: Recorded, *, mark_run: bool) -> Change:
        """Return the change that stores what a verdict says, without what it expects."""
        assert run.verdict is not None
        key, mark = run.row.key, new_mark()
        recorded.state.sign(mark, run=mark_run)
        fields = {STATE: recorded.state.text()}
        if recorded.meta is not None:
            fields[META] = recorded.meta
        change = Change(key, mark, set=fields, score=recorded.score, take=run.verdict.take)
        change.line, change.lines, change.results = recorded.line, self._lines, _results(run)
        if run.verdict.rest.waits:
            fields[WAITS] = json.dumps(run.verdict.rest.waits)
        elif run.state.running is not None:
            change.unset = (WAITS,)
        if run.state.failing is not None and recorded.state.failing is None:
            change.index = [["ZREM", FAILING, key]]
        within = run.rule.policy.expect_within
        success = recorded.state.results.success
        if within is not None and success is not None and success != run.state.results.success:
            change.index.append(["ZADD", EXPECTED, f"{success + within:.6f}", key])
        if recorded.end:
            _end(run, change, recorded.end)
        return change

    # -- answers -------------------------------------------------------------------------------

    def after(self, run: Run, answer: Answer, repeated: bool) -> str:
        """Return what the beat does after the answer to the change of a run."""
        return TABLE[run.stage, answer.word](self, run, answer, repeated)

    def announce(self, run: Run, *_: Any) -> str:
        """Count a run whose message is out, and tell its receivers."""
        verdict = run.verdict
        assert verdict is not None
        assert verdict.send is not None
        if run.left:
            score = float(run.row.score or 0)  # below 1 means now
            late = run.now - score if score >= 1 else 0.0
            self._counters.dispatched(run.rule.name, None if verdict.send.id else late)
            self._emit(
                entry_dispatched,
                run,
                scheduled_at=run.at,
                task_id=run.task_id,
                triggered=bool(verdict.send.id),
            )
            failing = run.state.failing
            if failing is not None:
                logger.warning(
                    "beat: Entry %s can be sent again, after %s since %s",
                    run.row.key,
                    plural(failing.attempts, "failed attempt"),
                    from_timestamp(failing.since).isoformat(" ", "seconds"),
                )
        self.announce_rest(run)
        return NOTHING

    def announce_rest(self, run: Run, *_: Any) -> str:
        """Log what a verdict says, count what was missed, and tell that an entry has finished."""
        assert run.verdict is not None
        rest = run.verdict.rest
        if rest.notes or rest.missed or rest.outcome or rest.end:
            self._announce_rest(run, rest)
        return NOTHING

    def _announce_rest(self, run: Run, rest: Rest) -> None:
        name = run.rule.name
        for level, message, args in rest.notes:
            logger.log(level, message, *args)
        if rest.outcome in ("sent", "triggered"):  # an end proved that a held run had left
            self._counters.dispatched(name, None)
        if rest.outcome == "skipped":
            self._counters.add("skipped", name)
        if rest.missed:
            self._counters.add("missed", name, rest.missed)
            self._emit(entry_missed, run, count=rest.missed, scheduled_at=rest.at)
        if rest.end and rest.end != plan.PAUSE:
            logger.info(
                "beat: Entry %s has finished, because it has no runs left (on_finish: %s)",
                *(name, run.rule.policy.on_finish),
            )
            self._emit(entry_finished, run)

    def _emit(self, signal: Any, run: Run, **facts: Any) -> None:
        """Send a signal about a run. An entry class that raises must not stop what comes after."""
        if not signal.receivers:
            return
        try:
            entry = self._entry_of(run)
        except Exception:
            logger.exception("beat: Could not make the entry %s for a signal", run.rule.name)
            return
        emit(signal, self._scheduler, entry=entry, **facts)

    def publish(self, _run: Run, *_: Any) -> str:
        """The run is held or recorded: its message may leave now."""
        return PUBLISH

    def nothing(self, _run: Run, *_: Any) -> str:
        return NOTHING

    def again(self, run: Run, *_: Any) -> str:
        """The entry was changed after the look, or the decision is old: decide again."""
        run.tries += 1
        return AGAIN

    def first_again(self, run: Run, _answer: Answer, repeated: bool) -> str:
        """A first try of a record decides again; a repeated one may have been overtaken."""
        return self.lost(run, OVERTAKEN) if repeated else self.again(run)

    def lost(self, run: Run, why: str, error: Exception | None = None) -> str:
        """Log a run that was recorded, perhaps, and is not published again."""
        name = run.rule.name
        logger.error("beat: The run of %s at %s is lost: %s", name, run.at, why)
        self._counters.failed(name, True)
        emit(entry_failed, self._scheduler, name=encodable(name), error=error, lost=True)
        return NOTHING

    def gone(self, run: Run, _answer: Answer, repeated: bool) -> str:
        """The entry was deleted; a change that deletes it and is repeated has done so itself."""
        assert run.verdict is not None
        if repeated and run.verdict.rest.end == DELETE:
            return self.announce(run)
        logger.info("beat: Entry %s was deleted or replaced during its run", run.row.key)
        return NOTHING

    def first_gone(self, run: Run, answer: Answer, repeated: bool) -> str:
        """The entry was deleted; the record of the last run may have done so itself."""
        assert run.verdict is not None
        if repeated and run.verdict.rest.end == DELETE:
            return PUBLISH
        return self.gone(run, answer, repeated)

    def overtaken(self, run: Run, answer: Answer, _repeated: bool) -> str:
        """The message is out and the entry was changed: record with its new texts, if still held.

        The hold is known by its mark, not by its task id, which a takeover shares. A message that
        left although it was not held is recorded in any case.
        """
        row = answer.row
        if row is not None and (not run.held or _hold_in(row) == _hold_in(run.stored)):
            return RECORD_OVER
        logger.info("beat: Entry %s was deleted or replaced during its run", run.row.key)
        return self.announce(run)

    def failed(self, run: Run, answer: Answer, _repeated: bool) -> str:
        """Redis refused the change: a failure of this entry, or of this order."""
        run.error = run.error or RefusedError(answer.why)
        run.left, run.held, run.recorded = False, "", None
        return FAILED

    def elsewhere(self, run: Run, *_: Any) -> str:
        """The broker is on another server than the schedule: take the other order."""
        run.tries += 1
        return OTHER_ORDER

    def log_refused(self, run: Run, answer: Answer, _repeated: bool) -> str:
        """Redis refused the record of a message that is out."""
        logger.error("beat: Could not record the run of %s: %s", run.rule.name, answer.why)
        return NOTHING


class RefusedError(Exception):
    """Raised for a change that Redis refused before its first write, with the reason."""


def seen_texts(row: Row) -> str:
    """Return the digest of what makes an entry readable: its texts without its state."""
    return row.problem or digest_of(row._replace(state=None))


def _results(run: Run) -> list[tuple[str, str]]:
    """Return the lines of the ends that the verdict took in (``Change.results``)."""
    assert run.verdict is not None
    return [(result_start(end.id), result_line(end)) for end in run.verdict.ends]


def _covers(run: Run) -> str:
    covers = "" if run.history.last_run_at is not None else SCORE
    return covers + CALENDARS if run.rule.policy.exclude else covers


def _expected(run: Run, version: str | None) -> str:
    return digest_of(run.row, _covers(run), version)


def _stored_state(run: Run) -> State:
    """Return the state that the change before has left; the one that was looked at if none has."""
    if run.held_state is not None:
        return run.held_state
    return State.read(run.held, run.row.meta) if run.held else run.state


def _hold_in(row: Row) -> str:
    """Return the mark of the hold in a row."""
    return State.read(row.state, row.meta).marks.hold


def _end(run: Run, change: Change, end: str) -> None:
    """Let the change of the last run delete or disable the entry; its score is the verdict's."""
    if end == DELETE:
        change.delete = True
    elif end in (DISABLE, plan.PAUSE):
        definition = {**object_in(run.rule.definition, DEFINITION), "enabled": False}
        change.set[DEFINITION] = json.dumps(definition)


#: Answers by what the change does: what the run does next. Each cell has a test.
TABLE: Final[dict[tuple[str, str], Callable[[Outcome, Run, Answer, bool], str]]] = {
    (INSIDE, DONE): Outcome.announce,
    (INSIDE, DIFFERS): Outcome.again,
    (INSIDE, ABSENT): Outcome.gone,
    (INSIDE, STALE): Outcome.again,
    (INSIDE, ELSEWHERE): Outcome.elsewhere,
    (INSIDE, REFUSED): Outcome.failed,
    (HOLD, DONE): Outcome.publish,
    (HOLD, DIFFERS): Outcome.again,
    (HOLD, ABSENT): Outcome.gone,
    (HOLD, STALE): Outcome.again,
    (HOLD, REFUSED): Outcome.failed,
    (RECORD, DONE): Outcome.announce,
    (RECORD, DIFFERS): Outcome.overtaken,
    (RECORD, ABSENT): Outcome.overtaken,
    (RECORD, REFUSED): Outcome.log_refused,
    (FIRST, DONE): Outcome.publish,
    (FIRST, DIFFERS): Outcome.first_again,
    (FIRST, ABSENT): Outcome.first_gone,
    (FIRST, STALE): Outcome.first_again,
    (FIRST, REFUSED): Outcome.failed,
    (REST, DONE): Outcome.announce_rest,
    (REST, DIFFERS): Outcome.again,
    (REST, ABSENT): Outcome.gone,
    (REST, STALE): Outcome.again,
    (REST, REFUSED): Outcome.log_refused,
    (RELEASE, DONE): Outcome.nothing,
    (RELEASE, DIFFERS): Outcome.nothing,
    (RELEASE, ABSENT): Outcome.nothing,
    (RELEASE, STALE): Outcome.nothing,
    (RELEASE, REFUSED): Outcome.log_refused,
}
