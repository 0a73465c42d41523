"""One launcher in a process of its own: `python -m remediation.launcher`, its settings as JSON on stdin.

For tests and benchmarks; people use `eagle-eye launch`.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from eagle_eye.errors import EagleEyeError
from eagle_eye.stop_signals import stop_on_signals
from eagle_eye.training.object_path import ObjectPath, StoragePath

from .launcher import run_launcher
from .launcher_settings import LauncherSettings


def read_settings(text: bytes) -> LauncherSettings:
    """Settings from JSON. Raises msgspec.ValidationError, ConfigError."""
    return msgspec.json.decode(text, type=LauncherSettings, dec_hook=_path)


def settings_json(settings: LauncherSettings) -> bytes:
    """The same settings as JSON."""
    return msgspec.json.encode(settings, enc_hook=os.fspath)


def _path(kind: type, value: object) -> Any:
    if kind is StoragePath and isinstance(value, dict):
        return ObjectPath(**value)
    if kind in (Path, StoragePath) and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"{kind} cannot be read from JSON")


async def serve(settings: LauncherSettings) -> int:
    """Run until the job is over; SIGINT, SIGTERM and SIGHUP stop it."""
    stop = asyncio.Event()
    stop_on_signals(stop.set)
    return await run_launcher(settings, stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    try:
        code = asyncio.run(serve(read_settings(sys.stdin.buffer.read())))
    except EagleEyeError as error:
        sys.exit(f"eagle-eye: {error}")
    sys.exit(code)
