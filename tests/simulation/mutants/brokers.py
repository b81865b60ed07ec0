"""Mutants of publishing: confirmations, and whose errors of the broker are."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "errors-swallowed",
        "A run that the broker refused counts as sent.",
        "beat/send.py",
        "run.error = run.error or (_shared(error) if shared else error)",
        "pass",
        (
            "brokers",
            "tests/beat/test_send.py",
            "tests/scheduler/test_publish_failures.py",
        ),
    ),
    Mutant(
        "answers-not-awaited",
        "A broken connection to the broker counts as a confirmation of the messages in flight.",
        "beat/redis_pipe.py",
        "        answers += [error] * (len(commands) - len(answers))\n",
        "        answers += [None] * (len(commands) - len(answers))\n",
        ("tests/beat/test_redis_pipe.py",),
    ),
    Mutant(
        "final-message-unchecked",
        "The allowlist does not check the message that user code sends through the producer.",
        "beat/broker.py",
        "            if allowlist is not None:\n",
        "            if False:\n",
        ("tests/security/test_allowlist.py",),
    ),
    Mutant(
        "broker-answers-blamed-on-entries",
        "A broker that responds but refuses writes does not count as unavailable.",
        "beat/broker.py",
        "    return not names or any(name.startswith(BROKER_MODULES) for name in names)\n",
        "    return False\n",
        ("tests/scheduler/test_broker_refuses.py",),
    ),
    Mutant(
        "entry-errors-blamed-on-broker",
        "One queue that accepts no messages makes the broker count as unavailable for all entries.",
        "beat/broker.py",
        "    if is_about_one_message(cause):\n",
        "    if False:\n",
        (
            "tests/scheduler/test_broker_refuses.py",
            "tests/beat/test_broker.py",
        ),
    ),
    Mutant(
        "refusal-confirms",
        "A message that RabbitMQ refused counts as sent.",
        "beat/amqp_pipe.py",
        'self._settle(tag, multiple, RuntimeError("RabbitMQ refused the message (basic.nack)"))',
        "self._settle(tag, multiple, None)",
        ("tests/beat/test_amqp_pipe.py",),
    ),
    Mutant(
        "one-of-several-confirmed",
        "One confirmation of several messages confirms only the last one.",
        "beat/amqp_pipe.py",
        "if multiple else [tag]",
        "if False else [tag]",
        ("tests/beat/test_amqp_pipe.py",),
    ),
    Mutant(
        "silence-confirms",
        "A message without a confirmation counts as sent when the wait times out.",
        "beat/amqp_pipe.py",
        "        except Exception as error:\n            self._fail_unconfirmed(error)\n",
        "        except Exception:\n            self._unconfirmed.clear()\n",
        ("tests/beat/test_amqp_pipe.py",),
    ),
    Mutant(
        "closed-channel-confirms",
        "Messages on a channel that RabbitMQ closed count as sent after it reopens.",
        "beat/amqp_pipe.py",
        '        self._fail_unconfirmed(ChannelClosedError("RabbitMQ closed the channel"))\n',
        "        self._unconfirmed.clear()\n",
        ("tests/beat/test_amqp_pipe.py",),
    ),
    Mutant(
        "numbers-of-the-closed-channel",
        "On a reopened channel, messages are numbered after those of the closed channel.",
        "beat/amqp_pipe.py",
        "        self._tag = 0\n        self.channel.confirm_select()\n",
        "        self.channel.confirm_select()\n",
        ("tests/beat/test_amqp_pipe.py",),
    ),
    Mutant(
        "confirmation-of-another",
        "A confirmation counts for another message after earlier messages were settled.",
        "beat/amqp_pipe.py",
        "{tag: position - flushed for tag, position in self._unconfirmed.items()}",
        "dict(self._unconfirmed)",
        ("tests/beat/test_amqp_pipe.py",),
    ),
)
