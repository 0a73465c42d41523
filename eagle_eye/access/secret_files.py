"""Files that hold secrets: for their owner alone, written whole or not at all, never shown.

A secret comes from such a file or from the environment, never from the configuration, and is never printed.
"""

import os
import secrets
import stat
from pathlib import Path

from eagle_eye.errors import ConfigError

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_private(path: Path, what: str) -> bytes:
    """The bytes of a file that only its owner may touch; `what` names its setting in errors. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if too_open(found.st_mode, owned_by_root=found.st_uid == 0, as_root=os.geteuid() == 0):
                raise ConfigError(f"{what} {path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}): chmod 600 {path}")
            return file.read()
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}; make it readable for this user") from error


def secret_of(file: str, variable: str, purpose: str) -> str:
    """What the file holds, else the variable; '' if neither is given. `purpose` names it in errors.

    Raises ConfigError for a file that cannot be read, is empty, or may be read by other users of the machine.
    """
    if not file:
        return os.environ.get(variable, "")
    path = Path(file).expanduser()
    try:
        mode = path.stat().st_mode
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{path} ({purpose}) cannot be read: {reason}; name the right file, or set {variable}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        raise ConfigError(f"{path} ({purpose}) may be read or written by others: `chmod 600 {path}`")
    if not secret:
        raise ConfigError(f"{path} ({purpose}) is empty; write the secret into it, or set {variable}")
    return secret


def too_open(mode: int, *, owned_by_root: bool, as_root: bool) -> bool:
    """Whether others may touch a file. One that root owns may be read by our group, else it could not be handed to us:
    the rule of PostgreSQL for the keys of its server."""
    allowed = stat.S_IRGRP if owned_by_root and not as_root else 0
    return bool(mode & OTHERS & ~allowed)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one of mode 0600, at once and whole. Raises ConfigError.

    Written as root it belongs to its former owner, else to the owner of the directory: the server must be
    able to read it.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        make_private_directory(path.parent)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _give_to_owner_of(path if path.exists() else path.parent, new)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def make_private_directory(path: Path) -> None:
    """The directory, made for this user alone if it is not there."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        _give_to_owner_of(path.parent, path)


def _give_to_owner_of(like: Path, path: Path) -> None:
    if os.geteuid() == 0:
        owner = like.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
