"""A script of a framework, run for real: each variant in a process of its own, forked after the imports, with a ring that is read afterwards."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring_buffer import LoopState, RingReader, StepRecord

DEADLINE_S = 290.0
UNWATCHED = "unwatched"
"""The variant that has no ring."""
FORKS = """

import os, sys, traceback
for what in sys.argv[1:]:
    if os.fork() == 0:
        os.mkdir(what)
        os.chdir(what)
        if what != "unwatched":
            os.environ |= {"EAGLE_EYE_RING": os.path.abspath("ring"), "EAGLE_EYE_WORKER": "r/n/0"}
        code, sys.stdout, sys.stderr = 0, open("output", "w"), open("errors", "w")
        try:
            print(json.dumps(main(what)))
        except BaseException:
            code = 1
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.wait()
"""
"""Behind a script that imports json, has the imports that take long at its top, and whose `main(what)` returns what it found."""

RESUMED = """

def kill():
    for thread in threading.enumerate():
        if thread.name == "eagle-eye-memory-checkpoint":
            thread.join()
    os.kill(os.getpid(), signal.SIGKILL)

def say(**words):
    with open("said", "a") as file:
        file.write(json.dumps(words) + "\\n")

def run(folder, killed):
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    main(killed)

first = os.environ["EAGLE_EYE_EPOCH"] == "1"
if first:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for name in [name for name in os.environ if name.startswith("EAGLE_EYE_")]:
                del os.environ[name]
            run("alone", False)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
run("kept", first)
"""
"""Behind a script with `main(killed)`, which calls `say`, and `kill` where it is to die: it is run alone, without a launcher, and under one, which starts it again."""


@dataclass
class FrameworkRun:
    """What one variant left."""

    folder: Path
    steps: list[StepRecord] = field(default_factory=list)
    now: LoopState | None = None

    @property
    def said(self) -> Any:
        """What `main` returned; fails with its exception if it raised one."""
        text = (self.folder / "output").read_text()
        assert text, self.errors
        return json.loads(text)

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    def numbers(self, name: str = "step_s", least: float = 0.0) -> list[int]:
        """Of the steps that have this value, and at least so much of it."""
        return [step.number for step in self.steps if name in step.values and step.values[name] >= least]

    def values(self, name: str) -> list[float]:
        return [step.values[name] for step in self.steps]


def run_variants(folder: Path, script: str, variants: Sequence[str]) -> dict[str, FrameworkRun]:
    """One after the other."""
    (folder / "script.py").write_text(script + FORKS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE_EYE_")}
    done = subprocess.run([sys.executable, "script.py", *variants], cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return {variant: _read(folder / variant) for variant in variants}


def phases_s(step: StepRecord) -> float:
    """Of all its phases together."""
    return sum(step.values.get(f"{phase}_s", 0.0) for phase in PHASES)


def _read(folder: Path) -> FrameworkRun:
    if not (folder / "ring").exists():
        return FrameworkRun(folder)
    with RingReader.open(folder / "ring") as reader:
        return FrameworkRun(folder, reader.steps(-1), reader.now())
