"""The agent's process, and the pid file that keeps a second agent out of the same run directory."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from collectors.agent.agent import run_agent
from eagle_eye import plugins
from eagle_eye.app.plugin_wiring import log_to_stderr, make_directories
from eagle_eye.app.termination import termination_event
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.open_file_limit import raise_open_file_limit
from eagle_eye.training import atomic_file
from eagle_eye.training.ring_buffer import is_alive, start_time_of

PID_FILE = "agent.pid"
"""In the run directory of the node: `pid start-time` of the agent, so that a recycled pid is not taken for it."""


def serve(config: Config, node: str, server: str) -> None:
    """Run this node's agent until Ctrl-C or SIGTERM. Raises ConfigError or PluginError."""
    log_to_stderr()
    raise_open_file_limit()
    make_directories(config)
    stop = termination_event()
    with _pid_file(config.run / PID_FILE):
        run_agent(config, stop, node=node, server=server)


def left_out(config: Config, names: Sequence[str]) -> Config:
    """The configuration without these collectors. Raises ConfigError for an unknown one."""
    known = plugins.available("collectors")
    if unknown := [name for name in names if name not in known and name not in config.collectors]:
        raise ConfigError(f"--without {unknown[0]}: there is no such collector; there are {', '.join(known)}")
    off = {name: {**config.collectors.get(name, {}), "enabled": False} for name in names}
    return msgspec.structs.replace(config, collectors={**config.collectors, **off})


@contextlib.contextmanager
def _pid_file(path: Path) -> Iterator[None]:
    """Name this process in the file while the block lasts. Raises ConfigError when another one that lives is named."""
    other = running_pid(path)
    if other is not None:
        raise ConfigError(f"process {other} is already running here, according to {path}: end it first, or choose another --run-dir")
    atomic_file.replace(path, f"{os.getpid()} {start_time_of(os.getpid())}\n".encode(), durable=False)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running_pid(path: Path) -> int | None:
    """Pid of the process that the file names; None when there is no file, or that process is gone."""
    with contextlib.suppress(OSError, ValueError):
        pid, start_time = (int(number) for number in path.read_text().split())
        if is_alive(pid, start_time):
            return pid
    return None
