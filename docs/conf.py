"""How Sphinx builds the documentation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

project = "RedBeat"
author = "the RedBeat developers"
copyright = author
release = "3.0.0.dev0"
version = "3.0"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "dark_pictures",
    "file_links",
    "redbeat_reference",
]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
# Links into other manuals need a list of the names there. Without a network, Sphinx reads the list
# in _inventories, which has the names that this manual uses.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", (None, "_inventories/python.inv")),
    "celery": ("https://docs.celeryq.dev/en/stable", (None, "_inventories/celery.inv")),
    "dateutil": ("https://dateutil.readthedocs.io/en/stable", (None, "_inventories/dateutil.inv")),
    "flask": ("https://flask.palletsprojects.com/en/stable", (None, "_inventories/flask.inv")),
    "kombu": (
        "https://docs.celeryq.dev/projects/kombu/en/stable",
        (None, "_inventories/kombu.inv"),
    ),
    "redis": ("https://redis.readthedocs.io/en/stable", (None, "_inventories/redis.inv")),
}
intersphinx_timeout = 5
# Every reference must resolve, except these.
nitpicky = True
nitpick_ignore_regex = [
    # Celery's manual has no such names.
    ("py:class", r"(celery\.schedules\.)?BaseSchedule|celery\.schedules\.schedstate"),
    # dateutil's manual has no such name.
    ("py:class", r"dateutil\._common\.weekday"),
    # Type variables.
    ("py:class", r"redbeat\.entry\.Self|redbeat\.codec\.types\.S"),
]
#: Names in annotations that other manuals list under another name.
LISTED_AS = {
    "AsyncResult": "celery.result.AsyncResult",
    "Producer": "kombu.Producer",
    "celery.app.base.Celery": "celery.Celery",
    "celery.utils.dispatch.signal.Signal": "celery.utils.dispatch.Signal",
    "datetime": "datetime.datetime",
    "flask.app.Flask": "flask.Flask",
    "redis.client.Redis": "redis.Redis",
    "timedelta": "datetime.timedelta",
}
html_theme = "furo"
html_title = f"RedBeat {release}"
html_static_path = ["_static"]
html_css_files = ["manual.css"]


def resolve_short_name(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Return the link of a name without its module, such as ``InvalidEntryError``, or None.

    Changes a name in ``LISTED_AS``, which intersphinx resolves next.
    """
    if node.get("refdomain") != "py" or not node.get("reftype"):
        return None
    node["reftarget"] = LISTED_AS.get(node["reftarget"], node["reftarget"])
    node["refspecific"] = True
    domain = env.domains["py"]
    kind, target = node["reftype"], node["reftarget"]
    found = domain.find_obj(env, None, None, target, kind, 1)
    if len([name for name, entry in found if not entry.aliased]) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, kind, target, node, contnode)


def drop_field_numbers(*event: Any) -> None:
    """Remove the generated text of a named tuple's field: "Alias for field number 0"."""
    lines: list[str] = event[-1]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def setup(app: Any) -> None:
    """Connect to the events of the build; Sphinx calls this."""
    app.connect("autodoc-process-docstring", drop_field_numbers)
    app.connect("missing-reference", resolve_short_name, priority=100)  # before intersphinx
