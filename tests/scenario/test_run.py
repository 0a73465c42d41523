"""`eagle-eye run` and `eagle-eye demo` as a user starts them: how they end, and that nothing is left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_eye.app.cli import main

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 150.0
MARK = "EAGLE_EYE_TEST_MARK"


class Command:
    """`eagle-eye ...` in a process group of its own; everything that it starts inherits a mark."""

    def __init__(self, home: Path, *words: str) -> None:
        self.home = home
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.rings: set[Path] = set()
        self.temporary = home / "t"
        self.temporary.mkdir()
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary)}
        with (home / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "eagle_eye.app.cli", *words],
                cwd=home, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def end(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(DEADLINE_S)

    def interrupt(self) -> int:
        """Ctrl-C at its terminal."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.end()

    @property
    def said(self) -> str:
        return (self.home / "output").read_text()

    def processes(self) -> list[str]:
        """Command lines of what runs of it."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}\0".encode() in (directory / "environ").read_bytes():
                    found.append((directory / "cmdline").read_text(errors="replace").replace("\0", " "))
        return found

    def left_behind(self) -> list[Path | str]:
        """Processes, sockets, lists of workers, and the rings that were seen while it ran."""
        rings = [ring for ring in self.rings if ring.exists()]
        return [*self.processes(), *rings, *self.home.rglob("*.sock"), *self.home.rglob("jobs/*.json"), *self.home.rglob("running/*.json")]

    @property
    def logs(self) -> str:
        """The ends of what its processes wrote, for a test that fails."""
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1000:]}" for path in sorted(self.home.rglob("logs/*.log")))

    def trains(self, run_dirs: str) -> bool:
        """Two workers are listed on each node, and each has made its ring."""
        listings = [json.loads(path.read_text()) for path in self.home.glob(f"{run_dirs}/jobs/*.json")]
        self.rings = {Path(worker["ring"]) for listing in listings for worker in listing["workers"]}
        return bool(self.rings) and len(self.rings) == 2 * len(listings) and all(ring.exists() for ring in self.rings)

    def until(self, what: str, condition: Callable[[], bool], *, ended: bool = False) -> None:
        """Wait for it, while the command runs; `ended`: after its end."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, f"waited {DEADLINE_S:g} s for: {what}\n{self.said}"
            assert ended or self.process.poll() is None, self.said
            threading.Event().wait(0.05)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


Start = Callable[..., Command]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `eagle-eye ...` in an empty directory."""
    with contextlib.ExitStack() as stack:

        def started(*words: str, script: str = "") -> Command:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run")))  # short, for its sockets
            if script:
                (home / "train.py").write_text(script)
            made = Command(home, *words)
            stack.callback(made.close)
            return made

        yield started


def run(*command: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    return ("run", "--nproc-per-node", "2", "--state-dir", "state", *options, "--", sys.executable, *command)


NO_TORCH = ("--preload", "none")
"""Beside one run with the defaults: nobody waits for the import of what no worker needs."""


def test_a_script_that_finishes_ends_with_zero_and_leaves_nothing(start: Start) -> None:
    command = start(*run(str(LOOP), "30"))
    assert command.end() == 0, command.said
    assert not command.left_behind()
    assert not list(command.temporary.glob("eagle-eye*"))
    listed = CliRunner().invoke(main, ["incidents", "--state-dir", str(command.home / "state")])
    assert listed.output == "no incident so far\n"


def test_a_script_that_dies_at_import_ends_with_one_and_says_why(start: Start) -> None:
    command = start(*run("train.py", options=NO_TORCH), script="import no_such_module\n")
    assert command.end() == 1, command.said
    assert "ModuleNotFoundError: No module named 'no_such_module'" in command.said
    assert not command.left_behind()


def test_a_script_that_does_not_exist_is_named_in_one_line(start: Start) -> None:
    command = start(*run("missing.py"))
    assert command.end() == 1, command.said
    assert command.said.count("\n") == 1, "one line"
    assert "'missing.py' does not exist" in command.said
    assert not command.left_behind()


def test_ctrl_c_ends_a_run_and_every_process_of_it(start: Start) -> None:
    command = start(*run(str(LOOP), options=NO_TORCH))
    command.until("workers", lambda: command.trains("t/eagle-eye-run-*/run/*"))
    assert len(command.processes()) >= 6, "command, server, agent, zygote and two workers"
    (command.home / "drill.toml").write_text(f'run_dir = "{command.home}/other"\n')
    words = ["drill", "kill", "--config", str(command.home / "drill.toml"), "--state-dir", str(command.home / "state")]
    drill = CliRunner().invoke(main, words, input="n\n")
    assert drill.output.startswith("This will kill -9 one worker: rank 0, "), "it is found though its run directory is a temporary one"
    assert command.interrupt() == 130, command.said
    assert not command.left_behind()
    assert not list(command.temporary.glob("eagle-eye*"))


def test_what_a_run_that_was_killed_left_is_taken_away_by_the_next_launcher(start: Start) -> None:
    command = start(*run(str(LOOP), options=NO_TORCH))
    command.until("workers", lambda: command.trains("t/eagle-eye-run-*/run/*"))
    command.process.kill()
    command.end()
    command.until("the end of its processes", lambda: not command.processes(), ended=True)
    left = [*command.rings, *command.home.rglob("running/*.json"), *command.home.rglob("*-launcher.sock")]
    assert command.rings, "who ends last may have begun to clear up"
    assert all(path.exists() for path in left)
    words = ["launch", "--no-server", "--state-dir", "state", "--run-dir", "run", *NO_TORCH, "--", sys.executable, str(LOOP), "2"]
    subprocess.run([sys.executable, "-m", "eagle_eye.app.cli", *words], cwd=command.home, check=True, capture_output=True, timeout=DEADLINE_S)
    assert not [path for path in left if path.exists()]
    assert not [*command.home.rglob("*-*.sock"), *command.home.rglob("running/*.json")]


def test_ctrl_c_ends_the_demo_and_every_process_of_it(start: Start) -> None:
    command = start("demo", "--only", "kill", "--dir", "demo")
    command.until("workers", lambda: command.trains("demo/gpt/run/*"))
    assert command.interrupt() == 130, command.said
    assert "every process was ended" in command.said
    assert not command.left_behind(), command.logs
