"""Changes to the API reference: public paths, types, and what each field of a policy means.

Autodoc shows a name at the path of the module that defines it, and some annotations as they are
written. Here they become public paths and types.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from inspect import signature
from typing import Any, get_type_hints

from docutils.nodes import Text, document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config

import redbeat


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


#: The arguments that a typed dict describes: of which function, and their types.
SPELLED_OUT = {
    redbeat.RedBeatSchedulerEntry.__init__: get_type_hints(redbeat.EntryArguments),
    redbeat.Schedule.find: get_type_hints(redbeat.EntryFilters),
    redbeat.Schedule.records: get_type_hints(redbeat.EntryFilters),
    redbeat.Schedule.alist: get_type_hints(redbeat.EntryFilters),
}
NAMED = {function: vars(function).pop("__signature__") for function in SPELLED_OUT}


def spell_out(_app: Sphinx, function: Any, _bound: bool) -> None:
    """Put these arguments back, which autodoc doesn't find in the source code."""
    if function in SPELLED_OUT:
        *given, _rest = signature(function).parameters.values()
        keywords = [
            NAMED[function].parameters[name].replace(annotation=type_)
            for name, type_ in SPELLED_OUT[function].items()
        ]
        named = NAMED[function].replace(parameters=[*given, *keywords])
        vars(function)["__signature__"] = named


def describe_policy(*event: Any) -> None:
    """Add what each field of a policy means, from the description that the commands show too."""
    _, _, _, value, _, lines = event
    if value is redbeat.Policy:
        lines += [
            line
            for item in fields(value)
            for line in (f"``{item.name}``", f"   {item.metadata['description']}", "")
        ]


def put_each_argument_on_a_line(_app: Sphinx, config: Config) -> None:
    """Only where they don't fit into one."""
    config.python_maximum_signature_line_length = 100


def show_defaults(*event: Any) -> tuple[str, str | None] | None:
    """Show the default of a dataclass field that a function creates, instead of ``<factory>``."""
    _, _, _, value, _, arguments, returned = event
    if not arguments or "<factory>" not in arguments or not is_dataclass(value):
        return None
    for item in fields(value):
        if item.init and item.default_factory is not MISSING:
            arguments = arguments.replace("<factory>", repr(item.default_factory()), 1)
    return arguments, returned


def setup(app: Sphinx) -> dict[str, Any]:
    """Prepare the annotations and connect to the events of the build; Sphinx calls this."""
    evaluate_annotations()
    app.connect("config-inited", put_each_argument_on_a_line)
    app.connect("autodoc-before-process-signature", spell_out, priority=600)  # after autodoc's own
    app.connect("autodoc-process-docstring", describe_policy)
    app.connect("autodoc-process-signature", show_defaults)
    app.connect("doctree-read", link_to_public_paths)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
