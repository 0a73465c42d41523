"""`eagle-eye doctor`: checks the requirements of this machine, and names the remedy for each that is not met."""

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console

from eagle_eye.activity.python_stacks import py_spy
from eagle_eye.app import options
from eagle_eye.app.check import Check
from eagle_eye.app.printing import TableCell, TableColumn, print_json, print_table
from eagle_eye.config import Config
from eagle_eye.errors import EagleEyeError


@click.command(short_help="check the requirements of this machine")
@click.option("--kafka", is_flag=True, help="Check the brokers of [stream.kafka] instead: encryption, signatures, and who may write which topic.")
@options.as_json
@options.wide
@options.deployment
def command(config: Config, json_lines: bool, wide: bool, kafka: bool) -> None:
    """Check everything that Eagle Eye needs on this machine. Exits with 1 when a required check fails.

    \b
    Examples:
      eagle-eye doctor
      eagle-eye doctor --json
      eagle-eye doctor --kafka        # on a server, and on a node: each may do what is its own
    """
    checks = list(_of_kafka(config) if kafka else examine(config))
    if json_lines:
        for check in checks:
            print_json(check._asdict())
    else:
        _show(checks, wide=wide)
    if any(check.needed and not check.works for check in checks):
        raise SystemExit(1)


def examine(config: Config) -> Iterator[Check]:
    """All checks, one after the other."""
    yield Check("python", sys.version_info >= (3, 11), True, sys.version.split()[0], "install Python 3.11 or newer")
    yield from (_module(name, needed, extra) for name, needed, extra in MODULES)
    yield _directory("state directory", config.state)
    yield _directory("run directory", config.run)
    yield _stream(config)
    yield _port(config.server.listen)
    yield _pidfd()
    yield _stacks()
    yield _gpu()


def _of_kafka(config: Config) -> Iterator[Check]:
    from eagle_eye.app.kafka_checks import kafka_checks
    from eagle_eye.clock import SystemClock

    return kafka_checks(config, SystemClock())


MODULES = (
    ("numpy", True, "node"),
    ("msgspec", True, "node"),
    ("grpc", True, "node"),
    ("psutil", True, "node"),
    ("sqlalchemy", True, "server"),
    ("alembic", True, "server"),
    ("httpx", False, "server"),
    ("sklearn", False, "ml"),
    ("torch", False, "training"),
    ("safetensors", False, "training"),
)


def _module(name: str, needed: bool, extra: str) -> Check:
    there = importlib.util.find_spec(name) is not None
    return Check(f"package {name}", there, needed, "found" if there else "not installed", f"pip install 'eagle-eye[{extra}]'")


def _directory(name: str, path: Path) -> Check:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return Check(name, False, True, f"{path}: {error.strerror}", f"make {path} writable, or choose another with --{name.split(maxsplit=1)[0]}-dir")
    free = shutil.disk_usage(path).free
    return Check(name, free > 1 << 30, False, f"{path}, {free / 2**30:.1f} GiB free", "free some space: the stream needs about 1 GiB")


def _stream(config: Config) -> Check:
    from eagle_eye.clock import SystemClock
    from eagle_eye.stream.embedded import EmbeddedStream

    with tempfile.TemporaryDirectory(dir=config.state if config.state.is_dir() else None) as folder:
        try:
            stream = EmbeddedStream(Path(folder), clock=SystemClock())
            stream.append("doctor", [("key", b"value")])
            read = stream.read("doctor", stream.partition_of("doctor", "key"), 0)
            stream.close()
        except EagleEyeError as error:
            return Check("embedded stream", False, True, str(error), "use a local disk for --state-dir: SQLite's WAL does not work on network file systems")
    return Check("embedded stream", [message.value for message in read] == [b"value"], True, "written and read back", "report a bug")


def _port(listen: str) -> Check:
    host, _, port = listen.rpartition(":")
    with socket.socket() as probe:
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            return Check("control port", False, False, f"{listen}: {error.strerror}", "a server may be running already; else choose another server.listen")
    return Check("control port", True, False, f"{listen} is free", "")


def _pidfd() -> Check:
    works = False
    with contextlib.suppress(OSError, AttributeError):
        os.close(os.pidfd_open(os.getpid()))
        works = True
    return Check("worker exits (pidfd)", works, True, "works" if works else "missing", "Linux 5.3 or newer is needed")


def _stacks() -> Check:
    found = py_spy()
    return Check("stacks of hung workers", found is not None, False, found or "py-spy not found", "pip install py-spy; in a container allow SYS_PTRACE")


def _gpu() -> Check:
    if importlib.util.find_spec("pynvml") is None:
        return Check("GPU telemetry (NVML)", False, False, "pynvml not installed", "pip install 'eagle-eye[gpu]'")
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check("GPU telemetry (NVML)", False, False, f"no usable driver: {error}", "nothing to do on a machine without NVIDIA GPUs; the rest works")
    return Check("GPU telemetry (NVML)", True, False, f"{count} GPUs", "")


def _show(checks: list[Check], *, wide: bool) -> None:
    columns = (TableColumn(""), TableColumn("check"), TableColumn("found", prose=True), TableColumn("remedy", prose=True))
    print_table(Console(), columns, (_row(check) for check in checks), wide=wide)


def _row(check: Check) -> tuple[TableCell, ...]:
    sign = ("✓", "green") if check.works else ("✗", "red") if check.needed else ("–", "yellow")
    return sign, check.name, check.found, "" if check.works else check.remedy
