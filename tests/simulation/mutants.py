"""Mistakes that a change of the scripts or of the beat might make, each as a replaced text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ("MUTANTS", "Mutant")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake.

    Attributes:
        name: what it is called on the command line.
        broken: what is broken, in a sentence.
        path: the file below ``redbeat``.
        old: the text that is replaced; the file has it exactly once.
        new: the text in its place.
        by: who may kill it, in this order: profiles of the simulator, options of the simulator, and
            tests as pytest takes them.
    """

    name: str
    broken: str
    path: str
    old: str
    new: str
    by: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """Return the text of the file with the mistake; raises ``ValueError``."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} has its text {text.count(self.old)} times")
        return text.replace(self.old, self.new)


CLAIM: Final = "lua/claim.lua"

MUTANTS: Final = (
    # -- the claim: what is due goes to one beat -------------------------------------------------
    Mutant(
        "fence-off",
        "A completion is recorded although the claim expired and another beat holds it.",
        CLAIM,
        """if string.sub(claim, 1, #id + 3) ~= '["' .. id .. ' ' then""",
        "if claim == '' then",
        ("tests/store/test_claim_script.py",),
    ),
    Mutant(
        "lease-ignored",
        "A claim is handed out again although another beat holds it.",
        CLAIM,
        "    if expires > now then\n"
        "      return seconds(math.min(expires, now + lease))\n    end\n",
        "",
        ("tests/store/test_claim_script.py",),
    ),
    Mutant(
        "claim-not-hidden",
        "What is claimed keeps its score, so that it is due at the next look.",
        CLAIM,
        "      again = claim(key, found, due)\n",
        "      claim(key, found, due)\n      again = due\n",
        ("tests/store/test_claim_script.py",),
    ),
    Mutant(
        "standby-claims",
        "A beat claims what is due although another beat holds the lock.",
        CLAIM,
        "if standing == 1 and limit > 0",
        "if limit > 0",
        (
            "tests/store/test_claim_script.py",
            "tests/scheduler/test_lock.py",
        ),
    ),
    Mutant(
        "takeover-without-compare",
        "A takeover also takes the lock from a beat that got it meanwhile.",
        CLAIM,
        "(dead ~= '' and holder == dead)",
        "dead ~= ''",
        (
            "tests/store/test_claim_script.py",
            "tests/scheduler/test_lock_lost.py",
        ),
    ),
    Mutant(
        "lock-always-ours",
        "A beat takes the lock although another beat holds it.",
        CLAIM,
        "  if not holder or (dead",
        "  if true or (dead",
        (
            "calm",
            "tests/store/test_claim_script.py",
            "tests/scheduler/test_lock.py",
        ),
    ),
    Mutant(
        "lock-not-renewed",
        "The turns of a leader do not renew its lock.",
        CLAIM,
        "  redis.call('PEXPIRE', lock, ttl)\n",
        "",
        (
            "calm",
            "tests/scheduler/test_lock.py",
            "tests/store/test_claim_script.py",
        ),
    ),
    Mutant(
        "occurrence-forgotten",
        "An expired claim does not tell the next one which occurrence it was for.",
        CLAIM,
        "    if tonumber(earlier) then\n      due = earlier\n    end\n",
        "",
        ("tests/store/test_claim_script.py",),
    ),
    Mutant(
        "put-back-forgets-due",
        "A run that is given back is taken for one that is due now.",
        CLAIM,
        """'["- ' .. due .. ' 0"]'""",
        """'["- ' .. now_text .. ' 0"]'""",
        (
            "servers",
            "tests/scheduler/test_publish_failures.py",
            "tests/scheduler/test_new_entries.py",
        ),
    ),
    Mutant(
        "score-not-restored",
        "A completion does not write the next score: the entry waits for the end of the claim.",
        CLAIM,
        "  score_later(score, key)\n  return 1\nend",
        "  return 1\nend",
        (
            "calm",
            "tests/store/test_claim_script.py",
        ),
    ),
    Mutant(
        "foreign-history-overwritten",
        "A history that an application wrote during a run is overwritten.",
        CLAIM,
        "    if meta ~= '' and not same_meta and seen",
        "    if false and not same_meta and seen",
        (
            "tests/store/test_claim_script.py",
            "tests/scheduler/test_claims.py",
        ),
    ),
    Mutant(
        "completion-overrules-edit",
        "The next score of an entry that was edited during its run is that of the old schedule.",
        CLAIM,
        "    score, finish = now_text, ''\n",
        "    finish = ''\n",
        ("tests/store/test_claim_script.py",),
    ),
    Mutant(
        "edit-finishes",
        "An entry that was edited during its last run is finished by it.",
        CLAIM,
        "    score, finish = now_text, ''\n",
        "    score = now_text\n",
        (
            "tests/store/test_claim_script.py",
            "tests/scheduler/test_policy.py",
        ),
    ),
    Mutant(
        "claim-kept-after-run",
        "A recorded run leaves its claim on the entry.",
        CLAIM,
        "    redis.call('HDEL', key, 'claim')\n    if waits(found[5])",
        "    if waits(found[5])",
        (
            "calm",
            "crowded",
            "tests/store/test_claim_script.py",
        ),
    ),
    Mutant(
        "history-not-written",
        "A recorded run leaves the history as it was.",
        CLAIM,
        "'meta', meta, 'runtime', runtime, 'history', line)",
        "'history', line)",
        (
            "edits",
            "tests/store/test_claim_script.py",
        ),
    ),
    Mutant(
        "lost-claims-not-found",
        "Claims whose reply got lost are not handed out again.",
        CLAIM,
        "and not (reply_lost and hand_out_again())",
        "",
        ("tests/scheduler/test_lost_replies.py",),
    ),
    Mutant(
        "member-without-hash-at-once",
        "A member without a hash is handed out at each look.",
        CLAIM,
        "    local again = retry_at\n",
        "    local again = members[i + 1]\n",
        (
            "tests/store/test_claim_script.py",
            "tests/scheduler/test_bad_entries.py",
        ),
    ),
    Mutant(
        "identity-anew",
        "An entry gets another identity with each claim, so that its task ids change.",
        CLAIM,
        "  if found[9] then\n    redis.call('HSET', key, 'claim', text)\n",
        "  if false then\n",
        (
            "tests/store/test_claim_script.py",
            "tests/schedule/test_identity.py",
        ),
    ),
    # -- triggers and overlap --------------------------------------------------------------------
    Mutant(
        "trigger-dropped-on-record",
        "A run that is recorded drops all triggers that wait.",
        CLAIM,
        "  if run ~= '' and waits(found[5]) then\n"
        "    local left = without(text_in(found[5]), run)\n",
        "  if waits(found[5]) then\n    local left = ''\n",
        (
            "tests/schedule/test_trigger.py",
            "tests/store/test_claim_script.py",
        ),
    ),
    Mutant(
        "trigger-not-removed",
        "A triggered run stays in the list of those that wait, and is sent for ever.",
        CLAIM,
        "if run ~= id and string.sub(run, 1, #id + 1) ~= id .. ':' then",
        "if run ~= id then",
        (
            "edits",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "trigger-not-seen-by-record",
        "A trigger that came during a run waits until the entry is due again.",
        CLAIM,
        "      score = now_text  -- triggered since the claim\n",
        "",
        (
            "tests/schedule/test_trigger.py",
            "tests/store/test_claim_script.py",
        ),
    ),
    Mutant(
        "trigger-not-due",
        "A trigger is noted, and the entry is not made due.",
        "lua/trigger.lua",
        "  redis.call('ZADD', schedule, now, entry)\n",
        "",
        (
            "edits",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "trigger-forgets-others",
        "A trigger replaces those that wait.",
        "lua/trigger.lua",
        "'\"' .. waiting .. (waiting ~= '' and ' ' or '') .. id",
        "'\"' .. id",
        ("tests/schedule/test_trigger.py",),
    ),
    Mutant(
        "overlap-mark-forgotten",
        "A run of an entry whose runs must not overlap is not marked as going on.",
        CLAIM,
        "    mark_running(key, running)\n",
        "",
        (
            "policies",
            "tests/scheduler/test_overlap.py",
        ),
    ),
    Mutant(
        "overlap-ignores-early-end",
        "A run that ended before it was recorded counts as going on.",
        CLAIM,
        """if redis.call('HGET', key, 'ended') ~= '"' .. id .. '"' then""",
        "if true then",
        ("tests/scheduler/test_overlap.py",),
    ),
    Mutant(
        "overlap-never-ends",
        "The end of a run is not noted: the next one waits for the timeout.",
        "lua/ended.lua",
        "redis.call('HDEL', entry, 'running')\n",
        "",
        (
            "policies",
            "tests/scheduler/test_overlap.py",
        ),
    ),
    Mutant(
        "overlap-any-end",
        "The end of any run ends the one that the entry waits for.",
        "lua/ended.lua",
        "if not found[2] or string.match(text_in(found[2]), '^(.*) %S+$') ~= id then",
        "if not found[2] then",
        ("tests/scheduler/test_overlap.py",),
    ),
    Mutant(
        "overlap-asked-of-nobody",
        "A beat sends the next run while an earlier one goes on.",
        "beat/overlap.py",
        "    return now < until < math.inf\n",
        "    return until < now\n",
        (
            "policies",
            "tests/scheduler/test_overlap.py",
        ),
    ),
    # -- other scripts ---------------------------------------------------------------------------
    Mutant(
        "acquire-takes-all",
        "Acquiring the lock succeeds although another beat holds it.",
        "lua/acquire.lua",
        "if holder and holder ~= ARGV[1] then",
        "if false then",
        ("tests/store/test_lock_scripts.py",),
    ),
    Mutant(
        "extend-any",
        "Extending the lock extends that of another beat.",
        "lua/extend.lua",
        "if redis.call('GET', KEYS[1]) == ARGV[1] then",
        "if redis.call('EXISTS', KEYS[1]) == 1 then",
        ("tests/store/test_lock_scripts.py",),
    ),
    Mutant(
        "release-any",
        "A beat that stops deletes the lock of the leader.",
        "lua/release.lua",
        "if redis.call('GET', KEYS[1]) == ARGV[1] then",
        "if redis.call('EXISTS', KEYS[1]) == 1 then",
        ("tests/store/test_lock_scripts.py",),
    ),
    Mutant(
        "release-not-announced",
        "A released lock is not announced: a standby takes over a second later.",
        "lua/release.lua",
        "  redis.pcall('PUBLISH', ARGV[2], 'lock')\n",
        "",
        (
            "tests/scheduler/test_wakeup.py",
            "tests/store/test_lock_scripts.py",
        ),
    ),
    Mutant(
        "release-keeps-lock",
        "A beat that stops does not give up its lock.",
        "lua/release.lua",
        "  redis.call('DEL', KEYS[1])\n",
        "",
        ("tests/store/test_lock_scripts.py",),
    ),
    Mutant(
        "save-drops-claim",
        "A save drops the claim of a run that is being sent, and makes the entry due.",
        "lua/save.lua",
        "    if expires > now and redis.call('ZSCORE', schedule, entry) then\n",
        "    if false then\n",
        ("tests/store/test_save.py",),
    ),
    Mutant(
        "save-overwrites-history",
        "A save overwrites a history that was recorded since the entry was loaded.",
        "lua/save.lua",
        "  if stored[1] and seen ~= '*' and",
        "  if false and seen ~= '*' and",
        (
            "tests/store/test_save.py",
            "tests/schedule/test_conflicts.py",
        ),
    ),
    Mutant(
        "save-not-announced",
        "A saved entry that is the next one does not wake up the leader.",
        "lua/save.lua",
        "    redis.pcall('PUBLISH', channel, 'due')\n",
        "    local _ = channel\n",
        (
            "edits",
            "tests/scheduler/test_wakeup.py",
        ),
    ),
    Mutant(
        "save-keeps-old-policy",
        "A save of an entry without a policy leaves the stored policy.",
        "lua/save.lua",
        "    redis.call('HDEL', entry, 'policy')\n",
        "    local _ = policy\n",
        (
            "edits",
            "tests/store/test_save.py",
        ),
    ),
    Mutant(
        "save-inherits",
        "A new entry takes over what is left of a deleted one of its name.",
        "lua/save.lua",
        "    if redis.call('HLEN', entry) > 0 then\n",
        "    if false then\n",
        ("tests/store/test_save.py",),
    ),
    Mutant(
        "save-leaves-finished",
        "An entry that has finished and is saved with another schedule does not run.",
        "entries/saving.py",
        "        if begun is history:\n",
        "        if begun is not None:\n",
        ("tests/schedule/test_saved_again.py",),
    ),
    Mutant(
        "save-arms-again",
        "A save that another process anticipated begins a finished entry a second time.",
        "entries/saving.py",
        "        meta, self._found_texts = found.meta, texts\n",
        "        meta = found.meta\n",
        ("tests/schedule/test_saved_again.py",),
    ),
    Mutant(
        "save-begins-ahead",
        "An entry that begins again counts from the clock of a host that is ahead.",
        "lua/save.lua",
        "stored[2] ~= meta and is_ahead(made_up) then",
        "false then",
        ("tests/store/test_save.py",),
    ),
    Mutant(
        "sync-leaves-finished",
        "A static entry that has finished does not run by its new schedule.",
        "lua/sync.lua",
        "    if begins_again(found, definition, policy) then\n",
        "    if false then\n",
        ("tests/schedule/test_saved_again.py",),
    ),
    Mutant(
        "delete-leaves-member",
        "Deleting an entry leaves its member in the schedule.",
        "lua/delete.lua",
        "local members = redis.call('ZREM', KEYS[1], entry)",
        "local members = redis.call('ZSCORE', KEYS[1], entry) and 1 or 0",
        ("tests/store/test_delete.py",),
    ),
    Mutant(
        "delete-leaves-hash",
        "Deleting an entry leaves its hash, from which a sweep makes it due again.",
        "lua/delete.lua",
        "local hashes = redis.call('DEL', entry)",
        "local hashes = redis.call('EXISTS', entry)",
        (
            "edits",
            "tests/store/test_delete.py",
        ),
    ),
    Mutant(
        "record-revives-deleted",
        "A completion writes to an entry that was deleted during its run.",
        CLAIM,
        "  if found.err or not found[1] or not found[2] then\n    return 0\n  end\n"
        "  local claim = found[1]\n",
        "  if found.err then\n    return 0\n  end\n"
        "  local claim = found[1] or '[\"' .. id .. ' '\n  found[2] = found[2] or ''\n",
        ("tests/store/test_claim_script.py",),
    ),
    Mutant(
        "finish-keeps-entry",
        "An entry that is to be deleted when it has finished stays.",
        CLAIM,
        "    redis.call('DEL', key)\n    redis.call('ZREM', schedule, key)\n    return 1\n",
        "    finish = ''\n",
        (
            "limits",
            "tests/scheduler/test_policy.py",
            "tests/store/test_claim_script.py",
        ),
    ),
    Mutant(
        "sync-ignores-lock",
        "A beat that lost the lead writes its static entries.",
        "lua/sync.lua",
        "if must_lead and not leads then",
        "if false then",
        ("tests/store/test_static_scripts.py",),
    ),
    Mutant(
        "standby-overwrites-statics",
        "A beat that starts changes the static entries of the leader.",
        "lua/sync.lua",
        "  if only_missing then\n    return 0\n  end\n",
        "",
        (
            "tests/store/test_static_scripts.py",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "sync-forgets-member",
        "A static entry whose member is gone is not made due again.",
        "lua/sync.lua",
        "    redis.call('ZADD', schedule, due_now, key)\n    return 3\n",
        "    return 3\n",
        ("tests/store/test_static_scripts.py",),
    ),
    Mutant(
        "sync-moves-claimed",
        "A change of a static entry makes it due although a beat holds a claim on it.",
        "lua/sync.lua",
        "if not (member and claimed(found[3])) then",
        "if true then",
        ("tests/store/test_static_scripts.py",),
    ),
    Mutant(
        "prune-ignores-lock",
        "A beat that lost the lead removes static entries of the new leader.",
        "lua/prune.lua",
        "if lock and redis.call('GET', lock) ~= ARGV[1] then",
        "if false then",
        ("tests/store/test_static_scripts.py",),
    ),
    Mutant(
        "prune-removes-all",
        "Entries of applications are removed with static ones that left the schedule.",
        "lua/prune.lua",
        "  if redis.call('SREM', statics, name) == 1 then\n",
        "  redis.call('SREM', statics, name)\n  if true then\n",
        ("tests/store/test_static_scripts.py",),
    ),
    Mutant(
        "sweep-finds-nothing",
        "An entry that lost its place in the schedule is never found.",
        "lua/sweep.lua",
        "    if is_lost then\n",
        "    if false then\n",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "sweep-takes-foreign",
        "The sweep takes hashes of a longer prefix for entries that lost their place.",
        "lua/sweep.lua",
        "  return prefix .. tostring(definition.name) == key, false\n",
        "  return true, false\n",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "tidy-removes-all",
        "The counts of entries that exist are removed.",
        "lua/tidy.lua",
        "  if name and not (keep and redis",
        "  if name and not (false and redis",
        ("tests/metrics/test_stats.py",),
    ),
    Mutant(
        "park-ignores-edit",
        "An entry that was mended while it was read is put into quarantine.",
        "lua/park.lua",
        "  return made_of(found[1], found[2] or '', found[3], found[4]) and 1 or -1\n",
        "  return 1\n",
        ("tests/store/test_quarantine_scripts.py",),
    ),
    Mutant(
        "park-ignores-claim",
        "A beat whose claim expired puts an entry into quarantine.",
        "lua/park.lua",
        "  if read_claim(found[1]) ~= id then\n    return 0\n  end\n",
        "",
        ("tests/store/test_quarantine_scripts.py",),
    ),
    Mutant(
        "review-releases-nobody",
        "A mended entry stays in quarantine.",
        "lua/review.lua",
        "    if sha1hex(text) ~= digest then\n",
        "    if false then\n",
        ("tests/store/test_quarantine_scripts.py",),
    ),
    Mutant(
        "forget-ignores-return",
        "A member is removed although its hash came back.",
        "lua/forget.lua",
        "  if redis.pcall('HEXISTS', key, 'definition') ~= 0 then\n",
        "  if false then\n",
        (
            "tests/store",
            "tests/scheduler/test_bad_entries.py",
        ),
    ),
    # -- the conversation with Redis -------------------------------------------------------------
    Mutant(
        "record-dropped",
        "Completions whose request failed are not sent again.",
        "beat/exchange.py",
        "        self.pending = [*unsure, *self.pending]\n",
        "",
        (
            "tests/scheduler/test_lost_replies.py",
            "tests/scheduler/test_outage.py",
        ),
    ),
    Mutant(
        "promise-repeated",
        "A run at most once is recorded again after a lost reply, and sent again.",
        "beat/exchange.py",
        "[done for done in question.terms.completions if not done.promised]",
        "[*question.terms.completions]",
        (
            "network",
            "tests/scheduler/test_delivery.py",
        ),
    ),
    Mutant(
        "lost-claims-not-asked-for",
        "A beat does not ask for the claims whose reply got lost.",
        "beat/exchange.py",
        "            self._lost = question.terms\n",
        "            self._lost = None\n",
        ("tests/scheduler/test_lost_replies.py",),
    ),
    Mutant(
        "conflict-not-merged",
        "A run during which an application wrote the history is not counted.",
        "beat/exchange.py",
        "    count = max(theirs.total_run_count, ours.total_run_count)\n",
        "    count = theirs.total_run_count\n",
        ("tests/scheduler/test_claims.py",),
    ),
    Mutant(
        "conflict-keeps-claim",
        "A run during which an application wrote the history is not recorded.",
        "beat/exchange.py",
        "            self.pending.append(merge(done, result.meta, self._now))\n",
        "            logger.debug('%s', result.meta)\n",
        ("tests/scheduler/test_claims.py",),
    ),
    Mutant(
        "deadline-from-reply",
        "The deadline of claims counts from the reply, however late that came.",
        "beat/exchange.py",
        "question.asked_at + used",
        "self.answered_at + used",
        (
            "tests/scheduler/test_claims.py",
            "tests/scheduler/test_lost_replies.py",
        ),
    ),
    Mutant(
        "deadline-ignored",
        "A beat sends what it claimed although the claim has expired.",
        "beat/ticker.py",
        "            if started >= answer.deadline:\n",
        "            if False:\n",
        ("tests/scheduler/test_claims.py",),
    ),
    Mutant(
        "time-of-host",
        "A beat decides by the clock of its host and not by that of Redis.",
        "beat/exchange.py",
        "        return self._now + (local - self.answered_at)\n",
        "        import time\n\n        return time.time() + (local - self._clock())\n",
        (
            "clocks",
            "tests/scheduler/test_tick.py",
        ),
    ),
    Mutant(
        "give-back-as-done",
        "What is given back is recorded as done: the run is lost.",
        "beat/ticker.py",
        "            Completion(claim.key, claim_id, claim.due, runtime=AGAIN)\n",
        "            Completion(claim.key, claim_id, claim.due + 60)\n",
        (
            "brokers",
            "tests/scheduler/test_claims.py",
            "tests/scheduler/test_stopping.py",
        ),
    ),
    Mutant(
        "give-back-forgotten",
        "What a beat cannot send in time is not given back.",
        "beat/ticker.py",
        "            if claim.definition is not None\n        )\n",
        "            if claim.problem\n        )\n",
        (
            "tests/scheduler/test_claims.py",
            "tests/scheduler/test_stopping.py",
        ),
    ),
    Mutant(
        "record-not-flushed",
        "A beat that stops does not record what it has sent.",
        "beat/ticker.py",
        "                self._give_back(iter(answer.turn.claims), answer.claim_id)\n"
        "        self._exchange.flush()\n",
        "                self._give_back(iter(answer.turn.claims), answer.claim_id)\n",
        ("tests/scheduler/test_stopping.py",),
    ),
    Mutant(
        "emptied-not-noticed",
        "Static entries are not written again after Redis lost all data.",
        "beat/ticker.py",
        "            if self._statics_stand(turn) or self._clock() < self._sync_again_at:\n",
        "            if True:\n",
        ("tests/scheduler/test_statics.py",),
    ),
    Mutant(
        "emptied-waits",
        "Static entries are written again only by the next leader.",
        "beat/ticker.py",
        "        if self._synced and not emptied and",
        "        if self._synced and",
        ("tests/scheduler/test_statics.py",),
    ),
    Mutant(
        "prune-at-once",
        "A beat removes the static entries of beats that share the work with it.",
        "beat/ticker.py",
        "if present == {self._exchange.token}:",
        "if present:",
        (
            "tests/scheduler/test_statics.py",
            "tests/scheduler/test_sharing.py",
        ),
    ),
    # -- decisions and messages ------------------------------------------------------------------
    Mutant(
        "errors-swallowed",
        "A run that the broker refused counts as sent.",
        "beat/outbox.py",
        "                letter.error = errors[0]\n",
        "                letter.error = None\n",
        (
            "brokers",
            "tests/scheduler/test_outbox.py",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "answers-not-awaited",
        "A broken connection to the broker counts as an answer to what was on its way.",
        "beat/redis_pipe.py",
        "        answers += [error] * (len(flight.commands) - len(answers))\n",
        "        answers += [None] * (len(flight.commands) - len(answers))\n",
        ("tests/scheduler/test_outbox.py",),
    ),
    Mutant(
        "record-before-publish",
        "A run is recorded when its message is written down, before the broker confirmed it.",
        "beat/dispatcher.py",
        "                    self._outbox.add(Letter(entry, claim, claim_id, seconds, now))\n"
        "                    return None\n",
        "                    letter = Letter(entry, claim, claim_id, seconds, now)\n"
        "                    self._outbox.add(letter)\n"
        "                    self._done.append(self._settled(letter))\n"
        "                    self._settled = lambda one: Completion("
        "one.claim.key, 'x', 0.0)\n"
        "                    return None\n",
        (
            "servers",
            "tests/scheduler/test_outbox.py",
        ),
    ),
    Mutant(
        "failure-as-sent",
        "A run whose publish raised is recorded as sent.",
        "beat/dispatcher.py",
        "        if letter.error is not None:\n",
        "        if False and letter.error is not None:\n",
        (
            "brokers",
            "tests/scheduler/test_publish_window.py",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "stale-decision",
        "What was decided stays decided, however long the broker took since.",
        "beat/dispatcher.py",
        "        if now - self._decided_at > DECIDED_FOR:\n            run.verdict = None\n",
        "",
        ("tests/scheduler/test_claims.py",),
    ),
    Mutant(
        "pause-not-seen",
        "An entry that is not enabled is sent when it is due.",
        "beat/dispatcher.py",
        "        if not entry.enabled:\n",
        "        if False:\n",
        ("tests/schedule/test_pause.py",),
    ),
    Mutant(
        "broker-failure-as-done",
        "A run that could not be sent while the broker is away is not put back.",
        "beat/failures.py",
        "            return Completion(claim.key, claim_id, again_at, runtime=AGAIN)\n",
        "            return Completion(claim.key, claim_id, again_at + 60)\n",
        (
            "brokers",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "attempts-without-wait",
        "An entry that cannot be sent is tried again at once, for ever.",
        "beat/failures.py",
        "Completion(claim.key, claim_id, now + wait, runtime=AGAIN, history=line)",
        "Completion(claim.key, claim_id, now, runtime=AGAIN, history=line)",
        ("tests/scheduler/test_publish_failures.py",),
    ),
    Mutant(
        "at-most-once-unconfirmed",
        "A run at most once is sent although its record was refused.",
        "beat/promises.py",
        "(promise for promise in made if promise.done.key in recorded)",
        "(promise for promise in made)",
        ("tests/scheduler/test_delivery.py",),
    ),
    Mutant(
        "at-most-once-ignored",
        "A run at most once is sent before it is recorded.",
        "beat/dispatcher.py",
        "        send = self._promise if run.at_most_once else self._run\n",
        "        send = self._run\n",
        (
            "crowded",
            "tests/scheduler/test_delivery.py",
        ),
    ),
    Mutant(
        "at-most-once-retried",
        "A run at most once whose publish failed is tried again.",
        "beat/keeper.py",
        '            self._lost(promise, f"is lost, it must not be sent twice: {run.error!r}")\n',
        "            return False\n",
        (
            "brokers",
            "tests/scheduler/test_delivery.py",
        ),
    ),
    Mutant(
        "id-from-present",
        "The task id comes from the present and not from the nominal instant.",
        "beat/messages.py",
        "    occurrence = instant.iso\n",
        "    occurrence = run.now.isoformat() if run else instant.iso\n",
        (
            "calm",
            "tests/scheduler/test_messages.py",
        ),
    ),
    Mutant(
        "id-without-name",
        "Entries that are due at one instant send one task id.",
        "entries/occurrences.py",
        """f"{instant} {name}".encode(""",
        """f"{instant}".encode(""",
        (
            "losses",
            "tests/scheduler/test_messages.py",
            "tests/unit/test_occurrences.py",
        ),
    ),
    Mutant(
        "trigger-id-from-schedule",
        "A triggered run has the id of the scheduled one.",
        "beat/messages.py",
        '        occurrence = f"trigger {run.trigger.id}"\n',
        "        occurrence = instant.iso\n",
        (
            "calm",
            "tests/schedule/test_trigger.py",
        ),
    ),
    Mutant(
        "coalesced-not-told",
        "A message does not tell how many missed runs it stands for.",
        "beat/messages.py",
        '        headers["coalesced"] = run.verdict.missed\n',
        '        headers["coalesced"] = 0\n',
        (
            "policies",
            "tests/scheduler/test_messages.py",
            "tests/scheduler/test_missed_runs.py",
        ),
    ),
    Mutant(
        "missed-not-counted",
        "Missed runs are not counted.",
        "entries/occurrences.py",
        "    return Verdict(latest, next_run(schedule, latest, zone), missed)\n",
        "    return Verdict(latest, next_run(schedule, latest, zone), 0 * missed)\n",
        (
            "policies",
            "tests/unit/test_occurrences.py",
        ),
    ),
    Mutant(
        "coalesces-to-earliest",
        "A run that stands for missed ones is the first of them and not the last.",
        "entries/occurrences.py",
        '    chosen = oldest if policy.coalesce == "earliest" else latest\n',
        "    chosen = oldest\n",
        (
            "policies",
            "tests/unit/test_planning.py",
        ),
    ),
    Mutant(
        "anchor-is-present",
        "An interval counts from when its run was sent and not from when that was due.",
        "entries/due.py",
        "        if self.scheduled_at and same_instant(last, known):\n",
        "        if False and same_instant(last, known):\n",
        (
            "calm",
            "tests/unit/test_occurrences.py",
            "tests/scheduler/test_missed_runs.py",
        ),
    ),
    Mutant(
        "limit-plus-one",
        "An entry with a limit runs once more.",
        "entries/occurrences.py",
        "    if runs >= policy.max_runs:\n        return FINISHED\n"
        "    last = verdict.due and runs + 1 >= policy.max_runs\n",
        "    if runs > policy.max_runs:\n        return FINISHED\n"
        "    last = verdict.due and runs >= policy.max_runs\n",
        (
            "limits",
            "tests/unit/test_policy.py",
            "tests/scheduler/test_policy.py",
        ),
    ),
    Mutant(
        "limit-never-parks",
        "The last run of an entry with a limit is not known to be the last.",
        "entries/occurrences.py",
        "    last = verdict.due and runs + 1 >= policy.max_runs\n",
        "    last = verdict.due and runs >= policy.max_runs\n",
        (
            "tests/unit/test_policy.py",
            "tests/scheduler/test_policy.py",
        ),
    ),
    Mutant(
        "window-has-no-end",
        "An entry runs after its end.",
        "entries/planning.py",
        "return None if found is None or (end is not None and found > end) else found",
        "return found",
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "window-has-no-begin",
        "An entry runs before its start.",
        "entries/planning.py",
        "        if has_start(self.schedule) or (start is not None and start > at):\n",
        "        if has_start(self.schedule):\n",
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "jitter-is-early",
        "Jitter makes runs early.",
        "entries/planning.py",
        "return nominal + longest * (",
        "return nominal - longest * (",
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "jitter-by-chance",
        "The jitter of a run differs from look to look.",
        "entries/planning.py",
        """        text = f"{nominal.isoformat()} {self.identity}".encode(""",
        """        import random\n\n        text = f"{random.random()} {self.identity}".encode(""",
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "misfire-ignored",
        "A run that is too late by its misfire_grace_time is sent.",
        "entries/occurrences.py",
        "    if grace is not None:\n",
        "    if False:\n",
        (
            "tests/unit/test_planning.py",
            "tests/unit/test_policy.py",
        ),
    ),
    Mutant(
        "catch-up-unlimited",
        "All missed runs are sent, however few the limit allows.",
        "entries/occurrences.py",
        "plan.last_few(oldest, latest, limit) if limit is not None else oldest",
        "oldest",
        (
            "policies",
            "tests/unit/test_planning.py",
            "tests/unit/test_policy.py",
        ),
    ),
    Mutant(
        "latest-is-next",
        "The last instant of a grid is one too far.",
        "timing.py",
        "    return after + slots * step if slots > 0 else None\n",
        "    return after + (slots + 1) * step if slots > 0 else None\n",
        (
            "policies",
            "tests/unit/test_timing.py",
        ),
    ),
    Mutant(
        "crontab-in-utc",
        "A crontab is read in UTC and not in its time zone.",
        "timing.py",
        "    return next_instant(cron_rule(schedule), after, timezone or schedule.tz)\n",
        "    return next_instant(cron_rule(schedule), after, UTC)\n",
        (
            "--years 1 --zones Europe/Berlin",
            "tests/unit/test_timing_zones.py",
        ),
    ),
    Mutant(
        "dst-gap-skipped",
        "A crontab at a wall time that does not exist skips that day.",
        "calendar/walltime.py",
        "        if wall is not None and (run := _first_instant(wall, zone, start)) > after:\n",
        "        if wall is not None and offsets_of(wall, zone)[0] < offsets_of(wall, zone)[1]:\n"
        "            continue\n"
        "        if wall is not None and (run := _first_instant(wall, zone, start)) > after:\n",
        (
            "--years 1 --zones Europe/Berlin",
            "tests/unit/test_timing_zones.py",
        ),
    ),
    Mutant(
        "dst-runs-twice",
        "A crontab at a wall time that a clock shows twice runs the second time.",
        "calendar/walltime.py",
        "        run = at_offset(wall, first)\n        return run if",
        "        run = at_offset(wall, second)\n        return run if",
        (
            "--years 1 --zones Europe/Berlin",
            "tests/unit/test_timing_zones.py",
        ),
    ),
    Mutant(
        "zone-change-ignored",
        "Entries keep their scores when the app gets another time zone.",
        "beat/rescore.py",
        "    if before:\n        logger",
        "    if False:\n        logger",
        ("tests/scheduler/test_time_zone_change.py",),
    ),
    Mutant(
        "clock-back-ignored",
        "A history of a time that the clock of Redis went back from counts as it is.",
        "entries/due.py",
        "        ahead = self.run is not None and anchor",
        "        ahead = False and anchor",
        ("tests/scheduler/test_clocks.py",),
    ),
    Mutant(
        "clock-back-unnoticed",
        "Nobody looks again at entries after the clock of Redis went back.",
        "beat/ticker.py",
        "        if back > CLOCK_STEP:\n",
        "        if False:\n",
        ("tests/scheduler/test_clocks.py",),
    ),
    Mutant(
        "host-clock-parks",
        "What a host takes for finished is parked, whatever the time of Redis.",
        "entries/due.py",
        "        if verdict.due or verdict.missed or verdict.next_at is None:\n",
        "        if verdict.due:\n",
        ("tests/scheduler/test_clocks.py",),
    ),
    Mutant(
        "broker-answers-blamed-on-entries",
        "A broker that answers and refuses writes is not taken for away.",
        "beat/broker.py",
        "    return not names or any(name.startswith(SPEAKERS) for name in names)\n",
        "    return False\n",
        ("tests/scheduler/test_broker_refuses.py",),
    ),
    # -- the lead, static entries, waiting -------------------------------------------------------
    Mutant(
        "leader-thinks-on",
        "A beat that lost the lock goes on as the leader.",
        "beat/ticker.py",
        "        at_work = turn.standing != STANDBY\n",
        "        at_work = True\n",
        ("tests/scheduler/test_lock_lost.py",),
    ),
    Mutant(
        "silence-not-measured",
        "A standby takes the lock from a leader that renews it.",
        "beat/leader.py",
        "        if holder != self._holder or fell < passed / 2:\n",
        "        if holder != self._holder:\n",
        (
            "calm",
            "tests/scheduler/test_lock.py",
            "tests/scheduler/test_lock_lost.py",
        ),
    ),
    Mutant(
        "silence-too-long",
        "A standby waits for the end of a dead leader's lock, however long that is.",
        "beat/leader.py",
        "        return self._holder\n\n\nclass OwnLock:",
        '        return ""\n\n\nclass OwnLock:',
        (
            "tests/scheduler/test_lock.py",
            "tests/scheduler/test_lock_lost.py",
        ),
    ),
    Mutant(
        "blind-standby-counts-silence",
        "A standby counts time in which it could not see the lock as silence of the leader.",
        "beat/leader.py",
        "self._silent += min(passed, LONGEST_LOOK)",
        "self._silent += passed",
        ("tests/scheduler/test_lock.py",),
    ),
    Mutant(
        "statics-never-change",
        "A changed static entry is not written.",
        "lua/sync.lua",
        "  if differs and not paused_from(found[2], definition, policy) then\n",
        "  if false then\n",
        (
            "deploys",
            "tests/store/test_static_scripts.py",
        ),
    ),
    Mutant(
        "statics-never-leave",
        "Static entries that left the schedule go on.",
        "beat/statics.py",
        "            if not store.prune_statics(names, lock_key, token):\n",
        "            if not names:\n",
        (
            "deploys",
            "tests/scheduler/test_statics.py",
        ),
    ),
    Mutant(
        "statics-offered-blindly",
        "What a beat wrote when it started counts as written, whatever others wrote since.",
        "beat/statics.py",
        "        if self.offered and self.offered == store.noted_statics():\n",
        "        if self.offered:\n",
        ("tests/scheduler/test_statics.py",),
    ),
    Mutant(
        "sweep-at-first-sight",
        "The sweep makes an entry due that a writer is just adding.",
        "beat/sweep.py",
        "        self._found += found.orphans\n",
        "        self._found_before += found.orphans\n",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "sweep-never-looks",
        "The sweep never begins a pass.",
        "beat/sweep.py",
        "                self._cursor, self._pass_began = START, now\n",
        "                self._pass_began = now\n",
        ("tests/scheduler/test_sweep.py",),
    ),
    Mutant(
        "wakeup-not-heard",
        "A beat that waits does not hear that an entry was saved.",
        "beat/wakeup.py",
        "                if self._hears(heed, min(left, SLICE)):\n",
        "                if self._hears(heed, min(left, SLICE)) and False:\n",
        (
            "calm",
            "tests/scheduler/test_wakeup.py",
        ),
    ),
    Mutant(
        "waits-too-long",
        "A beat waits for the longest time, whatever is due next.",
        "beat/ticker.py",
        "        return min(max(wait, 0.0), longest)\n",
        "        return longest\n",
        (
            "calm",
            "tests/scheduler/test_tick.py",
        ),
    ),
    Mutant(
        "save-ignores-conflict",
        "An application that saves an entry takes its own history for the newest.",
        "entries/saving.py",
        "            self._merge(saved, (saved.definition, saved.policy))\n",
        "            self._seen_meta = saved.meta\n            self._known_history = (None, -1)\n",
        ("tests/schedule/test_conflicts.py",),
    ),
    Mutant(
        "save-writes-no-score",
        "An edited schedule keeps its old score.",
        "entries/saving.py",
        "        score, since = self._score_at(now), self._made_up()\n",
        "        score, since = now.timestamp() + 3600, self._made_up()\n",
        (
            "edits",
            "tests/schedule/test_bulk.py",
        ),
    ),
)
