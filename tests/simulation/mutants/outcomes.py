"""Mutants of sending, recording, and what follows an answer."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "calendar-not-checked",
        ("A run is sent although a calendar that excludes it was saved before its record."),
        "beat/outcome.py",
        "if run.rule.policy.exclude:\n            covers += words.CALENDARS",
        'if run.rule.policy.exclude:\n            covers += ""',
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
            "tests/scheduler/test_calendars.py",
        ),
    ),
    Mutant(
        "score-not-covered",
        "A first run is sent although its score was moved since the look.",
        "beat/outcome.py",
        'covers = "" if run.history.last_run_at is not None else words.SCORE',
        'covers = ""',
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
        ),
    ),
    Mutant(
        "stale-decision",
        "A run is sent although it became too late while Redis was slow.",
        "beat/outcome.py",
        "change.not_after = run.now + VALID",
        "pass",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
            "tests/scheduler/test_holds.py",
        ),
    ),
    Mutant(
        "sent-after-the-claim",
        "A held run is sent although its hold may have been taken over.",
        "beat/beat.py",
        "if run.hold_ends and self._clock() >= run.hold_ends:",
        "if False:",
        ("tests/scheduler/test_publish_window.py", "tests/scheduler/test_holds.py"),
    ),
    Mutant(
        "deadline-from-reply",
        "The deadline of a hold counts from a late reply and not from the request.",
        "beat/beat.py",
        "run.hold_ends = sent_at + outcome.MAY_PUBLISH",
        "run.hold_ends = self._clock() + outcome.MAY_PUBLISH",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_holds.py",
        ),
    ),
    Mutant(
        "give-back-forgotten",
        "Held runs that a beat cannot send in time are not given back.",
        "beat/beat.py",
        "self._give_back(run)\n                stalled = True",
        "stalled = True",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_holds.py",
        ),
    ),
    Mutant(
        "give-back-as-done",
        "A run that was recorded first and not tried is not put back: it is lost.",
        "beat/beat.py",
        "change = self._outcome.put_back(run, float(run.row.score or run.now))\n"
        "        self._turn.add(change, run)",
        "return run.row\n        self._turn.add(change, run)",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_delivery.py",
            "tests/scheduler/test_outage.py",
        ),
    ),
    Mutant(
        "broker-failure-as-unsent",
        "A message that the broker may have accepted is put back as unsent.",
        "beat/outcome.py",
        "run.now, failing, unsure=run.left)",
        "run.now, failing, unsure=False)",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
            "tests/scheduler/test_outage.py",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "broker-failure-as-done",
        "A run that could not be sent during a broker outage is not put back.",
        "beat/beat.py",
        "if is_waiting:\n                self._give_back(run)",
        "if is_waiting:\n                pass",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_delivery.py",
            "tests/scheduler/test_outage.py",
        ),
    ),
    Mutant(
        "attempts-without-wait",
        "An entry that cannot be sent is retried without a wait, forever.",
        "beat/beat.py",
        "return self._outcome.failure(run, error, now + wait)",
        "return self._outcome.failure(run, error, now)",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "conflict-keeps-claim",
        "A published run of an entry that was edited is not recorded.",
        "beat/outcome.py",
        "return RECORD_OVER\n",
        "return self.announce(run)\n",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
        ),
    ),
    Mutant(
        "recorded-of-anothers-hold",
        "A run whose hold another beat has taken over is recorded a second time.",
        "beat/outcome.py",
        "if held is None or now.marks.hold == held.marks.hold:",
        "if True:",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
        ),
    ),
    Mutant(
        "promise-overtaken",
        (
            "An at-most-once run is sent although another run came between its record "
            "and its message."
        ),
        "beat/outcome.py",
        "return self.lost(run, OVERTAKEN) if repeated else AGAIN",
        "return AGAIN",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
            "tests/scheduler/test_delivery.py",
        ),
    ),
    Mutant(
        "finish-keeps-entry",
        'A finished entry with ``on_finish="delete"`` is kept.',
        "beat/outcome.py",
        "change.delete = True",
        "pass",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
        ),
    ),
    Mutant(
        "disable-without-definition",
        "A finished entry is disabled in the schedule, and not in its definition.",
        "beat/outcome.py",
        'fields[words.DEFINITION] = json.dumps({**definition, "enabled": False})',
        "pass",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
            "tests/scheduler/test_policy.py",
        ),
    ),
    Mutant(
        "failing-kept-in-index",
        "An entry counts as failing after a run was sent.",
        "beat/outcome.py",
        'change.index.append(["ZREM", words.FAILING, key])',
        "pass",
        (
            "tests/beat/test_outcome.py",
            "tests/beat/test_beat.py",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "failure-as-sent",
        "A run whose publish raised is recorded as sent.",
        "beat/beat.py",
        "if run.error is not None:\n                self._failed(run, run.error)",
        "if False:\n                self._failed(run, run.error)",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "at-most-once-retried",
        "An at-most-once run whose publish failed is retried.",
        "beat/beat.py",
        "elif run.stage == FIRST and run.left:",
        "elif False:",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_delivery.py",
        ),
    ),
    Mutant(
        "at-most-once-ignored",
        "An at-most-once run is sent before it is recorded.",
        "beat/beat.py",
        "if delivery == AT_MOST_ONCE:",
        "if False:",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_delivery.py",
        ),
    ),
    Mutant(
        "record-before-publish",
        ("A run is recorded when its message is written, before the broker confirmed it."),
        "beat/send.py",
        "results = iter(self._pipe.results() if self._pipe is not None else ())",
        "results = iter(())",
        ("tests/beat/test_send.py",),
    ),
    Mutant(
        "refused-group-lost",
        ("All runs of an at-most-once group are lost when the broker refuses the first."),
        "beat/beat.py",
        ("while self._ready and not self._stop.pending and not self._broker.failed:"),
        "while self._ready and not self._stop.pending:",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_delivery.py",
            "tests/scheduler/test_outage.py",
        ),
    ),
    Mutant(
        "connection-ends-outage",
        "An open connection ends an outage, although the broker refuses messages.",
        "beat/beat.py",
        "if run.stage == INSIDE and answer.word == DONE:",
        "if answer.word:",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_delivery.py",
            "tests/scheduler/test_outage.py",
        ),
    ),
    Mutant(
        "id-from-present",
        "The task id comes from the present and not from the nominal instant.",
        "beat/message.py",
        "return task_id_of(prefix, rule.name, iso, identity)",
        ("import time\n\n    return task_id_of(prefix, rule.name, str(time.time()), identity)"),
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_messages.py",
        ),
    ),
    Mutant(
        "trigger-id-from-schedule",
        "A triggered run has the id of the scheduled run.",
        "beat/message.py",
        'if send.kind == "triggered":\n        return task_id_of',
        "if False:\n        return task_id_of",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_messages.py",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "held-id-changes",
        "A held run that is sent again has another id.",
        "beat/message.py",
        "if send.held is not None:\n        return send.held.id",
        "if False:\n        return send.held.id",
        (
            "tests/beat/test_outcome.py",
            "tests/scheduler/test_holds.py",
        ),
    ),
    Mutant(
        "coalesced-not-told",
        "A message does not contain how many missed runs it stands for.",
        "beat/message.py",
        'elif send.missed:\n        headers["coalesced"] = send.missed',
        'elif False:\n        headers["coalesced"] = send.missed',
        (
            "tests/scheduler/test_missed_runs.py",
            "tests/scheduler/test_messages.py",
        ),
    ),
    Mutant(
        "two-servers-taken-for-one",
        ("Messages are sent to the server of the schedule although the broker is another one."),
        "beat/one_step.py",
        "if broker != _run_id(",
        "if False and broker != _run_id(",
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "message-to-the-wrong-database",
        "A message goes to the database of the schedule, not to that of the broker.",
        "beat/one_step.py",
        "return broker, _database(pool), _database(own_pool)",
        "return broker, _database(own_pool), _database(own_pool)",
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "moved-broker-not-noticed",
        "Exactly-once delivery goes on after the broker moved to another server.",
        "beat/one_step.py",
        "return not is_idle(self._watched)",
        "return False",
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "last-queue-only",
        "Of a message to several queues, only the copy for the last queue is sent.",
        "beat/redis_pipe.py",
        'self.commands.append(["LPUSH", f"{self._prefix}{key}", *messages])',
        'self.commands[:] = [["LPUSH", f"{self._prefix}{key}", *messages]]',
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "unknown-commands-captured",
        ("Commands that a script does not send, such as those of a priority queue, are captured."),
        "beat/redis_pipe.py",
        "if not names <= CAPTURED:",
        "if False:",
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "exactly-once-given-up",
        "Runs are sent at least once although the settings demand exactly once.",
        "beat/one_step.py",
        "if self._demanded and self._server is None:\n            raise",
        "if False:\n            raise",
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "one-step-given-up",
        ("Messages are not sent together with their records although one server has both."),
        "beat/one_step.py",
        "if self._allowed:\n                self._server = self._check(producer)",
        "pass",
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "sent-elsewhere-as-captured",
        ("A message that left on another way than the captured channel is sent once more."),
        "beat/one_step.py",
        "if capture.executed or (run.left and not run.push):",
        "if False:",
        (
            "tests/beat/test_one_step.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "edited-run-sent-anyway",
        "A run that was refused because its entry had changed is not decided again.",
        "beat/beat.py",
        "if after == outcome.AGAIN:\n            self._decide_again(run, row)",
        "if False:\n            self._decide_again(run, row)",
        (
            "tests/beat/test_beat.py",
            "tests/scheduler/test_exactly_once.py",
        ),
    ),
    Mutant(
        "time-of-host",
        "A beat decides by the clock of its host and not by that of Redis.",
        "beat/beat.py",
        "self._decide(row, reply.now)",
        "import time\n\n            self._decide(row, time.time())",
        ("clocks",),
    ),
    Mutant(
        "put-back-stays-disabled",
        "A last run that is put back leaves its entry disabled.",
        "beat/outcome.py",
        "if row.definition is not None and run.stored.definition != row.definition:",
        "if False:",
        ("tests/scheduler/test_delivery.py",),
    ),
)
