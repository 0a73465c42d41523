"""What a connection itself proves about the process at its other end: a certificate, or the user that it runs as on this machine."""

import os
import pwd
from collections.abc import Iterable
from ipaddress import ip_address

import msgspec

from .certificates import Identity
from .peer_credentials import SocketAddress, user_of

FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip", "x-original-forwarded-for"})
FORWARDED_PREFIXES = ("x-forwarded", "x-envoy-")
"""Headers by which a proxy says that it speaks for somebody else (RFC 7239, RFC 9110 section 7.6.3, and what proxies and clouds have of
their own): then the caller is not on this machine."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, as far as it is proved; nothing in it came in a message."""

    certificate: Identity | None = None
    """Of mutual TLS; None without."""
    local: bool = False
    """It runs on this machine, and speaks for itself."""
    user: int | None = None
    """Whose process it is; None: not known."""

    @property
    def proved(self) -> bool:
        """Whether anything about it is known that it did not say itself; never so where the configuration allows everybody."""
        return self.certificate is not None or self.local

    @property
    def owns_server(self) -> bool:
        """It runs as we do, or as root: it could change our files and memory anyway."""
        return self.local and self.user in (0, os.geteuid())

    def __str__(self) -> str:
        if self.certificate is not None:
            return f"the certificate of {self.certificate}"
        return user_name(self.user) if self.local else "a caller without a certificate"


def speaks_for_itself(host: str, headers: Iterable[str] = ()) -> bool:
    """Whether a caller at this address is on this machine, and no proxy. `headers`: the names of those of its request."""
    try:
        loopback = ip_address(SocketAddress(host, 0).plain.host).is_loopback
    except ValueError:
        return False
    return loopback and not any(name.lower() in FORWARDED or name.lower().startswith(FORWARDED_PREFIXES) for name in headers)


def local_caller(host: str, port: int, server_port: int) -> Caller:
    """Of a connection within this machine, from host:port to our port. Reads the kernel's table of connections."""
    return Caller(local=True, user=user_of(SocketAddress(host, port), server_port))


def this_process() -> Caller:
    """A call without a connection."""
    return Caller(local=True, user=os.geteuid())


def user_name(user: int | None) -> str:
    """How messages name a user of this machine."""
    if user is None:
        return "a user who cannot be told"
    try:
        return f"the user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"the user {user}"
