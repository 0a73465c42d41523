"""The link of one of three nodes is really cut (network namespaces): the launchers of the others test the network by themselves, and the incident says what is cut."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.ledger import IncidentRecord, Ledger
from fakes.launchers import DEADLINE_S, LauncherCluster, wait_until
from remediation.launcher.launcher_settings import LauncherSettings
from servers.network import Network

NODES = (0, 1, 2)
PORT = 29400


class NetworkedCluster(LauncherCluster):
    """Nodes with a network of their own, and a server where the switch is."""

    def __init__(self, directory: Path, network: Network) -> None:
        super().__init__(directory)
        self.network, self.server = network, f"{network.server}:7467"

    def settings(self, node: int, /, **changes: Any) -> LauncherSettings:
        given = {
            "nproc": 1, "nnodes": (1, len(NODES)), "insecure": True, "leader": self.server, "address": f"{self.network.address(node)}:{PORT}",
            "rendezvous": f"{self.network.address(0)}:{PORT}", "join_timeout_s": 60.0,
        }  # fmt: skip
        return super().settings(node, **given | changes)

    def inside(self, node: int) -> tuple[str, ...]:
        return self.network.inside(node)

    def incidents(self) -> list[IncidentRecord]:
        with contextlib.closing(Ledger.open(self.directory / "state" / "ledger.sqlite", read_only=True)) as ledger:
            return list(ledger.incidents())

    def told(self) -> list[str]:
        """Lines of network tests in the evidence of all incidents."""
        return [line.text for kept in self.incidents() for line in kept.incident.evidence if line.text.startswith("network test")]

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.network.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NetworkedCluster]:
    made = NetworkedCluster(tmp_path, Network(len(NODES)))
    yield made
    made.close()


@pytest.fixture
def server(cluster: NetworkedCluster) -> Iterator[None]:
    config, log = cluster.directory / "config.toml", cluster.directory / "server.log"
    config.write_text(f'[server]\nlisten = "{cluster.server}"\nhttp = ""\ninsecure = true\n[history]\nenabled = false\n')
    folders = ["--state-dir", str(cluster.directory / "state"), "--run-dir", str(cluster.directory / "run")]
    command = [*cluster.network.inside_switch, sys.executable, "-m", "eagle_eye.app.cli", "server", "--config", str(config), *folders]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_until("a server that leads", lambda: process.poll() is not None or "leading in term" in log.read_text())
        assert process.poll() is None, log.read_text()
        yield
    finally:
        sys.stdout.write(log.read_text()[-4000:])  # shown where the test fails
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.mark.usefixtures("server")
def test_a_cut_link_is_found_by_the_others_and_named_in_the_incident(cluster: NetworkedCluster) -> None:
    for node in NODES:
        cluster.launch(node)
    wait_until("all three to train", lambda: cluster.layouts() and set(cluster.layouts()[-1].nodes) == {"n0", "n1", "n2"})
    cluster.network.cut(2)
    lines = wait_until("the result of a test", cluster.told)
    assert "network test, run by itself: n2 and n0, n1 do not reach each other, while these reach others: its network is cut, or it is down" in lines
    assert {event.entity.name for event in cluster.events("network.tested")} == {"n0", "n1"}
