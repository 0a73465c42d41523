"""What a job is started with, as files and the environment show it: nothing is imported or run for it. What cannot be read is left out."""

import fnmatch
import hashlib
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from eagle_eye.changes import ValueDifference, changed_words, differences
from eagle_eye.redaction import redact
from eagle_eye.regular_file import read_owned

from .launcher_settings import LauncherSettings
from .training_command import TrainingCommand

VARIABLES = ("NCCL_*", "TORCH_*", "PYTORCH_*", "CUDA_*", "OMP_*", "UCX_*", "FI_*", "GLOO_*")
PLACED = frozenset({"CUDA_VISIBLE_DEVICES"})
"""Variables of the machine's share that a scheduler gave, which differs from run to run."""
LARGEST = 1 << 20
"""Bytes of a file that is read: of a larger one size and time of change are compared."""
MOST_FILES = 32
"""Files that a command names."""
MOST_ENTRIES = 10_000
"""Of a data set's folder."""
REPOSITORY_ABOVE = 8
"""Folders above the script in which its repository is looked for."""
INSTALLED = (".dist-info", ".egg-info")


class StartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run of a job."""

    run: str
    time: float
    """Of the start, seconds since 1970."""
    command: tuple[str, ...]
    """Redacted."""
    values: dict[str, str]
    """Of the command's files and data, and of the job's size: what is in one of two runs alone was not read in the other."""
    packages: dict[str, str]
    """Name → version; empty: not known."""
    environment: dict[str, str]
    """Redacted."""


def start_facts(settings: LauncherSettings, command: TrainingCommand, cwd: Path, environment: Mapping[str, str], now: float) -> StartFacts:
    """Reads the files that the command names and the names of installed packages: in a thread, since a network file system may hang."""
    version, packages = _installed(command.interpreter, environment.get("PYTHONPATH", ""))
    size = {"nodes": ":".join(map(str, dict.fromkeys(settings.nnodes))), "workers per node": str(settings.nproc), "python": version}
    values = size | dict(islice(_files(command.argv[1:], cwd), MOST_FILES)) | dict(_data(command.argv[1:], cwd)) | _repository(command.argv[1:], cwd)
    return StartFacts(
        run=settings.run, time=now, command=tuple(redact(" ".join(command.argv)).split()), values={name: value for name, value in values.items() if value},
        packages=packages, environment=_variables(environment),
    )  # fmt: skip


def changed_facts(before: StartFacts, after: StartFacts) -> list[ValueDifference]:
    """What people change most comes first."""
    command = [ValueDifference("command", *changed_words(before.command, after.command))] if before.command != after.command else []
    packages = differences(before.packages, after.packages, absent=True) if before.packages and after.packages else []
    named = [ValueDifference(f"package {each.what}", each.before, each.after) for each in packages]
    return [*command, *differences(before.values, after.values), *differences(before.environment, after.environment, absent=True), *named]


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    chosen = [name for name in environment if name not in PLACED and any(fnmatch.fnmatchcase(name, pattern) for pattern in VARIABLES)]
    return {name: redact(f"{name}={environment[name]}").partition("=")[2] for name in sorted(chosen)}


# --- files of the command


def _files(words: Sequence[str], cwd: Path) -> Iterator[tuple[str, str]]:
    """Script and configuration: (name, digest of its content, or size and time of a large one)."""
    for word in words:
        name = word.rpartition("=")[2]
        path = cwd / name
        if name and not name.startswith("-") and _is_file(path):
            yield f"file {name}", _content(path)


def _data(words: Sequence[str], cwd: Path) -> Iterator[tuple[str, str]]:
    """Folders that an option with `data` in its name is given: how many files they have, and when the newest was changed."""
    for word, value in zip(words, [*words[1:], ""], strict=True):
        option, _, given = word.partition("=")
        if "data" in option.lower() and (given or option.startswith("-")):
            name = given or value
            if name and (cwd / name).is_dir() and (state := _folder(cwd / name)):
                yield f"data {name}", state


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word too long, or with a NUL, to be a name
        return False


def _content(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > LARGEST:
            return f"{status.st_size} bytes of {_time(status.st_mtime)}"
        return f"sha256 {hashlib.sha256(read_owned(path, LARGEST)[0]).hexdigest()[:12]}"
    except OSError:
        return ""


def _folder(path: Path) -> str:
    try:
        with os.scandir(path) as entries:
            times = [entry.stat().st_mtime for entry in islice(entries, MOST_ENTRIES)]
    except OSError:
        return ""
    return f"{len(times)}{'+' if len(times) == MOST_ENTRIES else ''} files, newest of {_time(max(times))}" if times else "no files"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _repository(words: Sequence[str], cwd: Path) -> dict[str, str]:
    """The commit that is checked out where the script is."""
    script = next((cwd / word for word in words if word.endswith(".py")), cwd / "here")
    for folder in islice(script.absolute().parents, REPOSITORY_ABOVE):
        if (folder / ".git" / "HEAD").is_file():
            return {"commit": _commit(folder / ".git")}
    return {}


def _commit(repository: Path) -> str:
    head = _text(repository / "HEAD")
    name = head.removeprefix("ref: ")
    if name == head:
        return head[:12]
    packed = (line.split() for line in _text(repository / "packed-refs").splitlines())
    found = _text(repository / name) or next((words[0] for words in packed if words[1:] == [name]), "")
    return found[:12]


def _text(path: Path) -> str:
    try:
        return read_owned(path, LARGEST)[0].decode(errors="replace").strip()
    except OSError:
        return ""


# --- packages


def _installed(interpreter: str, python_path: str) -> tuple[str, dict[str, str]]:
    """Version of the interpreter, and of the packages that it finds, by the names of their folders: reading what is in them would take a second."""
    if Path(interpreter).absolute().parent == Path(sys.executable).absolute().parent:
        version, folders = platform.python_version(), sys.path
    else:
        found = sorted(Path(interpreter).absolute().parent.parent.glob("lib/python3*/*-packages"))
        version = found[0].parent.name.removeprefix("python") if found else ""
        folders = [entry for entry in python_path.split(os.pathsep) if entry] + [str(folder) for folder in found]
    packages: dict[str, str] = {}
    for folder in folders:
        for name, number in _packages_in(folder):
            packages.setdefault(name, number)  # the first on the path counts
    return version, packages


def _packages_in(folder: str) -> Iterator[tuple[str, str]]:
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208  # names are all that is wanted
    except OSError:
        return
    for name in names:
        package, _, version = name.removesuffix(INSTALLED[0]).removesuffix(INSTALLED[1]).partition("-")
        if name.endswith(INSTALLED) and version:
            yield package.lower().replace("_", "-"), version.partition("-py3")[0]
