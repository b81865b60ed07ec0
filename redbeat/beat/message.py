"""Makes the messages of runs, as Celery does, or renders them without its work for each message.

Celery makes the first message of a task and its options; the next ones differ from it in a few
fields, which :meth:`Messages.render` fills in. If something else has a say in a message, see
``surroundings.py``, Celery makes it. Some messages are made both ways and compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import urandom
from random import random
from time import monotonic
from typing import Any, Final

from celery.beat import SchedulingError
from celery.utils.saferepr import saferepr
from kombu.utils.json import JSONEncoder

from redbeat.beat.broker import (
    SHORTEST_PUBLISH,
    CheckedProducer,
    checked_producer,
    publishing_connection,
)
from redbeat.codec.stored import json_chunks
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.entries.decide import task_id_of, uuid_text
from redbeat.entries.definition import TIMES, seconds_of
from redbeat.entries.lazy import SCALARS, evaluated
from redbeat.entries.run import Rule
from redbeat.entries.verdicts import Send
from redbeat.entry import check_allowed
from redbeat.errors import described
from redbeat.printing import get_logger
from redbeat.settings import is_number

from .surroundings import Seen, Surroundings, name_of

logger = get_logger("celery.beat")

#: The message header with the entry's key.
#: Only messages of entries whose runs must not overlap have the header ``redbeat_overlap``.
OVERLAP_HEADER = "redbeat_overlap"

#: Kombu retries a failed publish once, without a pause.
#: One retry is enough if the broker had closed an idle connection.
#: If the retry fails too, a later tick sends the run.
ONE_RETRY: Final[dict[str, float]] = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}

#: The timeout options that an entry may set, and their maximum in seconds.
#: The default timeout of a publish attempt is not longer than ``LONGEST_TIMEOUT``.
BOUNDED_OPTIONS = frozenset(("timeout", "confirm_timeout"))
LONGEST_TIMEOUT = 5.0

#: A broker's command with its arguments.
Command = list[Any]

#: The task of a rule, and which objects its arguments and options are.
Identity = tuple[str, int, int, int]

#: The setting that limits how deeply Celery shows the arguments of a task.
REPR_LEVELS: Final = "task_repr_maxlevels"

#: In a turn with fewer runs, Celery makes all messages: there is nothing to gain.
FEWEST_RUNS: Final = 10

#: The first messages with a template are compared with Celery's, then one in ``ONE_IN``, and the
#: first one after a number of seconds without a comparison.
PROOFS: Final = 2
ONE_IN: Final = 100
PROVED_FOR: Final = 60.0

#: The maximum number of templates, and of rules whose arguments are kept encoded.
MOST_KEPT: Final = 10_000

#: Values with more levels are left to Celery.
DEEPEST: Final = 100

#: A longer body is encoded for each message.
LONGEST_KEPT: Final = 1 << 14


# -- messages that Celery makes --------------------------------------------------------------------


def headers_of(rule: Rule, send: Send, iso: str) -> dict[str, Any]:
    """Return the headers of the message of a run, without those in the options of its entry.

    ``iso`` is the nominal time of the run in ISO 8601. The headers are described in
    ``docs/messages.rst``.
    """
    headers: dict[str, Any] = {"scheduled_at": iso, "periodic_task_name": rule.name}
    if send.kind == "backfilled":
        headers["backfilled"] = True
    elif send.kind == "triggered":
        headers["triggered"] = True
    elif send.missed:
        headers["coalesced"] = send.missed
    if rule.policy.overlap != "allow":
        headers[OVERLAP_HEADER] = rule.key
    return headers


def options_of(
    given: Mapping[str, Any], headers: dict[str, Any], task_id: str | None, at_most_once: bool
) -> dict[str, Any]:
    """Return the arguments of ``apply_async`` for a run; the ``given`` ones of its entry win."""
    chosen = sendable_options(given) if given else {}
    options = retry_options(chosen, at_most_once)
    own = dict(chosen.get("headers") or {})  # RedBeat 2 also takes pairs
    options["headers"] = {**headers, **own, "celery_beat_task": True}
    if task_id:
        options["task_id"] = chosen.get("task_id") or task_id
    return options


def id_of(rule: Rule, send: Send, iso: str, prefix: str, identity: str) -> str:
    """Return the task id of a run, which is the same each time the run is sent."""
    if send.held is not None:
        return send.held.id
    if send.kind == "triggered":
        return task_id_of(prefix, rule.name, f"trigger {send.id}")
    return task_id_of(prefix, rule.name, iso, identity)


def publish(scheduler: Any, entry: Any, options: dict[str, Any], producer: Any) -> Any:
    """Publish the message of an entry or a rule, and return what Celery returns.

    If an argument of the task is a function, the message has what the function returns. Raises
    Celery's ``SchedulingError``, whose cause is the error of the broker or of user code,
    :exc:`LazyArgumentError` if a function among the arguments raises an error, and
    :exc:`NotAllowedError` if ``redbeat_task_allowlist`` does not allow the task.
    """
    app = scheduler.app
    conf = ensure_conf(app)
    if conf.task_allowlist is not None:
        check_allowed(conf, entry.task, options)
    args, kwargs = evaluated(entry.args, entry.kwargs)
    args, kwargs = list(args or ()), dict(kwargs or {})
    task = app.tasks.get(entry.task)
    moves = isinstance(producer, CheckedProducer) and producer.host_ahead
    if moves:
        producer.times_by_host = times_by_host(task, options)
    try:
        if task:
            return task.apply_async(args, kwargs, producer=producer, **options)
        return scheduler.send_task(entry.task, args, kwargs, producer=producer, **options)
    except Exception as error:
        problem = f"Couldn't apply scheduled task {entry.name}: {error}"
        raise SchedulingError(problem) from error
    finally:
        if moves:
            producer.times_by_host = ()


def times_by_host(task: Any, options: Mapping[str, Any]) -> list[str]:
    """Return which times of a message Celery computes from seconds, by the clock of this host."""
    expires = options.get("expires", getattr(task, "expires", None))
    names = ["expires"] if isinstance(expires, (int, float)) else []
    return names if options.get("countdown") is None else [*names, "eta"]


def sendable_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return message options in which all times have types that ``apply_async`` accepts.

    Invalid values are returned unchanged. An ``eta`` in seconds becomes a ``countdown``, but an
    existing ``countdown`` takes precedence, as in Celery.
    """
    if TIMES.keys().isdisjoint(options):
        return options
    sendable = dict(options)
    for name in TIMES.keys() & sendable.keys():
        sendable[name] = seconds_of(sendable[name])
    if is_number(sendable.get("eta")):
        seconds = sendable.pop("eta")
        sendable["countdown"] = sendable.get("countdown") or seconds
    return sendable


def retry_options(options: Mapping[str, Any], at_most_once: bool) -> dict[str, Any]:
    """Return ``apply_async`` options that limit how often and how long a publish is tried.

    A publish has two attempts. A publish has only one attempt if ``at_most_once`` is true, or if
    the entry's ``retry_policy`` sets ``max_retries`` to 0. Entries cannot increase the number of
    attempts. ``timeout`` and ``confirm_timeout`` are limited to :data:`LONGEST_TIMEOUT` seconds.
    Other fields of ``retry_policy`` are removed, because kombu would store these fields in the
    connection and apply them to all entries.
    """
    bounded = dict(options)
    for name in BOUNDED_OPTIONS & options.keys():
        if is_number(options[name]):
            bounded[name] = min(options[name], LONGEST_TIMEOUT)
    policy = bounded.pop("retry_policy", None)
    if at_most_once:
        bounded["retry"] = False
    else:
        retries = policy.get("max_retries") if isinstance(policy, Mapping) else None
        bounded["retry_policy"] = {**ONE_RETRY, "max_retries": 0} if retries == 0 else ONE_RETRY
    return bounded


# -- messages that are rendered --------------------------------------------------------------------


@dataclass(slots=True)
class Template:
    """What the messages of a task with some options have in common.

    Attributes:
        seen: what Celery read when this template was made; in ``turn`` Celery still reads it.
        why: why Celery makes these messages, else "".
        proofs: how many messages were the same as Celery's.
        proved_at: the local time of the turn with the last one, in monotonic seconds.
        list: the Redis key to which the messages go.
        message: the first message, with its parts ``headers`` (without those of the run) and
            ``properties``, and the end of its body, ``embedded``.
    """

    task: str
    options: dict[str, Any]
    turn: int
    why: str = ""
    seen: Seen | None = None
    proofs: int = 0
    proved_at: float = 0.0
    list: Any = None
    message: dict[str, Any] = field(default_factory=dict)
    embedded: Any = None


@dataclass(slots=True)
class Arguments:
    """The arguments of a rule as its messages have them; rules that are twins share them.

    ``why`` is why Celery makes these messages, else "". ``reprs`` are the headers that
    show the arguments, ``own`` the last headers: those of the options, and the beat's sign.
    ``body`` is "" if it is not known, or too long to be kept.
    """

    rule: Rule
    template: Template
    why: str
    args: Any = None
    kwargs: Any = None
    reprs: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    body: str = ""


class Messages:
    """Makes the broker commands of the messages of one beat."""

    def __init__(self, app: Any, conf: RedBeatConfig) -> None:
        self._app, self._conf = app, conf
        self._around = Surroundings(app)
        self._random = random
        self._chunks = json_chunks(JSONEncoder())
        self._turn, self._few, self._began_at = 0, True, 0.0
        self._repr_levels: dict[str, int] = {}
        #: By the task, and by its options as text.
        self._templates: dict[tuple[str, str], Template] = {}
        #: By :func:`_identity`.
        self._arguments: dict[Identity, Arguments] = {}
        #: The tasks whose rendered messages were not the same as Celery's.
        self._distrusted: set[str] = set()

    def begin(self, producer: Any) -> None:
        """Begin a turn: see what has a say in the messages of a connected producer.

        Without a producer, Celery makes all messages of the turn. No network traffic.
        """
        self._few, self._began_at = producer is None, monotonic()
        if producer is not None:
            self._around.producer = producer
            self._look_around()

    def render(self, rule: Rule, headers: Mapping[str, Any], task_id: str) -> list[Command] | None:
        """Return the commands that send the message of one run, None if Celery is to make it.

        ``headers`` are those of the run; the headers of the entry's options take precedence.
        ``task_id`` is the one in the options, if there is one. The commands are as Redis gets them,
        with the key prefix of the broker. After None, give :meth:`learn` what Celery made.
        """
        if self._few or self._around.why:
            return None
        arguments = self._arguments.get(_identity(rule))
        if arguments is None or arguments.template.turn != self._turn:
            arguments = self._arguments_of(rule)
        template = arguments.template
        if arguments.why or template.proofs < PROOFS or self._random() * ONE_IN < 1:
            return None
        if self._began_at - template.proved_at > PROVED_FOR:
            return None
        return self._commands(arguments, headers, task_id, uuid_text(urandom(16).hex(), 4))

    def _commands(
        self, arguments: Arguments, headers: Mapping[str, Any], task_id: str, tag: str
    ) -> list[Command]:
        template, ids = arguments.template, {"id": task_id, "root_id": task_id}
        first, ends = template.message, {"correlation_id": task_id, "delivery_tag": tag}
        message = {
            **first,
            "body": arguments.body or self._body(arguments),
            "headers": {**first["headers"], **ids, **arguments.reprs, **headers, **arguments.own},
            "properties": {**first["properties"], **ends},
        }
        return [["LPUSH", template.list, "".join(self._chunks(message, False))]]

    def _body(self, arguments: Arguments) -> str:
        value = (arguments.args, arguments.kwargs, arguments.template.embedded)
        channel = self._around.channel
        body, _ = channel.encode_body("".join(self._chunks(value, False)), channel.body_encoding)
        if len(body) <= LONGEST_KEPT:
            arguments.body = body
        return str(body)

    def why_not(self, rule: Any) -> str:
        """Return why Celery makes the messages of a rule or an entry, "" if they are rendered."""
        return self._around.why or self._arguments_of(rule).why

    # -- proof -----------------------------------------------------------------------------------

    def learn(
        self, rule: Rule, headers: Mapping[str, Any], task_id: str, commands: list[Command]
    ) -> bool:
        """Learn from a message that Celery made, or compare it with the rendered one.

        ``headers`` and ``task_id`` are what :meth:`render` got, ``commands`` are what was captured;
        they are empty if the message has left in another way. Returns whether the two differ.
        """
        if self._few or self._around.why or not commands:
            return False
        arguments = self._arguments_of(rule)
        if arguments.why:
            return False
        template = arguments.template
        try:
            if not template.proofs:
                self._learn(template, commands, {**headers, **arguments.own})
            tag = json.loads(commands[0][2])["properties"]["delivery_tag"]
            rendered = self._commands(arguments, headers, task_id, tag)
        except (ValueError, TypeError, LookupError, AttributeError):
            rendered = None
        if rendered == commands:
            template.proofs, template.proved_at = template.proofs + 1, self._began_at
        elif not template.proofs:
            template.why = "its messages do not have the usual form"
            self._arguments.clear()
        elif not self._look_around() and self._is_valid(template):  # Celery reads what it did then
            self._distrust(rule, rendered, commands)
            return True
        return False

    def _learn(
        self, template: Template, commands: list[Command], headers: Mapping[str, Any]
    ) -> None:
        """Fill a template from a message that Celery made; an unusual form may raise any error."""
        ((_, template.list, text),) = commands
        message = json.loads(text)
        shared = {name: one for name, one in message["headers"].items() if name not in headers}
        template.message = {**message, "body": "", "headers": shared}
        encoding = message["properties"]["body_encoding"]
        body = self._around.channel.decode_body(message["body"], encoding)
        template.embedded = json.loads(body)[-1]

    def _distrust(self, rule: Rule, rendered: Any, real: list[Command]) -> None:
        self._distrusted.add(rule.task)
        self._forget()
        logger.warning(
            "beat: Celery makes all messages of %s from now on: a rendered one differs in %s",
            *(rule.task, _difference(rendered, real)),
        )

    # -- templates and arguments -----------------------------------------------------------------

    def _look_around(self) -> bool:
        """Begin a turn; return whether anything has changed, and then forget everything."""
        self._turn += 1
        is_changed, conf = self._around.look(), self._app.conf
        if REPR_LEVELS in conf:  # a setting of newer versions of Celery
            self._repr_levels = {"maxlevels": conf[REPR_LEVELS]}
        if is_changed:
            self._forget()
        return is_changed

    def _forget(self) -> None:
        self._templates.clear()
        self._arguments.clear()

    def _is_valid(self, template: Template) -> bool:
        """Return whether Celery still reads what it read when a template was made."""
        if template.turn != self._turn:
            with suppress(Exception):
                if self._around.see(template.task, template.options) == template.seen:
                    template.turn = self._turn
        return template.turn == self._turn

    def _template_of(self, rule: Rule) -> Template:
        options = dict(rule.options or ())
        options.pop("headers", None)
        options.pop("task_id", None)
        key = rule.task, repr(options)
        template = self._templates.get(key)
        if template is not None and self._is_valid(template):
            return template
        if len(self._templates) >= MOST_KEPT:
            self._templates.clear()
        template = self._templates[key] = Template(rule.task, options, self._turn)
        if rule.task in self._distrusted:
            template.why = "a rendered message of its task was not the same as Celery's"
            return template
        try:
            template.seen = self._around.see(rule.task, options)
            template.why = self._around.why_not(template.seen, options)
        except Exception as error:
            template.why = f"what Celery would do is not known: {described(error)}"
        return template

    def _arguments_of(self, rule: Rule) -> Arguments:
        """Return the arguments of a rule, with the template that is right in this turn."""
        identity = _identity(rule)
        kept = self._arguments.get(identity)
        if kept is not None and self._is_valid(kept.template):
            return kept
        template = self._template_of(rule)
        arguments = Arguments(rule, template, template.why)
        if not template.why:
            assert template.seen is not None
            try:
                arguments.why = self._fill(arguments, template.seen.task)
            except Exception as error:
                arguments.why = f"Celery refuses its arguments: {error}"
        if len(self._arguments) >= MOST_KEPT:
            del self._arguments[next(iter(self._arguments))]
        self._arguments[identity] = arguments
        return arguments

    def _fill(self, arguments: Arguments, task: Any) -> str:
        """Check and show the arguments of a rule as Celery does; return why not, else ""."""
        rule = arguments.rule
        own = dict((rule.options or {}).get("headers") or ())
        kind = _other_type((rule.args, rule.kwargs, rule.options))
        if kind:
            return f"it contains a value of the type {kind}"
        allowlist = self._conf.task_allowlist
        refused = allowlist and allowlist.refusal(rule.task, rule.options)
        if refused:
            return str(refused[1])
        args, kwargs = list(rule.args or ()) or (), dict(rule.kwargs or {})
        header = getattr(task, "__header__", None)
        if header is not None and task.typing:
            header(*args, **kwargs)
        if own:
            made = self._app.amqp.create_task_message("", rule.task, args, kwargs)
            replaced = made.headers.keys() & own
            if replaced:
                return f"its options replace the header {min(replaced)}"
        arguments.args, arguments.kwargs = args, kwargs
        amqp, levels = self._app.amqp, self._repr_levels
        arguments.reprs = {
            "argsrepr": _shown(args, amqp.argsrepr_maxsize, levels) if args else "()",
            "kwargsrepr": _shown(kwargs, amqp.kwargsrepr_maxsize, levels) if kwargs else "{}",
        }
        arguments.own = {**own, "celery_beat_task": True}
        return ""


def why_not_rendered(app: Any, entry: Any) -> str:
    """Return why Celery makes the messages of an entry; see :meth:`.Schedule.why_not_rendered`."""
    conf = ensure_conf(app)
    messages, make = Messages(app, conf), checked_producer(app.amqp.Producer, conf.task_allowlist)
    with publishing_connection(app, SHORTEST_PUBLISH) as connection:
        messages.begin(make(connection, auto_declare=False))
        return messages.why_not(entry)


def _identity(rule: Rule) -> Identity:
    """Return what rules have in common that share their arguments, as those of twins do.

    No other object has one of these numbers while :class:`Arguments` keep the rule.
    """
    return rule.task, id(rule.args), id(rule.kwargs), id(rule.options)


def _other_type(value: Any) -> str:
    """Return the first type in a value that is not encoded in the same way each time, else ""."""
    values, depth = [value], 0
    while values:
        inner: list[Any] = []
        for one in values:
            kind = type(one)
            if kind in SCALARS:
                continue
            if depth == DEEPEST:
                return "something that is nested too deeply"
            if kind is dict and {*map(type, one)} <= {str}:
                inner += one.values()
            elif kind in (list, tuple):
                inner += one
            else:
                return name_of(kind)
        values, depth = inner, depth + 1
    return ""


def _shown(value: Any, most: int, levels: dict[str, int]) -> str:
    """Return arguments as Celery shows them, in at most about ``most`` characters.

    ``repr`` is many times as fast, and does the same with a flat value without text to escape.
    """
    text = repr(value)
    inner = value.values() if type(value) is dict else value
    has_escapes = "\\" in text or '"' in text
    if len(text) < most and not has_escapes and SCALARS.issuperset(map(type, inner)):
        return text
    return str(saferepr(value, most, **levels))


def _difference(rendered: Any, real: Any, at: str = "") -> str:
    """Return where a rendered message differs first, as a path of fields."""
    if type(rendered) is type(real) is str and rendered[:1] == real[:1] == "{":
        rendered, real = json.loads(rendered), json.loads(real)
    if type(rendered) is type(real) is list and len(rendered) == len(real):
        rendered, real = dict(enumerate(rendered)), dict(enumerate(real))
    if not type(rendered) is type(real) is dict:
        return at.lstrip(".") or "its queue"
    for name in {**real, **rendered}:
        pair = rendered.get(name, ...), real.get(name, ...)
        if pair[0] != pair[1]:
            return _difference(*pair, at if isinstance(name, int) else f"{at}.{name}")
    return f"{at} (the order of fields)".lstrip(". ")
