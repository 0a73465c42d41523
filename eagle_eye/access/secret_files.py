"""Files that hold secrets: for their owner alone, written whole or not at all, never shown."""

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
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & OTHERS:
                raise ConfigError(f"{what} {path} is open to others (mode {mode:04o}): chmod 600 {path}")
            return file.read()
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}; make it readable for this user") from error


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one of mode 0600, at once and whole. Raises ConfigError.

    Written as root it belongs to whoever owns the directory: the server must be able to read it.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        make_private_directory(path.parent)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _give_to_owner_of(path.parent, new)
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


def _give_to_owner_of(directory: Path, path: Path) -> None:
    if os.geteuid() == 0:
        owner = directory.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
