"""Changes to the API reference: public paths, the meaning of type names, arguments of signals.

Autodoc shows a name at the path of the module that defines the name, and shows some annotations
unchanged. This extension replaces private paths with public paths, and short names of types with
their meaning.
"""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields, is_dataclass
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from inspect import signature
from types import ModuleType
from typing import Any, get_args, get_type_hints

from celery.utils.dispatch import Signal
from docutils.nodes import Text, document
from sphinx.addnodes import desc_annotation, pending_xref
from sphinx.application import Sphinx
from sphinx.util.typing import restify

import redbeat
from redbeat import signals

#: The arguments that every signal has.
COMMON_ARGUMENTS = {"self", "signal", "sender", "more"}


def public_paths() -> dict[str, str]:
    """Return the public path of each public class and function, by its path in the code."""
    public = {name: getattr(redbeat, name) for name in redbeat.__all__ if name != "__version__"}
    return {f"{value.__module__}.{name}": f"redbeat.{name}" for name, value in public.items()}


PUBLIC = public_paths()


def shown_path(target: str) -> str | None:
    """Return the path that the manual shows for a target, or None to change nothing.

    The names ``rrule`` and ``rruleset`` alone mean the classes of RedBeat.
    """
    return target if target.startswith("dateutil.rrule.") else PUBLIC.get(target)


def link_to_public_paths(_app: Sphinx, tree: document) -> None:
    """Replace each private path of a public name, in the target and the text of a reference."""
    for reference in tree.findall(pending_xref):
        target = reference.get("reftarget", "")
        path = shown_path(target)
        if path is None:
            continue
        reference["reftarget"] = path
        replaced = {target} if target in PUBLIC else {target.rpartition(".")[2]}
        for text in list(reference.findall(Text)):
            if text in replaced:
                text.parent.replace(text, Text(path))


def hide_values_of_signals(_app: Sphinx, tree: document) -> None:
    """Remove the value of each signal, which lists the arguments in a random order."""
    for annotation in list(tree.findall(desc_annotation)):
        if "<Signal: " in annotation.astext():
            annotation.parent.remove(annotation)


def evaluate_annotations() -> None:
    """Replace the annotations of public named tuples and dataclasses with the types they name.

    Autodoc cannot evaluate the annotations of a generated constructor if they name a class that
    only type checkers import, or if the constructor does not belong to the module of the class.
    """
    public = {name: getattr(redbeat, name) for name in redbeat.__all__}
    for value in public.values():
        is_tuple = hasattr(value, "_fields")
        if is_tuple or is_dataclass(value):
            annotations = getattr(value, "__new__" if is_tuple else "__init__").__annotations__
            hints = get_type_hints(value, localns=public)
            annotations.update({name: hints[name] for name in annotations if name in hints})


def show_defaults(*event: Any) -> tuple[str, str | None] | None:
    """Show the default of a dataclass field that a function creates, instead of ``<factory>``."""
    _, _, _, value, _, arguments, returned = event
    if not arguments or "<factory>" not in arguments or not is_dataclass(value):
        return None
    for item in fields(value):
        if item.init and item.default_factory is not MISSING:
            arguments = arguments.replace("<factory>", repr(item.default_factory()), 1)
    return arguments, returned


def typed_signals() -> ModuleType:
    """Return a copy of the module of signals that has the types of the receivers."""
    spec = signals.__spec__
    assert isinstance(spec, ModuleSpec)
    assert spec.loader is not None
    typed = module_from_spec(spec)
    flags: Any = typing  # type checkers do not allow a change of TYPE_CHECKING
    before, flags.TYPE_CHECKING = flags.TYPE_CHECKING, True
    try:
        spec.loader.exec_module(typed)
    finally:
        flags.TYPE_CHECKING = before
    return typed


def receiver_arguments() -> dict[str, dict[str, Any]]:
    """Return the types of the arguments of each signal, by the names of signal and argument."""
    typed = typed_signals()
    found = {}
    for name, annotation in get_type_hints(typed).items():
        (receiver,) = get_args(annotation)
        hints = get_type_hints(receiver.__call__, vars(typed))
        parameters = signature(receiver.__call__).parameters
        found[name] = {key: hints[key] for key in parameters if key not in COMMON_ARGUMENTS}
    return found


ARGUMENTS = receiver_arguments()


def list_arguments(*event: Any) -> None:
    """Add the types of a signal's arguments to the text of the signal."""
    _, _, path, value, _, lines = event
    if isinstance(value, Signal) and lines:
        arguments = ARGUMENTS[path.rpartition(".")[2]]
        listed = [f"``{name}``: {restify(kind, 'smart')}" for name, kind in arguments.items()]
        if listed:
            lines += ["", f"Types: {', '.join(listed)}.", ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Prepare the annotations and connect to the events of the build; Sphinx calls this."""
    evaluate_annotations()
    # The type of a signal is for type checkers; the manual lists the arguments of a receiver.
    signals.__annotations__.update(dict.fromkeys(ARGUMENTS, Signal))
    app.connect("autodoc-process-signature", show_defaults)
    app.connect("autodoc-process-docstring", list_arguments)
    app.connect("doctree-read", link_to_public_paths)
    app.connect("doctree-read", hide_values_of_signals)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
