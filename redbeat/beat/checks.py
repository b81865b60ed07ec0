"""Says what is wrong with the Redis of a schedule when a beat begins to work."""

from __future__ import annotations

from redis.exceptions import ResponseError

from redbeat.config import RedBeatConfig
from redbeat.errors import ConfigurationError, described
from redbeat.printing import get_logger
from redbeat.storage import checks
from redbeat.storage.keys import WRONG_TYPE
from redbeat.storage.store import Store

logger = get_logger("celery.beat")


class Checks:
    """Checks one schedule for shards, eviction, misspelt keys, and keys of a wrong type."""

    def __init__(self, store: Store, conf: RedBeatConfig) -> None:
        self._store, self._conf = store, conf
        self._done = False
        self._side_error = ""

    def run(self) -> None:
        """Check the server once in the life of this beat. A few round trips.

        Raises :exc:`ConfigurationError` if the entries lie in shards that the settings don't name,
        and :exc:`RedBeatKeyExpiryError` if the setting ``redbeat_key_expiry_check`` says so.
        """
        if self._done:
            return
        # The check of a schedule with shards is made before its beats are.
        problem = self._conf.shards == 1 and checks.LayoutNote.read(self._store).problem(1)
        if problem:
            raise ConfigurationError(problem)
        checks.check_eviction(self._store, self._conf.key_expiry_check)
        checks.warn_about_untagged(self._store, self._conf)
        checks.warn_about_misspelt(self._store)
        self._done = True

    def note(self, side_error: str) -> None:
        """Log once that a side key cannot be used, which stops nothing."""
        _, _, why = side_error.partition(": ")
        if not why or why == self._side_error:
            return
        self._side_error = why
        if WRONG_TYPE in why:
            error = checks.explained(ResponseError(why), self._store)
            logger.error("beat: A key next to the schedule cannot be used: %s", described(error))
        else:
            self._store.warn_of_denied(why)
