"""What becomes of a run: the change that stores a verdict, and what Redis's answer means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

from redbeat import signals
from redbeat.beat.trouble import ENDED_A_BEAT, OTHERS_WAIT, SUSPECT_WAIT
from redbeat.calendar.zones import from_timestamp
from redbeat.codec.stored import object_in, seconds_in
from redbeat.config import RedBeatConfig
from redbeat.entries import changes, verdicts
from redbeat.entries import state as states
from redbeat.entries.decide import PARKED
from redbeat.entries.history import run_line
from redbeat.entries.run import FIRST, HOLD, INSIDE, RECORD, RELEASE, REST, UNJUDGED, Run
from redbeat.entries.state import State
from redbeat.errors import cause_of, reason_of
from redbeat.metrics.counters import Counters
from redbeat.printing import encodable, get_logger, plural
from redbeat.storage import words
from redbeat.storage.keys import layout_of
from redbeat.storage.rows import Answer, Change, Row, digest_of, new_mark

logger = get_logger("celery.beat")

#: Seconds for which a decision holds after the look.
VALID: Final = 5.0

#: Seconds for which nobody else takes over a held run, and within which its owner must start to
#: publish it, both counted from before the request that held it.
HELD, MAY_PUBLISH = 30.0, 20.0

#: Seconds until the next look after user code declined a run without saying until when.
DECLINED_FOR: Final = 5.0

#: Why a run is lost whose record may be another beat's.
OVERTAKEN: Final = "Redis refused its record or confirmed it too late"

#: What the beat does after an answer.
NOTHING, AGAIN, PUBLISH, OTHER_ORDER, FAILED = "", "again", "publish", "other order", "failed"
RECORD_OVER = "record over"


@dataclass
class Outcome:
    """Makes the changes of runs, reads the answers to them, and counts, logs and signals runs.

    ``scheduler`` sends the signals, and ``entry_of`` makes the entry objects for their receivers.
    ``version`` is that of the calendars by which runs are decided.
    """

    scheduler: Any
    conf: RedBeatConfig
    counters: Counters
    entry_of: Callable[[Run], Any]
    version: str | None = ""

    # -- changes -------------------------------------------------------------------------------

    def inside(self, run: Run) -> Change:
        """The change that publishes and records a run in one step."""
        run.stage = INSIDE
        change = self._guarded(self._record(run, run.state), run)
        change.push = run.push
        return change

    def first(self, run: Run) -> Change:
        """The change that records a run before its message is published."""
        run.stage, run.left = FIRST, True
        change = self._guarded(self._record(run, run.state), run)
        run.stored = changes.after(run.row, change)
        return change

    def hold(self, run: Run) -> Change:
        """The change that holds a decided run before its message is published."""
        run.stage = HOLD
        until, mark = run.now + HELD, new_mark()
        state = verdicts.hold(run.verdict, run.state, run.row.meta, until, run.task_id)
        state.sign(mark, hold=True)
        text = state.text()
        run.stored, run.held_state = run.row._replace(state=text), state
        change = Change(run.row.key, mark, set={words.STATE: text}, score=until)
        change.take, change.lines = run.verdict.take, self.conf.history_size
        if run.verdict.ends:
            self._keep_ends(change, run, state)
        return self._guarded(change, run)

    def record(self, run: Run) -> Change:
        """The change that records a run whose message is out."""
        run.stage = RECORD
        change = self._record(run, run.held_state or run.state)
        change.expect = digest_of(run.stored or run.row)
        if run.stored is not None:  # the hold has already taken it in
            change.take, change.results = "", []
        return change

    def rest(self, run: Run) -> Change:
        """The change that stores a verdict by which nothing leaves."""
        run.stage = REST
        rest = run.verdict.rest
        if (
            rest.state is run.state
            and run.row.state is not None
            and not (run.verdict.take or rest.end or rest.meta or rest.outcome or rest.waits)
        ):
            # Only the score changes. A mark would trip the owner of a live hold, who may have
            # recorded its run since. An entry without a state gets one all the same: it says that
            # this score is ours.
            return Change(run.row.key, expect=digest_of(run.row), score=rest.score)
        return self._guarded(self._change(run, rest, mark_run=False), run)

    def put_back(self, run: Run, score: float, failing: states.Failing | None = None) -> Change:
        """The change that puts a decided run back, due at ``score``, as if never tried.

        It undoes the run's hold or record. A run that may have left stays decided: the next look
        sends it again with the same id. ``failing`` is why it wasn't sent.
        """
        is_recorded, run.stage = run.stage == FIRST, RELEASE
        stored, row = run.held_state or run.state, run.row
        failing = failing or run.verdict.known.state.failing
        state = verdicts.put_back(run.verdict, stored, run.now, failing, unsure=run.left)
        is_held = state.hold is not None
        change = changes.change_of(run.stored or row, state, hold=is_held, score=score)
        if is_recorded and run.stored is not None:
            change.replaces = True
            if row.meta is None:
                change.unset = (words.META,)
            else:
                change.set[words.META] = row.meta
            if row.definition is not None and run.stored.definition != row.definition:
                change.set[words.DEFINITION] = row.definition
        return change

    def decline(self, run: Run) -> Change:
        """The change that leaves an occurrence that user code doesn't send now."""
        assert run.own is not None
        score = run.own.score
        return self.put_back(run, run.now + DECLINED_FOR if score is None else score)

    def failed_for_good(self, run: Run, error: Exception) -> Change:
        """The change that shows a lost run as failed in the history, though it was recorded.

        Nothing waits for its end.
        """
        run.stage = RELEASE
        assert run.stored is not None
        state = State.read(run.stored.state, run.stored.meta)
        state.running = None
        change = changes.change_of(run.stored, state)
        line = run_line(run.at.timestamp(), run.now, _failed(error), run.task_id)
        change.line, change.lines = quoted(line), self.conf.history_size
        change.replaces = True
        return change

    def failure(self, run: Run, error: Exception, score: float) -> Change:
        """The change that notes a run that couldn't be sent, and is due at ``score``.

        Without a verdict, it was the entry's schedule that raised the error.
        """
        row, before = run.row, (run.held_state or run.state).failing
        if run.verdict is not UNJUDGED:
            at = run.at.timestamp()
            failing = states.failed_again(before, run.now, reason_of(cause_of(error)), at)
            change = self.put_back(run, score, failing)
        else:
            at = before.due if before else _due(row, run.now)
            failing = states.failed_again(before, run.now, reason_of(cause_of(error)), at)
            run.stage, state = RELEASE, run.state.copy()
            changes.keep_due(row, state)
            state.failing = failing
            change = changes.change_of(row, state, score=score)
        outcome = _failed(error)
        if failing.attempts > 1:
            outcome += f":{failing.attempts}"
            change.replaces = change.replaces or failing.attempts > 2  # keep the first failure
        change.line, change.lines = quoted(run_line(at, run.now, outcome)), self.conf.history_size
        change.index = [["ZADD", words.FAILING, repr(at), row.key]]
        self._count_failure(run.rule.name, error)
        return change

    def left_to_others(self, key: str, error: BaseException) -> None:
        """Log and count an entry that this beat can't run. Nothing is stored."""
        logger.error(
            "beat: Entry %s cannot run here and is left to other beats; this beat tries again "
            "within %.0f s: %s",
            *(key, OTHERS_WAIT.longest, error),
        )
        self._count_failure(layout_of(self.conf).name_of(key), error)

    def _count_failure(self, name: str, error: BaseException | None, lost: bool = False) -> None:
        self.counters.failed(name, lost)
        facts = {"name": encodable(name), "error": error, "lost": lost}
        signals.emit(signals.entry_failed, self.scheduler, **facts)

    def suspect(self, row: Row, now: float) -> Change:
        """The change that delays an entry that ended a beat's process, and log it.

        Nothing of the entry is decoded. It is tried again later: the process may have ended for
        another reason.
        """
        if row.problem:
            return self.quarantine(row, row.problem, now)
        state = State.read(row.state, row.meta)
        due = _due(row, now) if state.failing is None else state.failing.due
        state.failing = states.failed_again(state.failing, now, ENDED_A_BEAT, due)
        wait = SUSPECT_WAIT.after(state.failing.attempts)
        logger.error("beat: Entry %s is set aside for %.0f s: %s", row.key, wait, ENDED_A_BEAT)
        changes.keep_due(row, state)
        index = [["ZADD", words.FAILING, repr(due), row.key]]
        return changes.change_of(row, state, score=now + wait, index=index)

    def quarantine(self, row: Row, reason: str, now: float) -> Change:
        """The change that sets aside an entry that nobody can read, and log it.

        The entry is read again once its text changes, or the calendars, if it names some. The inbox
        is taken in: what stays in it would make the entry due now.
        """
        name = layout_of(self.conf).name_of(row.key)
        logger.error("beat: Entry %s is quarantined: %s", row.key, reason)
        self.counters.add("quarantined", name)
        facts = {"name": encodable(name), "reason": reason}
        signals.emit(signals.entry_quarantined, self.scheduler, **facts)
        note = {"reason": reason, "since": now, "digest": seen_texts(row)}
        if '"exclude"' in f"{row.policy}{row.definition}":
            note["version"] = self.version or ""
        index = [["HSET", words.QUARANTINE, row.key, json.dumps(note)]]
        if row.problem:
            return Change(row.key, expect=digest_of(row), score=PARKED, index=index)
        inbox = states.read_inbox(row.inbox)
        state = verdicts.with_inbox(State.read(row.state, row.meta), inbox, now)
        state.quarantine = states.Quarantine(now, reason)
        changes.keep_due(row, state)
        change = changes.change_of(row, state, score=PARKED, index=index)
        change.take = inbox[-1].line if inbox else ""
        change.results = _result_lines(verdicts.ends_in(inbox, now))
        return change

    def record_over(self, run: Run, now: Run) -> Change:
        """The change that records a published run whose entry was edited in between.

        ``now`` is the edited entry, with the run's hold.
        """
        message = (run.task_id, run.task_id == run.own_id, run.left)
        recorded = verdicts.record_held(run.verdict, now, *message)
        change = self._change(run, recorded, mark_run=True)
        change.expect = digest_of(now.row)
        return change

    def _record(self, run: Run, state: State) -> Change:
        own, own_id = run.own, run.task_id == run.own_id
        recorded = verdicts.record(run.verdict, state, run.now, run.task_id, own_id, run.left)
        if own is not None and own.meta is not None:
            recorded = recorded._replace(meta=own.meta)
            recorded.state.meta = states.digest_of_meta(own.meta)
        change = self._change(run, recorded, mark_run=True)
        if own is not None and own.score is not None and not recorded.end:
            change.score = own.score
        return change

    def _change(self, run: Run, recorded: verdicts.Rest, *, mark_run: bool) -> Change:
        """The change that stores what a verdict says, without what it expects."""
        key, mark, rest = run.row.key, new_mark(), run.verdict.rest
        recorded.state.sign(mark, run=mark_run)
        fields = {words.STATE: recorded.state.text()}
        if recorded.meta is not None:
            fields[words.META] = recorded.meta
        change = Change(key, mark, set=fields, score=recorded.score, take=run.verdict.take)
        change.line, change.lines = recorded.line, self.conf.history_size
        if run.verdict.ends:
            self._keep_ends(change, run, recorded.state)
        if rest.waits:
            fields[words.WAITS] = json.dumps(rest.waits)
        elif run.state.running is not None:
            change.unset = (words.WAITS,)
        if run.state.failing is not None and recorded.state.failing is None:
            change.index.append(["ZREM", words.FAILING, key])
        if recorded.end == verdicts.DELETE:
            change.delete = True
        elif recorded.end in (verdicts.DISABLE, verdicts.PAUSE):
            definition = object_in(run.rule.definition, words.DEFINITION)
            fields[words.DEFINITION] = json.dumps({**definition, "enabled": False})
        return change

    def _keep_ends(self, change: Change, run: Run, state: State) -> None:
        """Let a change store the ends of runs that its verdict took in.

        Side keys list the entries that expect a success, and those whose last runs failed or that
        are paused for it.
        """
        change.results = _result_lines(run.verdict.ends)
        policy, success, failures = run.rule.policy, state.results.success, state.results.failures
        if success is not None and policy.expect_within is not None:
            until = f"{success + policy.expect_within:.6f}"
            change.index.append(["ZADD", words.EXPECTED, until, change.key])
        if policy.pause_after_failures and failures >= policy.pause_after_failures:
            failures = words.PAUSED_FOR_FAILURES
        failed = ["ZADD", words.FAILED, str(failures)] if failures else ["ZREM", words.FAILED]
        change.index.append([*failed, change.key])

    def _guarded(self, change: Change, run: Run) -> Change:
        """Let a change apply only if all is as it was at the look, and neither early nor too late.

        Early, because Redis's clock may go back after the look.
        """
        covers = "" if run.history.last_run_at is not None else words.SCORE
        if run.rule.policy.exclude:
            covers += words.CALENDARS
        change.expect, change.covers = digest_of(run.row, covers, self.version), covers
        change.not_before, change.not_after = run.now, run.now + VALID
        return change

    # -- answers -------------------------------------------------------------------------------

    def after(self, run: Run, answer: Answer, repeated: bool) -> str:
        then = TABLE[run.stage, answer.word]
        return then if isinstance(then, str) else then(self, run, answer, repeated)

    def announce(self, run: Run, *_: Any) -> str:
        send, failing = run.verdict.send, run.state.failing
        assert send is not None  # the property costs a call
        if run.left:
            score = float(run.row.score or 0)  # below 1 means now
            late = run.now - score if score >= 1 else 0.0
            self.counters.dispatched(run.rule.name, None if send.id else late)
            if signals.entry_dispatched.receivers:
                facts = {"task_id": run.task_id, "triggered": bool(send.id)}
                self._emit(signals.entry_dispatched, run, scheduled_at=send.at, **facts)
            if failing is not None:
                logger.warning(
                    "beat: Entry %s can be sent again, after %s since %s",
                    run.row.key,
                    plural(failing.attempts, "failed attempt"),
                    from_timestamp(failing.since).isoformat(" ", "seconds"),
                )
        verdict = run.verdict
        rest = verdict.rest
        if rest.missed or rest.outcome or rest.end or verdict.known.notes or verdict.ends:
            self.announce_rest(run)
        return NOTHING

    def announce_rest(self, run: Run, *_: Any) -> str:
        rest, name = run.verdict.rest, run.rule.name
        self.counters.ended({end.id: end.state for end in run.verdict.ends})
        for level, message, args in run.verdict.known.notes:
            logger.log(level, message, *args)
        if rest.outcome in ("sent", "triggered"):  # a run's end proved that the held run had left
            self.counters.dispatched(name, None)
        if rest.outcome == "skipped":
            self.counters.add("skipped", name)
        if rest.missed:
            self.counters.add("missed", name, rest.missed)
            self._emit(signals.entry_missed, run, count=rest.missed, scheduled_at=rest.at)
        if rest.end and rest.end != verdicts.PAUSE:
            logger.info(
                "beat: Entry %s has finished, because it has no runs left (on_finish: %s)",
                *(name, run.rule.policy.on_finish),
            )
            self._emit(signals.entry_finished, run)
        return NOTHING

    def _emit(self, signal: Any, run: Run, **facts: Any) -> None:
        """Send a signal about a run. An entry class that raises must not stop what follows."""
        if not signal.receivers:
            return
        try:
            entry = self.entry_of(run)
        except Exception:
            logger.exception("beat: Could not make the entry %s for a signal", run.rule.name)
            return
        signals.emit(signal, self.scheduler, entry=entry, **facts)

    def first_again(self, run: Run, _answer: Answer, repeated: bool) -> str:
        """The first try of a record decides again; a repeated one may have been overtaken."""
        return self.lost(run, OVERTAKEN) if repeated else AGAIN

    def lost(self, run: Run, why: str, error: Exception | None = None) -> str:
        """Log a run that may have been recorded, and isn't published again."""
        logger.error("beat: The run of %s at %s is lost: %s", run.rule.name, run.at, why)
        self._count_failure(run.rule.name, error, lost=True)
        return NOTHING

    def gone(self, run: Run, _answer: Answer, repeated: bool) -> str:
        """The entry was deleted, perhaps by this very change, if it deletes and was repeated."""
        if repeated and run.verdict.rest.end == verdicts.DELETE:
            return PUBLISH if run.stage == FIRST else self.announce(run)
        logger.info("beat: Entry %s was deleted or replaced during its run", run.row.key)
        return NOTHING

    def overtaken(self, run: Run, answer: Answer, _repeated: bool) -> str:
        """The message is out and the entry was edited: record with its new text, if still held.

        The hold is recognised by its mark, not by its task id, which a takeover shares. A message
        that left without a hold is recorded in any case.
        """
        row, held = answer.row, run.held_state
        if row is not None:
            now = State.read(row.state, row.meta)
            if held is None or now.marks.hold == held.marks.hold:
                return RECORD_OVER
        logger.info("beat: Entry %s was deleted or replaced during its run", run.row.key)
        return self.announce(run)

    def failed(self, run: Run, answer: Answer, _repeated: bool) -> str:
        """Redis refused the change: this entry fails, or this order of sending does."""
        run.error = run.error or RefusedError(answer.why)
        run.left, run.stored, run.held_state = False, None, None
        return FAILED

    def log_refused(self, run: Run, answer: Answer, _repeated: bool) -> str:
        logger.error("beat: Could not record the run of %s: %s", run.rule.name, answer.why)
        return NOTHING


class RefusedError(Exception):
    """Redis refused a change before its first write; the text says why."""


def seen_texts(row: Row) -> str:
    """The digest of an entry's text without its state: what makes it readable or not."""
    return row.problem or digest_of(row._replace(state=None))


def _failed(error: Exception) -> str:
    return f"failed:{type(cause_of(error)).__name__}"


def _due(row: Row, now: float) -> float:
    """When an entry was due; ``now`` if its score is no valid time."""
    due = seconds_in(row.score)
    return now if due is None else due


def _result_lines(ends: Iterable[states.Ended]) -> list[tuple[str, str]]:
    return [(states.result_start(end.id), states.result_line(end)) for end in ends if end.state]


#: What the run does next, or the method that decides. Each cell has a test.
Next = str | Callable[[Outcome, Run, Answer, bool], str]

#: The table's columns: the answers. Its rows: what the change does. Only a record can't be stale,
#: and only a message inside can be elsewhere than the broker.
COLUMNS: Final = (words.DONE, words.DIFFERS, words.ABSENT, words.REFUSED)
ROWS: Final[dict[str, tuple[Next, ...]]] = {
    INSIDE: (Outcome.announce, AGAIN, Outcome.gone, Outcome.failed),
    HOLD: (PUBLISH, AGAIN, Outcome.gone, Outcome.failed),
    RECORD: (Outcome.announce, Outcome.overtaken, Outcome.overtaken, Outcome.log_refused),
    FIRST: (PUBLISH, Outcome.first_again, Outcome.gone, Outcome.failed),
    REST: (Outcome.announce_rest, AGAIN, Outcome.gone, Outcome.log_refused),
    RELEASE: (NOTHING, NOTHING, NOTHING, Outcome.log_refused),
}
TABLE: Final[dict[tuple[str, str], Next]] = {
    (stage, word): then
    for stage, row in ROWS.items()
    for word, then in zip(COLUMNS, row, strict=True)
}
# A decision that came too late is made again, as if the entry had changed.
TABLE.update({(stage, words.STALE): row[1] for stage, row in ROWS.items() if stage != RECORD})
TABLE[INSIDE, words.ELSEWHERE] = OTHER_ORDER
