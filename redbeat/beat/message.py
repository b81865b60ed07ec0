"""Renders the messages of runs: as Celery makes them, without Celery's work for each message.

Celery makes the first message of a task and its options; the next ones differ from it in a few
fields, which :meth:`Messages.render` fills in. If something else has a say in a message, see
``surroundings.py``, Celery makes it. Some messages are made both ways and compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import random
from typing import TYPE_CHECKING, Any, Final

from celery.utils.saferepr import saferepr
from kombu.utils.json import JSONEncoder

from redbeat.entries.lazy import SCALARS
from redbeat.printing import get_logger

from .surroundings import Seen, Surroundings, name_of

if TYPE_CHECKING:
    from redbeat.config import RedBeatConfig
    from redbeat.entries.run import Rule

logger = get_logger("celery.beat")

#: A broker's command with its arguments.
Command = list[Any]

#: The task of a rule, and which objects its arguments and options are.
Identity = tuple[str, int, int, int]

#: The setting that limits how deeply Celery shows the arguments of a task.
REPR_LEVELS: Final = "task_repr_maxlevels"

#: In a turn with fewer runs, Celery makes all messages: there is nothing to gain.
FEWEST_RUNS: Final = 10

#: The first messages with a template are compared with Celery's, then one in ``ONE_IN``.
PROOFS: Final = 2
ONE_IN: Final = 100

#: The maximum number of templates, and of rules whose arguments are kept encoded.
MOST_KEPT: Final = 10_000

#: Values with more levels are left to Celery.
DEEPEST: Final = 100

#: A longer body is encoded for each message.
LONGEST_KEPT: Final = 1 << 14


@dataclass(slots=True)
class Template:
    """What the messages of a task with some options have in common.

    Attributes:
        seen: what Celery read when this template was made; in ``turn`` Celery still reads it.
        why: why Celery makes these messages, else "".
        proofs: how many messages were the same as Celery's.
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
        self._encode = JSONEncoder().encode
        self._tag: Callable[[], str] = str
        self._turn, self._few = 0, True
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
        self._few = producer is None
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
        return self._commands(arguments, headers, task_id, self._tag())

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
        return [["LPUSH", template.list, self._encode(message)]]

    def _body(self, arguments: Arguments) -> str:
        value = (arguments.args, arguments.kwargs, arguments.template.embedded)
        channel = self._around.channel
        body, _ = channel.encode_body(self._encode(value), channel.body_encoding)
        if len(body) <= LONGEST_KEPT:
            arguments.body = body
        return str(body)

    # -- proof -----------------------------------------------------------------------------------

    def learn(
        self, rule: Rule, headers: Mapping[str, Any], task_id: str, commands: list[Command]
    ) -> None:
        """Learn from a message that Celery made, or compare it with the rendered one.

        ``headers`` and ``task_id`` are what :meth:`render` got, ``commands`` are what was captured;
        they are empty if the message has left in another way.
        """
        if self._few or self._around.why or not commands:
            return
        arguments = self._arguments_of(rule)
        if arguments.why:
            return
        template = arguments.template
        try:
            if not template.proofs:
                self._learn(template, commands, {**headers, **arguments.own})
            tag = json.loads(commands[0][2])["properties"]["delivery_tag"]
            rendered = self._commands(arguments, headers, task_id, tag)
        except (ValueError, TypeError, LookupError, AttributeError):
            rendered = None
        if rendered == commands:
            template.proofs += 1
        elif not template.proofs:
            template.why = "its messages do not have the usual form"
            self._arguments.clear()
        elif not self._look_around() and self._is_valid(template):  # Celery reads what it did then
            self._distrust(rule, rendered, commands)

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
            self._tag = getattr(self._around.channel, "_next_delivery_tag", str)
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
            template.why = f"what Celery would do is not known: {error!r}"
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
