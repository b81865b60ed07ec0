"""The names of stored fields, the words of requests and answers, and the periods of beats."""

from __future__ import annotations

from typing import Final

#: Fields of an entry's hash. RedBeat 2 knows the first two. Users' programs have a field ``state``
#: of their own there.
DEFINITION: Final = "definition"
META: Final = "meta"
POLICY: Final = "policy"
STATE: Final = "beat_state"
INBOX: Final = "inbox"
HISTORY: Final = "history"
RESULTS: Final = "results"
#: The task id, as a JSON string, of the run whose end another run waits for.
WAITS: Final = "waits"

#: Side keys, and the set of static entries, as ``Change.index`` names them.
BEATS: Final = "beats"
CALENDAR_TEXTS: Final = "calendars"
CALENDAR_USERS: Final = "calendar-users"
CALENDAR_VERSION: Final = "calendars-version"
EXPECTED: Final = "expected"
FAILED: Final = "failed"
FAILING: Final = "failing"
HANDS: Final = "hands"
QUARANTINE: Final = "quarantine"
STATICS: Final = "statics"
STATS: Final = "stats"

#: The score in FAILED of an entry that is paused because its runs failed.
PAUSED_FOR_FAILURES: Final = 1_000_000

#: The field of the stats that marks a loss of the schedule: UNIX seconds, or ``new``.
LOST: Final = "lost"

#: Answers to a change.
DONE: Final = "done"
DIFFERS: Final = "differs"
ABSENT: Final = "absent"
REFUSED: Final = "refused"
STALE: Final = "stale"
ELSEWHERE: Final = "elsewhere"

#: What an expectation may cover besides the texts of an entry.
SCORE: Final = "s"
CALENDARS: Final = "c"

#: What a beat is after a turn. A new leader gets no rows yet.
STANDBY: Final = 0
LEADS: Final = 1
NEW_LEADER: Final = 2

#: The kinds of lines in an inbox.
END: Final = "end"
TRIGGER: Final = "trigger"

#: Answers to a line for an inbox, besides DONE and ABSENT.
FULL: Final = "full"
QUARANTINED: Final = "quarantined"
UNSCHEDULED: Final = "unscheduled"

#: Begins the problem that a beat stores while it can't send.
NO_BROKER: Final = "the broker is not available"

# -- beats and their lock --------------------------------------------------------------------------

#: Begins the lock tokens of RedBeat 3. Others belong to other programs or older versions.
TOKEN_PREFIX: Final = "redbeat3:"

#: The holder that ``turn.lua`` returns if the lock key's value is not a string.
NOT_A_LOCK: Final = "a key that is not a lock"

#: Seconds without a renewal after which a leader counts as dead.
SILENCE: Final = 20.0

#: For this many seconds after its last request a beat counts as active.
SEEN_WITHIN: Final = 10.0

#: After this many seconds without a request a beat leaves the list of beats.
#: ``lua/parts/share.lua`` must contain the same number.
FORGET_AFTER: Final = 60.0
