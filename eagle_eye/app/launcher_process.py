"""The launcher's process: its settings from a command line, and its end."""

import asyncio
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from eagle_eye.app.launcher_registry import registered, remove_leftovers
from eagle_eye.app.plugin_wiring import log_to_stderr, make_directories
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.ports import own_listen
from eagle_eye.stop_signals import stop_on_signals
from eagle_eye.training.object_path import storage_path
from remediation.launcher.launcher import run_launcher
from remediation.launcher.launcher_settings import LONGEST_NAME, LauncherSettings


def launcher_settings(
    config: Config,
    command: Sequence[str],
    *,
    job: str,
    run_id: str,
    nproc_per_node: int,
    heal: str,
    checkpoint_dir: str,
    min_workers: int = 1,
    weight: float = 1.0,
    respawns: int = -1,
    max_skipped_steps: int = 0,
    preload: str = "",
    steps_from: str = "marks",
    ignore_cordon: bool = False,
    parallel: str = "",
    node: str = "",
    nnodes: str = "1",
    rdzv: str = "",
    listen: str = "",
    server: str = "",
    no_server: bool = False,
) -> LauncherSettings:
    """Settings of one launcher; the keywords are the options of `eagle-eye launch`. Raises ConfigError, LaunchError."""
    make_directories(config)
    usual = LauncherSettings(
        job=job_name(job, run_id, command),
        node=node or socket.gethostname(),
        command=tuple(command),
        state_dir=config.state,
        run_dir=config.run,
        nproc=nproc_per_node,
        nnodes=node_range(nnodes),
        address=listen or own_listen(rdzv),
        or_any_port=not listen,
        rendezvous=rdzv,
        leader="" if no_server else server or config.server.known_at,
        heal=heal,
        min_workers=min_workers,
        weight=weight,
        respawns=respawns,
        max_skipped_steps=max_skipped_steps,
        ignore_cordon=ignore_cordon,
        parallel=parallel,
        steps_from=steps_from,
        checkpoint_dir=storage_path(checkpoint_dir).absolute() if checkpoint_dir else None,
        stream=config.stream,
        stall=config.stall,
        backup=config.checkpoints,
        topology=config.topology,
        access=config.access,
        insecure=config.server.insecure,
        lease_s=config.server.lease_s,
    )
    return msgspec.structs.replace(usual, preload=modules_of(preload, usual.preload))


def launch(settings: LauncherSettings) -> int:
    """Run one launcher in this thread until its job is over; Ctrl-C, SIGTERM and SIGHUP end it in order. Returns the exit code."""
    log_to_stderr()

    async def launched() -> int:
        stop = asyncio.Event()
        stop_on_signals(stop.set)
        return await run_launcher(settings, stop)

    remove_leftovers(settings.state_dir, settings.run_dir, settings.node, SystemClock())
    with registered(settings.state_dir, settings.job, settings.node, settings.run_dir):
        return asyncio.run(launched())


def new_run_id(clock: Clock) -> str:
    """The local time: unique per start, as long as one person starts one job a second."""
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(clock.now()))


def job_name(job: str, run: str, command: Sequence[str]) -> str:
    """tenant/name/run from what was given. Raises ConfigError.

    >>> job_name("team/gpt", "7", [])
    'team/gpt/7'
    >>> job_name("", "7", ["python", "src/train gpt.py", "--lr", "1"])
    'local/train_gpt/7'
    """
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0] if command else "job")
    parts = job.split("/") if job else ["local", _name_of(script)]
    if len(parts) == 2:
        return "/".join([*parts, run])
    if len(parts) == 3 and all(parts):
        return job
    raise ConfigError(f"--job {job!r} is not understood: write tenant/name, or tenant/name/run")


def _name_of(script: str) -> str:
    usable = re.sub(r"[^\w.-]", "_", Path(script).stem).lstrip(".-") or "job"
    return usable.encode()[:LONGEST_NAME].decode(errors="ignore")


def modules_of(text: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """What is imported before the workers are forked: the usual modules and those named, or none.

    >>> modules_of("transformers, my.model", ("torch",))
    ('torch', 'transformers', 'my.model')
    >>> modules_of("none", ("torch",))
    ()
    """
    named = tuple(name for part in text.split(",") if (name := part.strip()))
    return () if named == ("none",) else (*usual, *named)


def node_range(text: str) -> tuple[int, int]:
    """Fewest and most nodes from `N` or `MIN:MAX`. Raises ConfigError.

    >>> node_range("2:4")
    (2, 4)
    """
    low, _, high = text.partition(":")
    if not low.isdigit() or (high and not high.isdigit()) or text.endswith(":"):
        raise ConfigError(f"--nnodes {text!r} is not understood: write N, or MIN:MAX")
    return int(low), int(high or low)
