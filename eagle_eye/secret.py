"""Secrets come from files or from the environment, never from the configuration, and are never printed."""

import os
import stat
from pathlib import Path

from .errors import ConfigError


def secret_of(file: str, variable: str, purpose: str) -> str:
    """What the file holds, else the variable; '' if neither is given. `purpose` names it in errors.

    Raises ConfigError for a file that cannot be read, is empty, or may be read by other users of the machine.
    """
    if not file:
        return os.environ.get(variable, "")
    path = Path(file).expanduser()
    try:
        mode = path.stat().st_mode
        words = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{path} ({purpose}) cannot be read: {reason}; name the right file, or set {variable}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        raise ConfigError(f"{path} ({purpose}) may be read or written by others: `chmod 600 {path}`")
    if not words:
        raise ConfigError(f"{path} ({purpose}) is empty; write the secret into it, or set {variable}")
    return words
