"""Who may see the page: credentials, addresses and hosts. No Flask here."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

__all__ = ("Access", "is_loopback", "read_users")

#: Names of this machine that a browser may use for a page on a loopback address.
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see the page, and what may be done there.

    Attributes:
        host: the address that the page is served on.
        users: names with their passwords.
        tokens: what a script sends as ``Authorization: Bearer``, and a person signs in with.
        allowed_hosts: names by which a browser may call the page, beside those of this machine.
        read_only: whether nothing can be changed.
        behind_proxy: whether the ``X-Forwarded-*`` headers of one proxy are believed.
    """

    host: str = "127.0.0.1"
    users: tuple[tuple[str, str], ...] = ()
    tokens: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: frozenset[str] = frozenset()
    read_only: bool = False
    behind_proxy: bool = False

    def __repr__(self) -> str:
        """Tell nothing that is secret."""
        return f"<{type(self).__name__} {self.host} read_only={self.read_only}>"

    @property
    def required(self) -> bool:
        """Whether credentials are asked for."""
        return bool(self.users or self.tokens)

    def user_with(self, name: str, password: str) -> str | None:
        """Return the name of the user with this password, None for nobody."""
        matches = [
            user
            for user, secret in self.users
            if _same(user, name) & _same(secret, password)  # both, so that no time tells which
        ]
        return matches[0] if matches else None

    def has_token(self, token: str) -> bool:
        """Return whether a token is one of those that were given."""
        return any(_same(known, token) for known in self.tokens)

    def admits_host(self, header: str) -> bool:
        """Return whether a browser may call the page by the name in a ``Host`` header.

        On a loopback address a name that is not of this machine is that of an attacker, who has
        pointed it here to get past the browser's rules (DNS rebinding). Elsewhere credentials keep
        them out, so that names are checked only if some are given.
        """
        if not is_loopback(self.host) and not self.allowed_hosts:
            return True
        return host_in(header) in LOCAL_NAMES | self.allowed_hosts | {host_in(self.host)}


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(
        one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass")
    )


def host_in(header: str) -> str:
    """Return the name in a ``Host`` header, without its port and its brackets."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if name.count(":") == 1 else name


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address to serve on."""
    name = host_in(host)
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def read_users(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return users and passwords in texts like ``ann:secret``; ValueError tells no password."""
    pairs = []
    for text in given:
        user, colon, password = text.partition(":")
        if not (user and colon and password):
            raise ValueError("must be USER:PASSWORD, and neither may be empty")
        pairs.append((user, password))
    return tuple(pairs)
