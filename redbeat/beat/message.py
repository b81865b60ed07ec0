"""Makes the messages of runs: as Celery does, or rendered without Celery's work for each one.

Celery makes the first message of a task and its options. The next ones differ in a few fields,
which :meth:`Messages.render` fills in. If something else has a say in a message (see
``surroundings.py``), Celery makes it. Some are made both ways and compared.
"""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
from redbeat.entries.decide import task_id_of
from redbeat.entries.definition import SCALARS, TIMES, evaluated, seconds_of
from redbeat.entries.run import Rule, Run
from redbeat.entries.verdicts import Send
from redbeat.entry import check_allowed
from redbeat.errors import described
from redbeat.printing import get_logger
from redbeat.settings import is_number

from .surroundings import Seen, Surroundings, name_of

logger = get_logger("celery.beat")

#: The message header with the entry's key, only for entries whose runs must not overlap.
OVERLAP_HEADER = "redbeat_overlap"

#: Kombu retries a failed publish once, at once: enough if the broker had closed an idle connection.
#: If that fails too, a later tick sends the run.
ONE_RETRY: Final[dict[str, float]] = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}

#: The timeout options that an entry may set, and their maximum in seconds. An attempt's default
#: timeout is no longer than that.
BOUNDED_OPTIONS = frozenset(("timeout", "confirm_timeout"))
LONGEST_TIMEOUT = 5.0

Command = list[Any]

Identity = tuple[str, int, int, int]

#: Celery's setting for how deeply it shows the arguments of a task.
REPR_LEVELS: Final = "task_repr_maxlevels"

#: With fewer runs in a turn, rendering gains nothing, so Celery makes all messages.
FEWEST_RUNS: Final = 10

#: A template's first messages are compared with Celery's, then one in ``ONE_IN``, and the first
#: one after ``PROVED_FOR`` seconds without a comparison.
PROOFS: Final = 2
ONE_IN: Final = 100
PROVED_FOR: Final = 60.0

#: How many templates to keep, and how many rules' encoded arguments.
MOST_KEPT: Final = 10_000

#: How many levels a value may have; deeper ones are left to Celery.
DEEPEST: Final = 100

#: How long a body may be, in characters, to be kept encoded.
LONGEST_KEPT: Final = 1 << 14


# -- messages that Celery makes --------------------------------------------------------------------


def headers_of(rule: Rule, send: Send, iso: str) -> dict[str, Any]:
    """The headers of a run's message, without those in the options of its entry.

    ``iso`` is the run's nominal time in ISO 8601. ``docs/messages.rst`` describes the headers.
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
    """Arguments of ``apply_async`` for a run; those ``given`` by its entry win."""
    chosen = sendable_options(given) if given else {}
    options = retry_options(chosen, at_most_once)
    own = dict(chosen.get("headers") or {})  # RedBeat 2 also takes pairs
    options["headers"] = {**headers, **own, "celery_beat_task": True}
    if task_id:
        options["task_id"] = chosen.get("task_id") or task_id
    return options


def name_run(run: Run, send: Send, prefix: str) -> None:
    """Give a run its headers, and its task id: the same each time it is sent.

    An id in the entry's options wins.
    """
    rule, iso = run.rule, send.at.isoformat()
    run.headers = headers_of(rule, send, iso)
    if send.held is not None:
        run.own_id = send.held.id
    elif send.kind == "triggered":
        run.own_id = task_id_of(prefix, rule.name, f"trigger {send.id}")
    else:
        run.own_id = task_id_of(prefix, rule.name, iso, run.state.identity)
    run.task_id = str((rule.options or {}).get("task_id") or run.own_id)


def publish(scheduler: Any, entry: Any, options: dict[str, Any], producer: Any) -> Any:
    """Publish the message of an entry or a rule, and return what Celery returns.

    Functions among the task's arguments are called first. Raises Celery's ``SchedulingError``,
    caused by the error of the broker or of user code, :exc:`LazyArgumentError` if such a function
    raises, and :exc:`NotAllowedError` if ``redbeat_task_allowlist`` doesn't allow the task.
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
    """The times in a message that Celery computes from seconds, by this host's clock."""
    expires = options.get("expires", getattr(task, "expires", None))
    names = ["expires"] if isinstance(expires, (int, float)) else []
    return names if options.get("countdown") is None else [*names, "eta"]


def sendable_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Message options with times of types that ``apply_async`` accepts. Invalid ones stay as is.

    An ``eta`` in seconds becomes a ``countdown``, unless there is one: that wins, as in Celery.
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
    """Options of ``apply_async`` that limit how often and how long a publish is tried.

    There are two attempts, but only one if ``at_most_once``, or if the entry's ``retry_policy``
    sets ``max_retries`` to 0. An entry can't ask for more. ``timeout`` and ``confirm_timeout`` are
    at most :data:`LONGEST_TIMEOUT` seconds. The other fields of ``retry_policy`` are removed:
    kombu would store them in the connection and apply them to all entries.
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
    """What a task's messages with the same options have in common.

    Attributes:
        seen: what Celery read when this template was made; in ``turn`` it still reads the same.
        why: why Celery makes these messages, else "".
        proofs: how many messages were the same as Celery's.
        proved_at: the local time of the turn with the last one, in monotonic seconds; long ago if
            the next message is compared by chance.
        list: the Redis key to which the messages go.
        message: the first message, with its parts ``headers`` (without those of the run) and
            ``properties``; ``embedded`` is the end of its body.
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
    """A rule's arguments as its messages have them; twins of the rule share them.

    ``why`` is why Celery makes these messages, else "". ``reprs`` are the headers that show the
    arguments. ``own`` are the last headers: those of the options, and the beat's sign. ``body`` is
    "" until it is known, or if it's too long to be kept.
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
    """Makes the broker commands of one beat's messages."""

    def __init__(self, app: Any, conf: RedBeatConfig) -> None:
        self._app, self._conf = app, conf
        self._around = Surroundings(app)
        self._random = random
        self._chunks = json_chunks(JSONEncoder())
        self._turn, self._few, self._began_at = 0, True, 0.0
        self._repr_levels: dict[str, int] = {}
        self._templates: dict[tuple[str, str], Template] = {}
        self._arguments = OrderedDict[Identity, Arguments]()
        #: Tasks with a rendered message that differed from Celery's.
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
        """The commands that send one run's message, None if Celery should make it.

        ``headers`` are the run's; those in the entry's options win. ``task_id`` is the one in the
        options, if there is one. The commands are as Redis gets them, with the broker's key prefix.
        After None, give :meth:`learn` what Celery made; until then, the answer stays None.
        """
        if self._few or self._around.why:
            return None
        arguments = self._arguments.get(_identity(rule))
        if arguments is None or arguments.template.turn != self._turn:
            arguments = self._arguments_of(rule)
        template = arguments.template
        if arguments.why or template.proofs < PROOFS:
            return None
        if self._random() * ONE_IN < 1:
            template.proved_at = -math.inf  # so that Celery makes the next message
        if self._began_at - template.proved_at > PROVED_FOR:
            return None
        tag = os.urandom(16).hex()  # written like kombu's, which is a UUID
        tag = f"{tag[:8]}-{tag[8:12]}-{tag[12:16]}-{tag[16:20]}-{tag[20:]}"
        return self._commands(arguments, headers, task_id, tag)

    @property
    def renders(self) -> bool:
        """Whether anything is rendered in this turn; see ``surroundings.py``."""
        return not (self._few or self._around.why)

    def source_of(self, rule: Rule) -> object:
        """What the next message of a rule is rendered from, None if Celery makes it.

        Another object means that something has changed since.
        """
        arguments = self._arguments.get(_identity(rule))
        if arguments is None or arguments.why or not self.renders:
            return None
        return arguments if self._is_valid(arguments.template) else None

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
        """Why Celery makes the messages of a rule or an entry, "" if they are rendered."""
        return self._around.why or self._arguments_of(rule).why

    # -- proof -----------------------------------------------------------------------------------

    def learn(
        self, rule: Rule, headers: Mapping[str, Any], task_id: str, commands: list[Command]
    ) -> bool:
        """Learn from a message that Celery made, or compare it; return whether the two differ.

        ``headers`` and ``task_id`` are what :meth:`render` got. ``commands`` are what was captured,
        empty if the message left some other way.
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
        elif not self._look_around() and self._is_valid(template):  # Celery still reads the same
            self._distrust(rule, rendered, commands)
            return True
        return False

    def _learn(
        self, template: Template, commands: list[Command], headers: Mapping[str, Any]
    ) -> None:
        """Fill a template from Celery's message; an unusual form may raise any error."""
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
        """Begin a turn. If anything has changed, forget everything and return True."""
        self._turn += 1
        is_changed, conf = self._around.look(), self._app.conf
        if REPR_LEVELS in conf:  # only newer versions of Celery have it
            self._repr_levels = {"maxlevels": conf[REPR_LEVELS]}
        if is_changed:
            self._forget()
        return is_changed

    def _forget(self) -> None:
        self._templates.clear()
        self._arguments.clear()

    def _is_valid(self, template: Template) -> bool:
        """Whether Celery still reads what it read when a template was made."""
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
            self._arguments.popitem(last=False)  # a dict would search for its first key
        self._arguments[identity] = arguments
        return arguments

    def _fill(self, arguments: Arguments, task: Any) -> str:
        """Check and show a rule's arguments as Celery does; return why that fails, else ""."""
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
    """Why Celery makes an entry's messages; see :meth:`.Schedule.why_not_rendered`."""
    conf = ensure_conf(app)
    messages, make = Messages(app, conf), checked_producer(app.amqp.Producer, conf.task_allowlist)
    with publishing_connection(app, SHORTEST_PUBLISH) as connection:
        messages.begin(make(connection, auto_declare=False))
        return messages.why_not(entry)


def _identity(rule: Rule) -> Identity:
    """What rules must have in common to share their arguments, as twins do.

    While :class:`Arguments` keep the rule, no other object has one of these ids.
    """
    return rule.task, id(rule.args), id(rule.kwargs), id(rule.options)


def _other_type(value: Any) -> str:
    """The first type in a value that is not encoded the same way each time, else ""."""
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
    """Arguments as Celery shows them, in at most about ``most`` characters.

    For a flat value with nothing to escape ``repr`` does the same, many times as fast.
    """
    text = repr(value)
    inner = value.values() if type(value) is dict else value
    has_escapes = "\\" in text or '"' in text
    if len(text) < most and not has_escapes and SCALARS.issuperset(map(type, inner)):
        return text
    return str(saferepr(value, most, **levels))


def _difference(rendered: Any, real: Any, at: str = "") -> str:
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
