"""Reads the messages in the queue of a RabbitMQ."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from tests.faults.ledger import Message
from tests.rabbitmq.server import QUEUE, new_connection

__all__ = ("drain",)


def drain(url: str) -> list[Message]:
    """Remove all messages from the queue and return them, oldest first.

    Their times of arrival are unknown: ``received`` is the time of removal.
    """
    with new_connection(url) as connection:
        channel = connection.default_channel
        found = []
        while (message := channel.basic_get(QUEUE, no_ack=True)) is not None:
            found.append(_read(message))
    return found


def _read(message: Any) -> Message:
    headers = message.headers
    return Message(
        entry=headers["periodic_task_name"],
        task_id=headers["id"],
        scheduled_at=datetime.fromisoformat(headers["scheduled_at"]).timestamp(),
        received=time.time(),
        coalesced=int(headers.get("coalesced") or 0),
        redelivered=bool(message.delivery_info["redelivered"]),
    )
