"""The directive ``redbeat-settings``: a table of all settings, made from the package's own."""

from __future__ import annotations

from typing import Any

from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from redbeat.settings import SETTINGS, Setting

#: Three columns: a table with more is wider than the text of the page, and so cut off.
HEAD = """\
.. list-table::
   :header-rows: 1
   :widths: 30 35 35

   * - Setting
     - Meaning
     - Type, default, first version
"""


def row(name: str, setting: Setting) -> str:
    """Return the row of a setting, in reStructuredText."""
    unit = f"; {setting.unit}" if setting.unit else ""
    values = (setting.type + unit, f"Default: {setting.default}", f"Since {setting.since}")
    block = "\n       ".join(f"| {value}" for value in values)
    return f"   * - ``{name}``\n     - {setting.meaning}\n     - {block}\n"


class SettingsTable(SphinxDirective):
    """Render one row for each setting, in the order of the table in the code."""

    def run(self) -> list[Node]:
        """Return the table."""
        rows = "".join(row(name, setting) for name, setting in SETTINGS.items())
        return self.parse_text_to_nodes(HEAD + rows)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive; Sphinx calls this."""
    app.add_directive("redbeat-settings", SettingsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
