"""The fabric collector over a small /sys: states, rates, rails, links that go down, and files that hold anything."""

import ctypes
import logging
import math
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.fabric import NAMES, FabricCollector
from collectors.node.link_counters import EthtoolCounters, metric_of
from eagle_eye.clock import FakeClock
from eagle_eye.config import NodesConfig, TopologyConfig
from eagle_eye.types import Event, Kind, Reading
from fakes.sysfs import ACTIVE, DOWN, HDR, INIT, NDR, Sysfs


class Node:
    """A collector over a /sys, and a clock that goes on by a second with each look."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.sysfs, self.clock = Sysfs(root), FakeClock()
        self.collector = FabricCollector(node="n1", sysfs=root, clock=self.clock, **options)
        self.rows: dict[str, dict[str, float]] = {}

    def look(self, times: int = 1) -> list[Event]:
        """The events of so many looks; `rows` holds the newest reading."""
        events: list[Event] = []
        for _ in range(times):
            for found in self.collector.collect():
                if isinstance(found, Reading):
                    assert found.kind is Kind.LINK
                    rows = zip(found.entities, found.matrix.tolist(), strict=True)
                    self.rows = {entity: dict(zip(found.names, row, strict=True)) for entity, row in rows}
                else:
                    events.append(found)
            self.clock.advance(1.0)
        return events


def told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.name, event.entity.name) for event in events]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# --- readings


def test_first_look_has_states_and_no_rates(node: Node) -> None:
    node.sysfs.rdma("mlx5_0", "0000:10:00.0", port_rcv_data="1000", symbol_error="3")
    node.look()
    row = node.rows["n1/mlx5_0:1"]
    assert (row["port_active"], row["link_rate_bytes_per_s"], row["rail"]) == (1.0, pytest.approx(5e10), 0.0)
    assert all(math.isnan(row[name]) for name in NAMES if name.endswith("_per_s") and name != "link_rate_bytes_per_s")


def test_counters_become_rates_and_data_is_counted_in_words_of_four_bytes(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", port_rcv_data="1000", symbol_error="3", local_link_integrity_errors="1", excessive_buffer_overrun_errors="15")
    node.sysfs.write(port / "hw_counters" / "packet_seq_err", "7")
    node.look(5)
    for name, text in (("port_rcv_data", "3500"), ("symbol_error", "13"), ("local_link_integrity_errors", "6"), ("excessive_buffer_overrun_errors", "20")):
        node.sysfs.write(port / "counters" / name, text)
    node.sysfs.write(port / "hw_counters" / "packet_seq_err", "12")
    node.look()
    row = node.rows["n1/mlx5_0:1"]
    assert row["received_bytes_per_s"] == 2000.0
    assert (row["symbol_errors_per_s"], row["integrity_errors_per_s"], row["retries_per_s"]) == (2.0, 2.0, 1.0)
    assert math.isnan(row["congestion_marks_per_s"]), "this card has no such counter"


def test_counters_are_read_every_five_seconds_and_states_each_time(node: Node) -> None:
    node.sysfs.rdma("mlx5_0", "0000:10:00.0")
    readings = [sum(isinstance(found, Reading) for found in node.collector.collect()) for _ in range(11) if not node.clock.advance(1.0)]
    assert readings == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_a_counter_that_goes_back_is_no_reading_and_the_next_one_is(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", symbol_error="65535", port_rcv_errors="5")
    node.look(5)
    node.sysfs.write(port / "counters" / "symbol_error", "10")
    node.look(5)
    row = node.rows["n1/mlx5_0:1"]
    assert math.isnan(row["symbol_errors_per_s"])
    assert row["receive_errors_per_s"] == 0.0
    node.sysfs.write(port / "counters" / "symbol_error", "20")
    node.look(5)
    assert node.rows["n1/mlx5_0:1"]["symbol_errors_per_s"] == 2.0


def test_a_counter_that_was_unreadable_for_a_look_makes_no_jump(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", local_link_integrity_errors="1000000", excessive_buffer_overrun_errors="1")
    node.look(5)
    (port / "counters" / "local_link_integrity_errors").write_text("")
    node.look(5)
    assert node.rows["n1/mlx5_0:1"]["integrity_errors_per_s"] == 0.0
    node.sysfs.write(port / "counters" / "local_link_integrity_errors", "1000000")
    node.look(5)
    assert node.rows["n1/mlx5_0:1"]["integrity_errors_per_s"] == 0.0


def test_another_interface_or_card_of_the_same_name_invents_no_rate(node: Node) -> None:
    interface = node.sysfs.interface("eth0", "0000:20:00.0", rx_bytes="1000")
    node.sysfs.write(interface / "ifindex", "2")
    node.sysfs.rdma("mlx5_0", "0000:10:00.0", symbol_error="3")
    node.look(5)
    node.sysfs.write(interface / "ifindex", "9")
    node.sysfs.write(interface / "statistics" / "rx_bytes", str(5 * 10**14))
    shutil.rmtree(node.sysfs.root / "class" / "infiniband" / "mlx5_0")
    node.sysfs.rdma("mlx5_0", "0000:11:00.0", symbol_error="60000")
    node.look(5)
    assert math.isnan(node.rows["n1/eth0"]["received_bytes_per_s"])
    assert math.isnan(node.rows["n1/mlx5_0:1"]["symbol_errors_per_s"])
    node.sysfs.write(interface / "statistics" / "rx_bytes", str(5 * 10**14 + 500))
    node.look(5)
    assert (node.rows["n1/eth0"]["received_bytes_per_s"], node.rows["n1/mlx5_0:1"]["symbol_errors_per_s"]) == (100.0, 0.0)


def test_a_file_that_cannot_be_read_costs_one_metric_and_one_log_line(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", symbol_error="1", port_rcv_errors="1")
    (port / "counters" / "symbol_error").unlink()
    (port / "counters" / "symbol_error").mkdir()  # reading it is an error for root, too
    with caplog.at_level(logging.INFO):
        node.look(12)
    row = node.rows["n1/mlx5_0:1"]
    assert math.isnan(row["symbol_errors_per_s"])
    assert row["receive_errors_per_s"] == 0.0
    assert len([record for record in caplog.records if "symbol_error" in record.getMessage()]) == 1


def test_an_ethernet_interface_has_a_row_and_those_without_hardware_have_none(node: Node) -> None:
    folder = node.sysfs.interface("eth0", "0000:20:00.0", rx_bytes="100", rx_errors="0", rx_missed_errors="0")
    for name in ("lo", "bond0", "docker0"):
        node.sysfs.interface(name)
    node.sysfs.interface("ib0", "0000:10:00.0", kind="32")
    node.look(5)
    node.sysfs.write(folder / "statistics" / "rx_missed_errors", "50")
    node.look()
    assert list(node.rows) == ["n1/eth0"]
    row = node.rows["n1/eth0"]
    assert (row["port_active"], row["link_rate_bytes_per_s"], row["discards_per_s"], row["received_bytes_per_s"]) == (1.0, pytest.approx(25e9 / 8), 10.0, 0.0)


def test_a_roce_port_and_its_interface_are_one_port_and_an_interface_of_a_bond_is_its_own(node: Node) -> None:
    node.sysfs.rdma("mlx5_0", "0000:10:00.0", layer="Ethernet", port_rcv_data="0")
    node.sysfs.interface("eth0", "0000:10:00.0", rx_bytes="0")
    node.sysfs.rdma("mlx5_bond_0", "0000:11:00.0", layer="Ethernet")
    slave = node.sysfs.interface("eth1", "0000:11:00.0")
    (slave / "master").symlink_to(node.sysfs.interface("bond0"))
    node.look()
    assert set(node.rows) == {"n1/mlx5_0:1", "n1/mlx5_bond_0:1", "n1/eth1"}


def test_a_node_without_ports_returns_nothing(node: Node) -> None:
    assert node.look(6) == []
    assert node.rows == {}


# --- rails


def test_rails_are_the_fastest_ports_by_pci_address_and_a_port_that_is_down_keeps_its_own(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_7", "0000:10:00.0")
    node.sysfs.rdma("mlx5_0", "0000:90:00.0")
    node.sysfs.rdma("mlx5_3", "0000:20:00.0", rate=HDR)
    node.look(5)
    node.sysfs.write(port / "state", DOWN)
    node.sysfs.write(port / "rate", "10 Gb/sec (4X SDR)")
    (down,) = node.look(6)
    rails = {name: row["rail"] for name, row in node.rows.items()}
    assert (rails["n1/mlx5_7:1"], rails["n1/mlx5_0:1"]) == (0.0, 1.0)
    assert math.isnan(rails["n1/mlx5_3:1"])
    assert down.attributes["rail"] == "0"


def test_rails_may_be_declared_and_ports_left_out(tmp_path: Path) -> None:
    node = Node(tmp_path, topology=TopologyConfig(nodes=(NodesConfig(hosts="n[1-4]", rails=("mlx5_1:1", "mlx5_0:1")),)), ignored=("eth0",))
    node.sysfs.rdma("mlx5_0", "0000:10:00.0")
    node.sysfs.rdma("mlx5_1", "0000:20:00.0")
    node.sysfs.interface("eth0", "0000:30:00.0")
    node.look()
    assert {name: row["rail"] for name, row in node.rows.items()} == {"n1/mlx5_0:1": 1.0, "n1/mlx5_1:1": 0.0}


# --- links that change


def test_fault_a_link_that_goes_down_is_told_at_once_and_once_and_so_is_its_return(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", link_downed="0")
    node.look(2)
    node.sysfs.write(port / "state", INIT)
    node.sysfs.write(port / "counters" / "link_downed", "1")
    (down,) = node.look(5)
    assert (down.name, down.job, down.entity.kind, down.entity.name) == ("link.down", "", Kind.LINK, "n1/mlx5_0:1")
    expected = {"device": "mlx5_0", "port": "1", "pci": "0000:10:00.0", "rail": "0", "former_rate_gbit_per_s": "400", "rate_gbit_per_s": "", "missed": "0"}
    assert {name: down.attributes[name] for name in expected} == expected
    assert "state 2: INIT" in down.message
    assert node.look() == []
    assert node.rows["n1/mlx5_0:1"]["port_active"] == 0.0
    assert math.isnan(node.rows["n1/mlx5_0:1"]["link_rate_bytes_per_s"]), "what a port that is down says of its rate is not that of its link"
    node.sysfs.write(port / "state", ACTIVE)
    (up,) = node.look(6)
    assert (up.name, up.attributes["rate_gbit_per_s"]) == ("link.up", "400")


def test_twin_ports_that_are_down_from_the_start_and_old_counts_of_downs_are_no_news(node: Node) -> None:
    node.sysfs.rdma("mlx5_0", "0000:10:00.0", link_downed="7")
    node.sysfs.rdma("mlx5_1", "0000:20:00.0", state=DOWN, link_downed="255")
    node.sysfs.interface("eth9", "0000:30:00.0", state="down")
    assert node.look(20) == []
    assert node.rows["n1/mlx5_1:1"]["port_active"] == 0.0


def test_fault_a_flap_between_two_looks_is_told(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", link_downed="3")
    node.look(2)
    node.sysfs.write(port / "counters" / "link_downed", "5")
    events = node.look(10)
    assert told(events) == [("link.down", "n1/mlx5_0:1"), ("link.up", "n1/mlx5_0:1")]
    assert events[0].attributes["missed"] == "2"


def test_twin_a_down_that_was_seen_is_not_told_again_by_its_count(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", link_downed="3")
    node.look(6)
    node.sysfs.write(port / "state", DOWN)
    node.sysfs.write(port / "counters" / "link_downed", "4")
    assert [name for name, _ in told(node.look())] == ["link.down"]
    node.sysfs.write(port / "state", ACTIVE)
    assert [name for name, _ in told(node.look(10))] == ["link.up"]


def test_twin_a_count_of_downs_that_was_reset_is_no_flap(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", link_downed="3")
    node.look(2)
    node.sysfs.write(port / "counters" / "link_downed", "0")
    assert node.look(10) == []


def test_a_flap_of_an_interface_is_told_by_its_count_of_carrier_losses(node: Node) -> None:
    folder = node.sysfs.interface("eth0", "0000:20:00.0")
    node.sysfs.write(folder / "carrier_down_count", "4")
    node.look(2)
    node.sysfs.write(folder / "carrier_down_count", "5")
    assert told(node.look(6)) == [("link.down", "n1/eth0"), ("link.up", "n1/eth0")]


def test_fault_a_lower_rate_is_told_and_so_is_its_end(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0")
    node.look(2)
    node.sysfs.write(port / "rate", HDR)
    (event,) = node.look(10)
    assert (event.name, event.attributes["rate_gbit_per_s"], event.attributes["former_rate_gbit_per_s"]) == ("link.degraded", "200", "400")
    node.sysfs.write(port / "rate", "100 Gb/sec (4X EDR)")
    assert told(node.look(3)) == [("link.degraded", "n1/mlx5_0:1")], "it fell further"
    node.sysfs.write(port / "rate", NDR)
    assert told(node.look(3)) == [("link.up", "n1/mlx5_0:1")]


def test_a_link_that_comes_back_slower_is_up_and_degraded(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0")
    node.look(2)
    node.sysfs.write(port / "state", DOWN)
    node.look(2)
    node.sysfs.write(port / "state", ACTIVE)
    node.sysfs.write(port / "rate", HDR)
    assert [name for name, _ in told(node.look(3))] == ["link.up", "link.degraded"]


def test_twin_a_low_rate_from_the_start_one_that_rises_and_one_of_a_port_that_is_down_are_no_news(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", rate=HDR)
    other = node.sysfs.rdma("mlx5_1", "0000:20:00.0", state=DOWN, rate=NDR)
    node.look(3)
    node.sysfs.write(port / "rate", NDR)
    node.sysfs.write(other / "rate", "10 Gb/sec (4X SDR)")
    assert node.look(6) == []


def test_twin_a_state_that_cannot_be_read_is_no_down(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:10:00.0")
    node.look(2)
    (port / "state").write_text("")
    assert node.look(6) == []
    assert math.isnan(node.rows["n1/mlx5_0:1"]["port_active"])
    node.sysfs.write(port / "state", ACTIVE)
    assert node.look(2) == []


def test_fault_a_card_that_is_gone_from_the_bus_is_told(node: Node) -> None:
    node.sysfs.rdma("mlx5_0", "0000:10:00.0")
    node.look(2)
    shutil.rmtree(node.sysfs.root / "class" / "infiniband" / "mlx5_0")
    shutil.rmtree(node.sysfs.card("0000:10:00.0"))
    (down,) = node.look(6)
    assert (down.name, down.attributes["state"]) == ("link.down", "its card is gone from the PCI bus")


def test_twin_an_interface_that_is_given_to_a_container_is_no_down(node: Node) -> None:
    node.sysfs.interface("eth0", "0000:20:00.0")
    node.look(2)
    shutil.rmtree(node.sysfs.root / "class" / "net" / "eth0")
    assert node.look(6) == []


def test_an_interface_that_was_switched_off_is_told_as_that(node: Node) -> None:
    folder = node.sysfs.interface("eth0", "0000:20:00.0")
    node.look(2)
    node.sysfs.write(folder / "operstate", "down")
    node.sysfs.write(folder / "flags", "0x1002")
    (down,) = node.look(2)
    assert "switched off by an administrator" in down.message


# --- anything in a file


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.integers(-5, 1 << 70).map(lambda number: str(number).encode())), min_size=12, max_size=12))
def test_whatever_the_files_hold_nothing_fails_and_no_rate_is_negative(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        port = node.sysfs.rdma("mlx5_0", "0000:10:00.0", port_rcv_data="0", symbol_error="0", link_downed="0")
        interface = node.sysfs.interface("eth0", "0000:20:00.0", rx_bytes="0")
        files = [port / name for name in ("state", "phys_state", "rate", "link_layer", "counters/port_rcv_data", "counters/symbol_error", "counters/link_downed")]
        files += [interface / name for name in ("operstate", "speed", "flags", "dev_port", "statistics/rx_bytes")]
        node.look(5)
        for path, content in zip(files, contents, strict=True):
            path.write_bytes(content)
        node.look(6)
        files[0].unlink()
        node.look(6)
        assert set(node.rows) == {"n1/mlx5_0:1", "n1/eth0"}
        assert all(math.isnan(value) or 0.0 <= value < math.inf for row in node.rows.values() for value in row.values())


# --- counters of the driver


class Driver:
    """Answers SIOCETHTOOL as a driver with these counters does: into the memory that the request points to."""

    def __init__(self, counters: dict[str, int]) -> None:
        self.counters = counters

    def __call__(self, channel: object, request: int, argument: bytes) -> None:
        name, address = struct.unpack("16sP", argument)
        assert (request, name.rstrip(b"\0")) == (0x8946, b"eth0")
        (command,) = struct.unpack("=I", ctypes.string_at(address, 4))
        parts = {
            0x37: struct.pack("=IIQI", 0x37, 0, 1 << 1, len(self.counters)),
            0x1B: struct.pack("=III", 0x1B, 1, len(self.counters)) + b"".join(struct.pack("32s", each.encode()) for each in self.counters),
            0x1D: struct.pack(f"=II{len(self.counters)}Q", 0x1D, len(self.counters), *self.counters.values()),
        }
        ctypes.memmove(address, parts[command], len(parts[command]))


def test_counters_of_the_driver_are_read_by_name_and_new_ones_are_named_again() -> None:
    driver = Driver({"rx_prio3_pause": 5, "tx_global_pause": 7})
    counters = EthtoolCounters("eth0", driver)
    assert counters.read() == {"rx_prio3_pause": 5, "tx_global_pause": 7}
    driver.counters = {"rx_symbol_err_phy": 2**63, **driver.counters}
    assert counters.read() == {"rx_symbol_err_phy": 2**63, "rx_prio3_pause": 5, "tx_global_pause": 7}


def test_a_driver_without_counters_has_none() -> None:
    assert EthtoolCounters("eth0", Driver({})).read() == {}


@pytest.mark.parametrize(
    ("counter", "metric"),
    [
        ("ethtool/rx_prio0_pause", "pauses_per_s"), ("ethtool/tx_discards_phy", "discards_per_s"), ("ethtool/rx_ecn_mark", "congestion_marks_per_s"),
        ("hw_counters/rp_cnp_handled", "congestion_marks_per_s"), ("counters/port_xmit_wait", "send_waits_per_s"), ("ethtool/rx_packets", ""),
        ("statistics/rx_dropped", ""), ("hw_counters/out_of_sequence", ""),
    ],
)  # fmt: skip
def test_only_what_tells_of_errors_and_congestion_is_collected(counter: str, metric: str) -> None:
    """Packets that no protocol wanted (rx_dropped), or that took another way (out_of_sequence), are no sign of a fault."""
    assert metric_of(counter) == metric
