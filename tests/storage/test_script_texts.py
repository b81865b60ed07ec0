"""Redis loads each script with its included parts, under the expected SHA-1."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from redbeat.storage.scripts import INCLUDE, load_script
from tests.deployments import acl_rules

LUA = Path(str(files("redbeat"))) / "lua"
NAMES = sorted(path.stem for path in LUA.glob("*.lua"))


@pytest.mark.parametrize("name", NAMES)
def test_redis_loads_every_script_under_its_sha(redis_client: redis.Redis, name: str) -> None:
    script = load_script(name)
    assert redis_client.script_load(script.text) == script.sha


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_a_script_is_where_it_is_in_the_file(name: str) -> None:
    stored = (LUA / f"{name}.lua").read_text(encoding="utf-8").splitlines()
    loaded = load_script(name).text.splitlines()
    for line, full in zip(stored, loaded, strict=True):
        if INCLUDE.fullmatch(line):
            assert "local " in full
        else:
            assert full == line


def test_a_part_is_not_a_script() -> None:
    with pytest.raises(FileNotFoundError, match=r"digest\.lua"):
        load_script("digest")


@pytest.mark.parametrize("name", NAMES)
def test_scripts_use_no_library_that_an_older_redis_lacks(name: str) -> None:
    """Redis 6.2 and 7.0 have no ``os`` in scripts; no Redis has ``io`` or ``package``."""
    code = re.sub(r"--.*", "", load_script(name).text)
    code = code.replace("pcall(function() return os.clock end)", "")  # nil on these servers
    assert not re.findall(r"\b(?:os|io|package|debug|coroutine)\.\w+|\brequire\b", code)


@pytest.mark.parametrize("name", NAMES)
def test_scripts_use_only_commands_of_the_manuals_access_list(name: str) -> None:
    rules = acl_rules(1)  # of a user with broker and schedule on one server
    allowed = {rule[1:].upper() for rule in rules if rule.startswith("+")}
    assert set(re.findall(r"(?:redis\.p?call|side)\(\s*'(\w+)'", load_script(name).text)) <= allowed
