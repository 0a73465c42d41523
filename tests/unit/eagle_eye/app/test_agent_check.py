"""What the agent can read on a machine, as `eagle-eye agent --check` shows it."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from eagle_eye import plugins
from eagle_eye.app.agent_check import CollectorCheck, check_collectors
from eagle_eye.app.agent_process import left_out
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.types import Kind, Reading

RELEASED = threading.Event()


@dataclass
class Healthy:
    """Its rate is there from the second look on, one metric never."""

    def __post_init__(self) -> None:
        self.looks = 0

    def collect(self) -> list[Reading]:
        self.looks += 1
        rate = 5.0 if self.looks > 1 else np.nan
        matrix = np.array([[1.0, rate, np.nan]], np.float32)
        return [Reading(source="x", kind=Kind.NODE, entities=("n1",), names=("a_s", "b_per_s", "c_s"), matrix=matrix, time=0.0)]


@dataclass
class Patient(Healthy):
    """Knows what its metric without a value needs: a command, or time."""

    later: ClassVar[frozenset[str]] = frozenset()
    remedies: ClassVar[dict[str, str]] = {"a_s": "another one", "c_s": "apt install c"}


@dataclass
class Later(Patient):
    later: ClassVar[frozenset[str]] = frozenset({"c_s"})


@dataclass
class Failing:
    def collect(self) -> list[Reading]:
        raise OSError(13, "Permission denied", "/sys/x")


@dataclass
class Asking:
    """It asks a program in one look, and takes the answer in the next."""

    knows: str = ""
    waits: bool = False

    def collect(self) -> list[Reading]:
        self.knows, self.waits = ("slurm: drain", False) if self.waits else ("", True)
        return []


@dataclass
class Hanging:
    timeout_s: ClassVar[float] = 0.05

    def collect(self) -> list[Reading]:
        RELEASED.wait(30.0)
        return []


@dataclass
class Missing:
    unavailable: ClassVar[str] = "this node has no such card; put one in"

    def collect(self) -> list[Reading]:
        return []


def checked(tmp_path: Path, cls: type) -> CollectorCheck:
    config = Config(run_dir=str(tmp_path), state_dir=str(tmp_path), collectors={"tried": {"use": f"{__name__}:{cls.__name__}"}})
    config = left_out(config, plugins.available("collectors"))
    (check,) = (each for each in check_collectors(config, "n1", FakeClock()) if each.collector == "tried")
    return check


def test_what_works_is_told_with_what_has_no_value(tmp_path: Path) -> None:
    check = checked(tmp_path, Healthy)
    assert (check.state, check.reads, check.missing) == ("reads", "3 metrics of 1 node", ("c_s",))


def test_what_has_no_value_is_told_with_its_remedy_and_what_comes_later_is_not_missing(tmp_path: Path) -> None:
    patient, later = checked(tmp_path, Patient), checked(tmp_path, Later)
    assert (patient.missing, patient.remedy) == (("c_s",), "apt install c")
    assert (later.missing, later.remedy) == ((), "")


def test_what_is_missing_is_told_with_its_remedy(tmp_path: Path) -> None:
    check = checked(tmp_path, Missing)
    assert (check.state, check.reads, check.remedy) == ("unavailable", "this node has no such card", "put one in")


def test_a_program_that_was_asked_may_answer_before_the_collector_is_judged(tmp_path: Path) -> None:
    check = checked(tmp_path, Asking)
    assert (check.state, check.reads) == ("reads", "slurm: drain")


def test_what_fails_or_hangs_is_told_and_stops_nobody(tmp_path: Path) -> None:
    assert checked(tmp_path, Failing).reads == "PermissionError: [Errno 13] Permission denied: '/sys/x'"
    hung = checked(tmp_path, Hanging)
    RELEASED.set()
    assert (hung.state, hung.reads) == ("hung", "nothing within 0.05 s")


def test_a_collector_that_is_not_there_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match="no such collector; there are agent_metrics, collective, fabric, gpu, host"):
        left_out(Config(), ["gqu"])
