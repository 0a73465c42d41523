"""Neighbours of a node's interfaces, as lldpctl tells them. The answer is one of lldpd 1.0.16, its machine's own names replaced."""

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.site.lldp_neighbors import ANSWER_S, EVERY_S, LldpNeighbor, LldpNeighbors, neighbors_of


def interface(name: str, switch: str, port: str, kind: str = "ifname") -> dict[str, Any]:
    return {
        "name": name, "via": "LLDP", "rid": "1", "age": "0 day, 00:00:03",
        "chassis": [{
            "id": [{"type": "mac", "value": "fa:4d:bd:41:30:46"}], **({"name": [{"value": switch}]} if switch else {}), "descr": [{"value": "NOS 5.4"}],
            "mgmt-ip": [{"value": "10.0.0.1"}], "capability": [{"type": "Bridge", "enabled": True}, {"type": "Router", "enabled": False}],
        }],
        "port": [{"id": [{"type": kind, "value": port if kind != "mac" else "fa:4d:bd:41:30:47"}], "descr": [{"value": port}], "ttl": [{"value": "120"}]}],
    }  # fmt: skip


ANSWER = json.dumps({"lldp": [{"interface": [interface("eth0", "leaf-1", "swp7"), interface("eth1", "leaf-2", "swp9", kind="mac"), interface("eth2", "", "swp1")]}]})


def test_switch_and_port_of_each_interface() -> None:
    assert neighbors_of(ANSWER.encode()) == {
        "eth0": LldpNeighbor("leaf-1", "swp7"),
        "eth1": LldpNeighbor("leaf-2", "swp9"),
        "eth2": LldpNeighbor("fa:4d:bd:41:30:46", "swp1"),
    }


def test_nobody_was_heard_yet() -> None:
    assert neighbors_of(b'{"lldp": [{}]}') == {}


@settings(deadline=None)
@given(st.integers(0, len(ANSWER.rstrip()) - 1), st.binary(max_size=10))
def test_a_torn_answer_is_refused(place: int, between: bytes) -> None:
    torn = ANSWER[:place].encode()
    with pytest.raises(ValueError, match="truncated"):
        neighbors_of(torn)
    with suppress(ValueError):
        neighbors_of(torn + between)


class Switches:
    """A program in place of lldpctl, and looks at what it says."""

    def __init__(self, folder: Path) -> None:
        self.program, self.now = folder / "lldpctl", 0.0
        self.neighbors = LldpNeighbors(("sh", str(self.program)))

    def says(self, script: str) -> None:
        self.program.write_text(script)

    def look(self) -> None:
        """Ask, and wait for the answer as looks of an agent would."""
        self.now += EVERY_S
        self.neighbors.look(self.now)
        pause = threading.Event()
        for _ in range(10_000):
            if self.neighbors._program._question is None:
                return
            self.neighbors.look(self.now)
            pause.wait(0.001)
        raise AssertionError("no answer")


@pytest.fixture
def switches(tmp_path: Path) -> Switches:
    return Switches(tmp_path)


def says(*interfaces: dict[str, Any]) -> str:
    return f"cat <<'END'\n{json.dumps({'lldp': [{'interface': interfaces}]})}\nEND\n"


def test_a_neighbour_is_remembered_while_its_port_is_down(switches: Switches) -> None:
    assert not switches.neighbors.settled
    switches.says(says(interface("eth0", "leaf-1", "swp7"), interface("eth1", "leaf-2", "swp9")))
    switches.look()
    switches.says(says(interface("eth1", "leaf-3", "swp1")))
    switches.look()
    assert switches.neighbors.settled
    assert switches.neighbors.known == {"eth0": LldpNeighbor("leaf-1", "swp7"), "eth1": LldpNeighbor("leaf-3", "swp1")}


@pytest.mark.parametrize(("script", "why"), [("exit 1", "it ended with 1"), ("echo '{'", "Input data was truncated"), ("cat /dev/zero", "more than")])
def test_no_use_of_it_is_named_with_the_remedy_and_nothing_is_forgotten(switches: Switches, script: str, why: str) -> None:
    switches.says(says(interface("eth0", "leaf-1", "swp7")))
    switches.look()
    switches.says(script)
    switches.look()
    assert why in switches.neighbors.problem
    assert "start lldpd" in switches.neighbors.problem
    assert switches.neighbors.known == {"eth0": LldpNeighbor("leaf-1", "swp7")}
    switches.says(says())
    switches.look()
    assert switches.neighbors.problem == ""


def test_one_that_never_answers_is_ended(switches: Switches) -> None:
    switches.says("sleep 1000")
    switches.neighbors.look(EVERY_S)
    switches.neighbors.look(EVERY_S + ANSWER_S / 2)
    assert not switches.neighbors.settled
    switches.neighbors.look(EVERY_S + ANSWER_S)
    assert switches.neighbors.settled
    assert "no answer within 5 s" in switches.neighbors.problem


def test_without_lldpd_nobody_is_asked_and_nothing_is_wrong() -> None:
    for command in ((), ("/none/lldpctl",)):
        neighbors = LldpNeighbors(command)
        neighbors.look(0.0)
        assert neighbors.settled
        assert (neighbors.problem, neighbors.known) == ("", {})
