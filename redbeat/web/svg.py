"""Elements of SVG as safe markup.

Nothing here has a ``style`` attribute or a script, so that the strictest Content-Security-Policy
lets it pass. Across, positions are parts of the width in percent, so that a chart fills any screen
while its text keeps its size; down, they are pixels.
"""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

__all__ = ("element", "group", "percent")


def element(tag: str, *content: str, **attributes: Any) -> Markup:
    """Return an element with all text and attributes escaped, but for content that is markup.

    Attributes are written as in HTML, but ``class_`` for ``class`` and ``_`` for ``-``; those that
    are None are left out.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), value)
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), written, Markup("").join(content))


def group(*content: str, class_: str | None = None) -> Markup:
    """Return elements that belong together."""
    return element("g", *content, class_=class_)


def percent(position: float) -> str:
    """Return a part of the width, from 0 to 1, as an attribute of SVG."""
    return f"{position * 100:.3f}".rstrip("0").rstrip(".") + "%"
