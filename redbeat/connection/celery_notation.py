"""Translates Sentinel settings in the notation of early RedBeat versions to that of Celery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from celery import Celery

from .options import check_options, inherited_options
from .urls import parse_url, safe_url, url_scheme

DEFAULT_SERVICE: Final = "master"
SENTINEL_PORT: Final = 26379

#: These stand for the passwords of the servers and of the Sentinels, because errors are logged.
PLACEHOLDER, OF_SENTINELS = "<password>", "<password of the Sentinels>"

#: The options that are parts of the URL in Celery's notation, or have another name.
MOVED: Final = ("sentinels", "password", "username", "db", "service_name", "master_name")


def sentinel_problem(app: Celery) -> str:
    """Return why Celery cannot use its Sentinel URLs, and what to write; "" if it can use them.

    The text ends with lines of Python, which name the Sentinels that ``app`` means.
    """
    wrong = [name for name in ("broker_url", "result_backend") if _is_foreign(app, name)]
    if not wrong:
        return ""
    url = safe_url(getattr(app.conf, wrong[0]))
    code = "\n".join(line for name in wrong for line in _translated(app, name))
    note = f", with the password in the place of {PLACEHOLDER} ('@' as %40, '/' as %2F)"
    note = note if PLACEHOLDER in code else ""
    return f"{wrong[0]} is {url!r}, which Celery cannot use. Write these settings{note}:\n{code}"


def _options_of(setting: str) -> str:
    return f"{setting.removesuffix('_url')}_transport_options"


def _is_foreign(app: Celery, setting: str) -> bool:
    scheme = url_scheme(str(getattr(app.conf, setting)))
    options = getattr(app.conf, _options_of(setting)) or {}
    half = scheme == "sentinel" and "sentinels" in options and "master_name" not in options
    return scheme == "redis-sentinel" or half


def _translated(app: Celery, setting: str) -> Iterator[str]:
    options_setting = _options_of(setting)
    options: Mapping[str, Any] = getattr(app.conf, options_setting) or {}
    known = check_options(inherited_options(options), options_setting)
    addresses = parse_url(getattr(app.conf, setting), setting)
    user = quote(known.get("username") or addresses[0].username or "", safe="")
    has_password = known.get("password") or addresses[0].password
    login = f"{user}:{PLACEHOLDER}@" if has_password else ""
    database = addresses[0].path.strip("/") or known.get("db", 0)
    hosts = known.get("sentinels") or [(one.host or "localhost", one.port) for one in addresses]
    urls = [f"sentinel://{login}{_host(*host)}/{database}" for host in hosts]
    master = known.get("service_name") or known.get("master_name") or DEFAULT_SERVICE
    rest = {name: _shown(options[name]) for name in options if name not in MOVED}
    yield f"{_spelling(app, setting)} = {';'.join(urls)!r}"
    yield f"{_spelling(app, options_setting)} = { {'master_name': master, **rest}!r}"


def _host(host: str, port: int | None) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port or SENTINEL_PORT}"


def _shown(value: Any) -> Any:
    has_password = isinstance(value, Mapping) and value.get("password")
    return {**value, "password": OF_SENTINELS} if has_password else value


def _spelling(app: Celery, setting: str) -> str:
    """Return the name of a setting as the user writes it, because Celery accepts no mixture."""
    names = (str(name) for source in app.conf.maps[:-1] for name in source)
    return next((name for name in names if name.lower().endswith(setting)), setting)
