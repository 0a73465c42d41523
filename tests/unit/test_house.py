"""The house itself: what is loaded by an import, how large files are, what every command explains."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from eagle_eye.app.cli import main

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("eagle_eye", "collectors", "detectors", "remediation", "dashboard")
HEAVY = ("torch", "numpy", "msgspec", "grpc", "google.protobuf", "sqlalchemy", "alembic", "sklearn", "httpx", "click", "rich", "psutil", "pynvml")
SERVER_ROOMS = ("eagle_eye.rpc", "eagle_eye.ledger", "eagle_eye.stream", "eagle_eye.app", *ROOMS[1:])


@pytest.mark.parametrize("module", ["eagle_eye", "eagle_eye.training", "eagle_eye.training.probe", "eagle_eye.training.zygote"])
def test_what_a_trainer_imports_loads_neither_torch_nor_a_part_of_the_server(module):
    code = f"import sys, {module}; import eagle_eye; eagle_eye.monitor; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    unwanted = [name for name in loaded for heavy in (*HEAVY, *SERVER_ROOMS) if name == heavy or name.startswith(heavy + ".")]
    assert unwanted == []


@pytest.mark.parametrize("module", ["remediation.launcher.launcher", "collectors.agent.agent", "eagle_eye.app.serving.server_process"])
def test_what_runs_beside_the_training_loads_no_torch(module: str) -> None:
    """Seconds of processor time at each start, and a hundred megabytes of each process."""
    code = f"import sys, {module}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip() == "False"


def test_what_a_trainer_imports_works_in_an_environment_without_any_package():
    code = "import eagle_eye; m = eagle_eye.monitor(); print(sum(1 for _ in m.steps([1, 2, 3])))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3"


def test_where_only_the_probe_is_installed_the_command_says_what_it_needs():
    code = "from eagle_eye.app.entry import main; main()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "'click' is missing" in done.stderr
    assert "pip install 'eagle-eye[server]'" in done.stderr


def sources() -> list[Path]:
    """Ours alone: what begins with a dot was put there by a tool, and is not even looked through."""
    found = []
    for room in (*ROOMS, "tests", "benchmarks", "examples"):
        for folder, below, files in os.walk(ROOT / room):
            below[:] = [name for name in below if not name.startswith(".")]
            found += [Path(folder) / name for name in files if name.endswith(".py") and "_pb2" not in name]
    return found


def test_whatever_is_in_the_first_room_is_held_to_import_nothing_of_the_commands():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (held,) = [set(contract["source_modules"]) for contract in contracts if contract.get("forbidden_modules") == ["eagle_eye.app"]]
    there = {f"eagle_eye.{path.stem}" for path in (ROOT / "eagle_eye").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - held == {"eagle_eye.app", "eagle_eye.__init__"}


DEFINITION = re.compile(r"^( *)(?:async )?def (\w+)", re.MULTILINE)


def lengths(text: str) -> Iterator[tuple[str, int]]:
    """Functions at any depth and their lines, by indentation: reading all of the house as a syntax tree takes seconds."""
    for found in DEFINITION.finditer(text):
        after = re.compile(rf"^ {{0,{len(found[1])}}}[^\s)]", re.MULTILINE).search(text, found.end())
        end = after.start() if after else len(text)
        yield found[2], text[found.start() : end].rstrip().count("\n")


def test_no_file_is_longer_than_a_sitting():
    assert [f"{path.relative_to(ROOT)}" for path in sources() if len(path.read_text().splitlines()) > 500] == []


def test_no_function_is_longer_than_a_screen():
    found = [(path, *function) for path in sources() for function in lengths(path.read_text())]
    assert len(found) > 2000, "they were found"
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name, lines in found if lines > 60] == []


def commands() -> list[tuple[str, click.Command]]:
    context = click.Context(main)
    found = []
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        members = command.commands.items() if isinstance(command, click.Group) else [("", command)]
        found += [(f"{name} {member}".strip(), each) for member, each in members]
    return found


def test_every_command_explains_itself_with_an_example():
    without = [name for name, command in commands() if name != "version" and "Example" not in (command.help or "")]
    assert without == []


def test_every_promised_command_is_there():
    promised = ["server", "agent", "launch", "run", "demo", "drill", "incidents", "approve", "refuse", "release", "replay", "doctor", "version"]
    names = {name for name, _ in commands()}
    assert set(promised) | {"config init", "config check"} <= names
