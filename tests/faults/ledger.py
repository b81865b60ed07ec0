"""Reads every message that reaches the broker from the broker's Redis list, without a worker."""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ("Ledger", "Message", "decode")

QUEUE = "celery"
BATCH = 1000
#: Seconds between two reads of the broker when it has no new message or is down.
POLL = 0.005
POLL_WHEN_AWAY = 0.05


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its entry, its occurrence, its sender and its time of arrival.

    ``scheduled_at`` and ``received`` are UNIX seconds; ``scheduled_at`` is None if the message has
    no such header. ``coalesced`` is the number of earlier missed occurrences that this run
    replaces. ``sender`` is the process id of the beat, or 0 if it is unknown. A run with
    ``triggered`` is not an occurrence of the schedule.
    """

    entry: str
    task_id: str
    scheduled_at: float | None
    received: float
    coalesced: int = 0
    redelivered: bool = False
    sender: int = 0
    triggered: bool = False


def decode(text: bytes, received: float) -> Message:
    """Return the message in a kombu envelope.

    The entry's name is in a header. Without this header, it is the keyword argument ``entry``, and
    without this argument, the name of the task.
    """
    envelope = json.loads(text)
    headers = envelope["headers"]
    scheduled_at = headers.get("scheduled_at")
    return Message(
        entry=headers.get("periodic_task_name") or _entry_in_body(envelope) or headers["task"],
        task_id=headers["id"],
        scheduled_at=datetime.fromisoformat(scheduled_at).timestamp() if scheduled_at else None,
        received=received,
        coalesced=int(headers.get("coalesced") or 0),
        redelivered=bool(envelope["properties"].get("redelivered")),
        sender=_pid(headers.get("origin") or ""),
        triggered=bool(headers.get("triggered")),
    )


def _entry_in_body(envelope: dict[str, Any]) -> str:
    body = envelope["body"]
    if envelope["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    _args, kwargs, _embed = json.loads(body)
    return str(kwargs.get("entry") or "")


def _pid(origin: str) -> int:
    """Return the process id from Celery's name for a sender, such as ``gen123@host``."""
    digits = origin.partition("@")[0].removeprefix("gen")
    return int(digits) if digits.isdigit() else 0


class Ledger:
    """Reads all messages of a broker's queue in a thread; a context manager.

    The ledger removes no message: a message that it popped just before the broker died would be
    missing. The ledger survives restarts of the broker, whether the broker keeps its data (AOF) or
    comes back empty.
    """

    def __init__(self, broker_url: str) -> None:
        self._client = redis.Redis.from_url(
            broker_url, socket_timeout=5.0, socket_connect_timeout=5.0, retry=Retry(NoBackoff(), 0)
        )
        self._messages: list[Message] = []
        self._seen = 0
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join(15)
        self._client.close()

    def __len__(self) -> int:
        self._check()
        return len(self._messages)

    @property
    def messages(self) -> list[Message]:
        """Return the messages read so far, in the order in which the broker received them."""
        self._check()
        return list(self._messages)

    def since(self, count: int) -> list[Message]:
        """Return all messages except the first ``count``."""
        self._check()
        return self._messages[count:]

    def _check(self) -> None:
        if self._error is not None:
            raise AssertionError("the ledger met a message it cannot read") from self._error

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                found = self._read()
            except (redis.RedisError, OSError):
                self._ended.wait(POLL_WHEN_AWAY)
            except Exception as error:
                self._error = error
                return
            else:
                if found < BATCH:
                    self._ended.wait(POLL)

    def _read(self) -> int:
        """Read the new messages and return their number; the newest is the head of the list."""
        pipeline = self._client.pipeline()
        pipeline.llen(QUEUE)
        pipeline.lrange(QUEUE, -self._seen - BATCH, -self._seen - 1)
        length, texts = pipeline.execute()
        if length < self._seen:
            self._seen = 0
            return BATCH
        received = time.time()
        self._messages.extend(decode(text, received) for text in reversed(texts))
        self._seen += len(texts)
        return len(texts)
