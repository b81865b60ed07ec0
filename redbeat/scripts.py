"""The Lua scripts in ``redbeat/lua``, one file per change of state, loaded by name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError

__all__ = ("Script", "load_script")

Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """The text of a script and the SHA-1 under which Redis caches it."""

    name: str
    text: str
    sha: str

    def __call__(self, client: Any, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Run the script; strings in the reply are bytes.

        One round trip, two when the server does not have the script cached yet.
        """
        options = {NEVER_DECODE: True}
        rest = (len(keys), *keys, *args)
        try:
            return client.execute_command("EVALSHA", self.sha, *rest, **options)
        except NoScriptError:
            return client.execute_command("EVAL", self.text, *rest, **options)


@cache
def load_script(name: str) -> Script:
    """Return the script in ``redbeat/lua/<name>.lua``."""
    text = files("redbeat").joinpath("lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
