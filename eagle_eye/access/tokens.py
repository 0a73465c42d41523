"""Tokens of people: a TOML file that holds their hashes, one table a person.

    [ada]
    role = "operator"
    hash = "sha256:…"
    made = 2025-01-01T00:00:00Z
    expires = 2025-02-01T00:00:00Z   # optional
    tenant = "team"                  # optional: only this tenant's jobs

A token has 256 random bits, so one round of SHA-256 keeps it: there is nothing to guess that a slow hash would slow.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import AccessConfig, Config
from eagle_eye.errors import UNREADABLE, ConfigError, NotAuthenticated

from .roles import Person, Role
from .secret_files import read_private, secret_of, write_private

log = logging.getLogger(__name__)

VARIABLE = "EAGLE_EYE_TOKEN"
PREFIX = "eet_"
"""Lets a scanner for leaked secrets know one."""
NAME = re.compile(r"\w[\w.@+-]{0,99}")
SETTING = "access.tokens_file"


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the file knows of one person."""

    role: Role
    hash: str
    made: datetime | None = None
    expires: datetime | None = None
    tenant: str = ""

    def expired(self, now: float) -> bool:
        """Whether the token is of no use any more. `now`: seconds since 1970."""
        return self.expires is not None and self.expires.timestamp() <= now


Entries = Mapping[str, TokenRecord]


def tokens_path(config: Config) -> Path:
    """Where a deployment's tokens are."""
    given = config.access.tokens_file
    return Path(given).expanduser() if given else config.state / "tokens" / "tokens.toml"


class Tokens:
    """Who a token belongs to. The file is read again when it has changed; while it cannot be read, all requests are refused."""

    def __init__(self, path: Path, clock: Clock, *, promised: bool = False) -> None:
        """`promised`: the configuration names the file, so that it must be there. Raises ConfigError."""
        self._path = path
        self._clock = clock
        self._promised = promised
        self._state: tuple[int, ...] | None = None
        self._entries: Entries = {}
        self._broken = ""
        self._look()
        if self._broken:
            raise ConfigError(self._broken)

    @classmethod
    def of(cls, config: Config, clock: Clock) -> Self:
        """A deployment's tokens; without a file they are not `configured`. Raises ConfigError."""
        return cls(tokens_path(config), clock, promised=bool(config.access.tokens_file))

    @classmethod
    def none(cls) -> Self:
        """No tokens, and none will be configured."""
        return cls(Path(os.devnull) / "none", SystemClock())

    @property
    def configured(self) -> bool:
        """Whether requests need a token. Once true it stays so: if the file is removed, all requests are refused."""
        self._look()
        return self._promised

    def person(self, token: str) -> Person:
        """Whose token it is. Raises NotAuthenticated; the message never holds the token."""
        self._look()
        if self._broken:
            raise NotAuthenticated("all requests are refused: the server cannot read its tokens file; see the server's log")
        if not token:
            raise NotAuthenticated(
                f"the request has no token: set {VARIABLE}, or name a file in access.token_file (over HTTP: `Authorization: Bearer TOKEN`); "
                "`eagle-eye token add NAME` on the server's machine makes one"
            )
        name = self._owner(hash_of(token))
        if not name:
            raise NotAuthenticated("this token is not known here: it is wrong, or was removed")
        entry = self._entries[name]
        if entry.expired(self._clock.now()):
            raise NotAuthenticated(f"the token of {name} expired on {entry.expires:%Y-%m-%d %H:%M} UTC: ask for a new one")
        return Person(name=name, role=entry.role, tenant=entry.tenant)

    def _owner(self, shown: str) -> str:
        """The name, '' if none; always as long as it takes to compare with all of them."""
        found = ""
        for name, entry in self._entries.items():
            if hmac.compare_digest(entry.hash.encode(), shown.encode()):
                found = name
        return found

    def _look(self) -> None:
        state = _state_of(self._path)
        if state == self._state:
            return
        self._state, self._promised = state, self._promised or bool(state)
        try:
            self._entries, self._broken = read_entries(self._path) if self._promised else {}, ""
        except ConfigError as error:
            self._entries, self._broken = {}, str(error)
            log.error("all requests are refused: %s", error)  # noqa: TRY400  # the message is enough, and holds no secret


def _state_of(path: Path) -> tuple[int, ...]:
    """What changes when the file does; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


def hash_of(token: str) -> str:
    """As it stands in the file."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


# --- the file --------------------------------------------------------------------------------------------------------


def read_entries(path: Path) -> dict[str, TokenRecord]:
    """Everybody in the file. Raises ConfigError if it cannot be read, is open to others, or holds nonsense."""
    data = read_private(path, SETTING)
    try:
        return msgspec.toml.decode(data, type=dict[str, TokenRecord])
    except UNREADABLE as error:
        raise ConfigError(f"{SETTING} {path}: {error}; mend the line, or make people anew with `eagle-eye token add`") from None


def add_person(path: Path, name: str, role: Role, *, now: float, expires: float | None = None, tenant: str = "") -> str:
    """Write a new person into the file and return the token, which is kept nowhere. Raises ConfigError.

    `now`, `expires`: seconds since 1970; None: the token does not expire.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not usable as a name: letters, digits and . _ @ + -, at most 100")
    entries = read_entries(path) if path.exists() else {}
    if name in entries:
        raise ConfigError(f"{name} has a token already: remove it first with `eagle-eye token remove {name}`")
    token = PREFIX + secrets.token_urlsafe(32)
    until = None if expires is None else _moment(expires)
    entries[name] = TokenRecord(role=role, hash=hash_of(token), made=_moment(now), expires=until, tenant=tenant)
    _write(path, entries)
    return token


def remove_person(path: Path, name: str) -> None:
    """Revoke a person's token; it is refused from the next call on. Raises ConfigError."""
    entries = read_entries(path)
    if name not in entries:
        raise ConfigError(f"{name!r} has no token in {path}; `eagle-eye token list` shows who has")
    del entries[name]
    _write(path, entries)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def _write(path: Path, entries: Entries) -> None:
    write_private(path, b"# `eagle-eye token` writes this file. Hashes only: a lost token is replaced, not read.\n" + msgspec.toml.encode(entries))


# --- one's own -------------------------------------------------------------------------------------------------------


def own_token(access: AccessConfig) -> str:
    """The token of the person who runs this command; '' if there is none. Raises ConfigError for a file that is open to others."""
    return secret_of(access.token_file, VARIABLE, "access.token_file").strip()
