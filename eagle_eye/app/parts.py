"""Builds the parts of each process from one configuration."""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collectors.agent import run_agent as serve_agent
from eagle_eye import plugins
from eagle_eye.clock import Clock
from eagle_eye.config import Config, Options
from eagle_eye.errors import ConfigError, PluginError
from eagle_eye.protocols import Action, Detector, Guard
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.training.ring import start_time_of
from remediation import guards as guard_room
from remediation.launcher.launcher import run_launcher as serve_launcher
from remediation.launcher.settings import LauncherSettings
from remediation.policy import Policy

TABLES = {"collectors": "collectors", "detectors": "detectors", "guards": "remediation.guards", "actions": "remediation.actions"}
"""Table of the configuration → room of the plugins."""
SCHEDULE = ("interval_s", "timeout_s")
"""Options that every collector takes beside its own."""


def log_to_stderr(verbose: bool = False) -> None:
    """One line a record, with milliseconds."""
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s: %(message)s", datefmt="%H:%M:%S")


def open_stream(config: Config, clock: Clock) -> EmbeddedStream:
    """The deployment's stream."""
    return EmbeddedStream(
        config.state / "stream",
        partitions={OBSERVATIONS: config.stream.partitions},
        retention_s=config.stream.retention_s,
        max_bytes=config.stream.max_bytes,
        fsync_interval_s=config.stream.fsync_interval_s,
        clock=clock,
    )


# --- plugins -------------------------------------------------------------------------------------------------------


def chosen(config: Config, table: str) -> Iterator[tuple[str, type, Options]]:
    """(name, class, options) of the plugins of a table that are not switched off, then those of the user's own."""
    tables: Mapping[str, Options] = getattr(config, table)
    for name in dict.fromkeys((*plugins.available(TABLES[table]), *tables)):
        options = dict(tables.get(name, {}))
        if options.pop("enabled", True):
            yield name, plugins.load(TABLES[table], options.pop("use", name)), options


def detectors(config: Config) -> list[tuple[str, Detector]]:
    """Every detector. Raises PluginError."""
    return [(name, plugins.build(cls, options, {})) for name, cls, options in chosen(config, "detectors")]


def guards(config: Config) -> list[Guard]:
    """The guards in the order of the written-out policy, then the user's own. Raises PluginError."""
    order = {name: position for position, name in enumerate(guard_room.POLICY)}
    found = sorted(chosen(config, "guards"), key=lambda each: order.get(each[0], len(order)))
    return [plugins.build(cls, options, {}) for _, cls, options in found]


def actions(config: Config, services: Mapping[str, Any]) -> dict[str, Action]:
    """Every action by name. Raises PluginError."""
    return {name: plugins.build(cls, options, services) for name, cls, options in chosen(config, "actions")}


def policy(config: Config) -> Policy:
    """What may be done, from the table [engine]. Raises PluginError naming the option that is wrong."""
    built: Policy = plugins.build(Policy, config.engine, {})
    return built


def check_plugins(config: Config) -> Iterator[str]:
    """What is wrong with the options of the plugins, one line each."""
    for table in TABLES:
        try:
            for name, cls, options in chosen(config, table):
                own = {key: value for key, value in options.items() if table != "collectors" or key not in SCHEDULE}
                try:
                    plugins.configure(cls, own)
                except PluginError as error:
                    yield f"[{table}.{name}] {error}"
        except PluginError as error:
            yield f"[{table}] {error}"
    try:
        policy(config)
    except PluginError as error:
        yield f"[engine] {error}"


# --- agent and launcher --------------------------------------------------------------------------------------------


def run_agent(config: Config, node: str, server: str) -> None:
    """Run this node's agent until Ctrl-C or SIGTERM."""
    log_to_stderr()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    config.run.mkdir(parents=True, exist_ok=True)
    with pid_file(config.run / "agent.pid"):
        serve_agent(config, stop, node=node, server=server)


@contextmanager
def pid_file(path: Path) -> Iterator[None]:
    """Hold `pid start-time` of this process in a file while the block lasts."""
    path.write_text(f"{os.getpid()} {start_time_of(os.getpid())}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def launcher_settings(config: Config, command: Sequence[str], given: Mapping[str, Any], *, started: str) -> LauncherSettings:
    """Settings of one launcher from the command line. Raises ConfigError, LaunchError."""
    job = job_name(str(given["job"]), str(given["run_id"]) or started, command)
    rendezvous = str(given["rdzv"])
    return LauncherSettings(
        job=job,
        node=str(given["node"]) or socket.gethostname(),
        command=tuple(command),
        state_dir=config.state,
        run_dir=config.run,
        nproc=int(given["nproc_per_node"]),
        nnodes=node_range(str(given["nnodes"])),
        address=str(given["listen"]) or _listen(rendezvous),
        rendezvous=rendezvous,
        leader="" if given["no_server"] else str(given["server"]) or config.server.listen,
        heal=str(given["heal"]),
        checkpoint_dir=Path(str(given["checkpoint_dir"])).absolute() if given["checkpoint_dir"] else None,
        lease_s=config.server.lease_s,
    )


def run_launcher(settings: LauncherSettings) -> int:
    """Run one launcher in this thread until its job is over; Ctrl-C and SIGTERM end it in order."""
    log_to_stderr()

    async def served() -> int:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await serve_launcher(settings, stop)

    return asyncio.run(served())


def job_name(job: str, run: str, command: Sequence[str]) -> str:
    """tenant/name/run from what was given.

    >>> job_name("team/gpt", "7", [])
    'team/gpt/7'
    >>> job_name("", "7", ["python", "src/train.py", "--lr", "1"])
    'local/train/7'
    """
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0] if command else "job")
    parts = job.split("/") if job else ["local", Path(script).stem]
    if len(parts) == 2:
        return "/".join([*parts, run])
    if len(parts) == 3 and all(parts):
        return job
    raise ConfigError(f"--job {job!r} is not understood: write tenant/name, or tenant/name/run")


def node_range(text: str) -> tuple[int, int]:
    """Fewest and most nodes from `N` or `MIN:MAX`. Raises ConfigError.

    >>> node_range("2:4")
    (2, 4)
    """
    low, _, high = text.partition(":")
    if not low.isdigit() or (high and not high.isdigit()) or text.endswith(":"):
        raise ConfigError(f"--nnodes {text!r} is not understood: write N, or MIN:MAX")
    return int(low), int(high or low)


def _listen(rendezvous: str) -> str:
    """Where a launcher listens that was told nothing: at the meeting place if that is here and free, else any port."""
    host, _, port = rendezvous.rpartition(":")
    if not host:
        return "127.0.0.1:0"
    with socket.socket() as probe:
        try:
            probe.bind((host, int(port)))
        except (OSError, ValueError):
            return f"{_own_address(host)}:0"
    return rendezvous


def _own_address(toward: str) -> str:
    """The address of this machine that faces a host; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((toward, 9))
            address: str = probe.getsockname()[0]
        except OSError as error:
            raise ConfigError(f"--rdzv {toward}: {error}. Name a host that this machine can reach, or this one's address with --listen.") from error
    return address
