"""What the user wants started: which interpreter, which script, and whether both are there."""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from eagle_eye.errors import LaunchError
from eagle_eye.training import script_runner

ASK_S = 10.0


class TrainingCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A training command, checked."""

    argv: tuple[str, ...]
    interpreter: str
    """Runs the zygote: the user's own Python, so that its modules are there before the fork."""
    python: bool
    """False: a program of another kind, which is exec'ed."""


def parse_training_command(words: tuple[str, ...], cwd: Path, path: str | None = None) -> TrainingCommand:
    """Read and check a command. Raises LaunchError naming what is missing; `path`: where programs are searched."""
    if not words:
        raise LaunchError("no training command was given: put it after --, e.g. eagle-eye launch -- python train.py")
    argv = (sys.executable, *words) if words[0].endswith(".py") else words
    program = shutil.which(str(cwd / argv[0]) if "/" in argv[0] else argv[0], path=path)
    interpreter = script_runner.interpreter_of(argv)
    if program is None and interpreter is None:
        raise LaunchError(f"the command {argv[0]!r} does not exist or is not executable: check its path ({cwd})")
    _check_script(argv, cwd)
    if interpreter is None:
        return TrainingCommand(argv=argv, interpreter=sys.executable, python=False)
    interpreter = behind(interpreter)
    return TrainingCommand(argv=(interpreter, *argv[1:]), interpreter=interpreter, python=True)


def behind(interpreter: str) -> str:
    """The interpreter itself where `interpreter` is a script that chooses one (a shim of pyenv, asdf, ...)."""
    with Path(interpreter).open("rb") as file:
        if file.read(2) != b"#!":
            return interpreter
    words = [interpreter, "-c", "import sys; print(sys.executable)"]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"{interpreter} does not run: {error}; name the interpreter itself") from error
    return answer.stdout.strip() or interpreter


def _check_script(argv: tuple[str, ...], cwd: Path) -> None:
    """The first word after `python` and its simple options must be there if it is a file."""
    if not Path(argv[0]).name.startswith("python"):
        return
    rest = [word for word in argv[1:] if word != "-u"]
    if not rest:
        raise LaunchError(f"{argv[0]} was given no script: name the training script, or -m and a module")
    if not rest[0].startswith("-") and not (cwd / rest[0]).exists():
        raise LaunchError(f"the training script {rest[0]!r} does not exist in {cwd}: check its path")
