"""What the agent can read on a machine, as `eagle-eye agent --check` shows it."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from eagle_eye import plugins
from eagle_eye.app import agent_check
from eagle_eye.app.agent_check import CollectorCheck, check_collectors, has_own_network
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


@dataclass
class Unread:
    """Two files that it may not read; `reads`: it reads others."""

    reads: bool = False
    problems: ClassVar[tuple[str, ...]] = ("log /x is left out: EIO; look at the storage", "log /y is left out: EIO; look at the storage")

    def collect(self) -> list[Reading]:
        matrix = np.array([[1.0]], np.float32)
        return [Reading(source="x", kind=Kind.NODE, entities=("n1",), names=("a_s",), matrix=matrix, time=0.0)] if self.reads else []


@dataclass
class PartlyRead(Unread):
    reads: bool = True


def test_files_that_cannot_be_read_are_named_with_their_remedy(tmp_path: Path) -> None:
    unread, partly = checked(tmp_path, Unread), checked(tmp_path, PartlyRead)
    assert (unread.state, unread.reads, unread.remedy) == ("unavailable", "log /x is left out: EIO; log /y is left out: EIO", "look at the storage")
    assert (partly.state, partly.reads, partly.remedy) == ("reads", "1 metrics of 1 node", "; ".join(Unread.problems))


def test_the_log_of_a_job_that_cannot_be_read_is_named_in_the_check(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.out")
    config = Config(run_dir=str(tmp_path), state_dir=str(tmp_path), collectors={"job_log": {"further_files": [str(tmp_path / "job.out")]}})
    config = left_out(config, sorted(set(plugins.available("collectors")) - {"job_log"}))
    (check,) = (each for each in check_collectors(config, "n1", FakeClock()) if each.collector == "job_log")
    assert check.state == "unavailable"
    assert f"log {tmp_path / 'job.out'} is left out" in check.reads
    assert "it is no regular file (EINVAL)" in check.reads
    assert check.remedy.startswith("name a regular file")


def test_the_flight_recorders_of_a_node_without_jobs_of_torch_are_idle(tmp_path: Path) -> None:
    config = left_out(Config(run_dir=str(tmp_path), state_dir=str(tmp_path)), sorted(set(plugins.available("collectors")) - {"flight_recorder"}))
    (check,) = (each for each in check_collectors(config, "n1", FakeClock()) if each.collector == "flight_recorder")
    assert (check.state, check.remedy) == ("idle", "")


# --- the network that it is in


class Network:
    """A /proc with the namespaces of the first process and our own, and a /sys with interfaces."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sysfs = root / "proc", root / "sys"
        self.interfaces = [(1, "lo")]
        (self.sysfs / "class/net/lo").mkdir(parents=True)

    def namespace(self, process: str, namespace: str) -> None:
        folder = self.proc / process / "ns"
        folder.mkdir(parents=True)
        (folder / "net").symlink_to(namespace)

    def interface(self, name: str, *, card: bool) -> None:
        (self.sysfs / "class/net" / name / ("device" if card else "statistics")).mkdir(parents=True)
        self.interfaces.append((2, name))

    @property
    def own(self) -> bool:
        return has_own_network(self.proc, self.sysfs, lambda: self.interfaces)


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def test_fault_a_network_of_its_own_is_known_by_that_of_the_first_process(network: Network) -> None:
    network.namespace("1", "net:[1]")
    network.namespace("self", "net:[2]")
    network.interface("net1", card=True)  # a card that was given to the pod
    assert network.own


def test_fault_a_network_of_its_own_is_known_by_its_interfaces_where_the_first_process_is_the_containers(network: Network) -> None:
    assert network.own
    network.namespace("1", "net:[2]")
    network.namespace("self", "net:[2]")
    network.interface("eth0", card=False)
    assert network.own


def test_fault_a_network_of_its_own_is_known_although_the_cards_of_the_machine_are_shown(network: Network) -> None:
    network.interface("eth0", card=True)
    network.interfaces = [(1, "lo")]
    assert network.own


def test_twin_the_network_of_a_node_is_not_told(network: Network) -> None:
    network.namespace("self", "net:[1]")  # the first process may not be asked
    for name in ("eth0", "cni0", "veth1"):
        network.interface(name, card=name == "eth0")
    assert not network.own
    network.namespace("1", "net:[1]")
    assert not network.own


def test_twin_where_interfaces_cannot_be_looked_at_nothing_is_claimed(tmp_path: Path) -> None:
    assert not has_own_network(tmp_path, tmp_path)


@pytest.mark.parametrize("own", [True, False])
def test_a_network_of_its_own_is_a_line_of_the_check_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    monkeypatch.setattr(agent_check, "has_own_network", lambda: own)
    config = left_out(Config(run_dir=str(tmp_path), state_dir=str(tmp_path)), plugins.available("collectors"))
    told = [(each.collector, each.state, each.remedy) for each in check_collectors(config, "n1", FakeClock())]
    assert told == ([("network", "unavailable", agent_check.JOIN_NETWORK)] if own else [])
    assert "hostNetwork: true" in agent_check.JOIN_NETWORK


def test_what_fails_or_hangs_is_told_and_stops_nobody(tmp_path: Path) -> None:
    assert checked(tmp_path, Failing).reads == "PermissionError: [Errno 13] Permission denied: '/sys/x'"
    hung = checked(tmp_path, Hanging)
    RELEASED.set()
    assert (hung.state, hung.reads) == ("hung", "nothing within 0.05 s")


def test_a_collector_that_is_not_there_cannot_be_left_out() -> None:
    with pytest.raises(ConfigError, match="no such collector; there are agent_metrics, collective, fabric, flight_recorder, gpu, host"):
        left_out(Config(), ["gqu"])
