"""What the dashboard asks about Eagle Eye itself: leases and findings of the ledger, and the server's own figures as it is scraped."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dashboard.pages import eagle_eye
from dashboard.queries import self_monitoring
from dashboard.sources import Sources
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.ledger import LeaseHolder, Ledger
from eagle_eye.metrics import Metrics, PartitionMetrics, ProcessMetrics
from eagle_eye.types import Entity, Evidence, Hold, IncidentState, Kind, Notice, Plan
from fakes.sample_values import a_finding, a_plan, an_incident

NOW = 1000.0
HOLDER = LeaseHolder(host="server-1", pid=7, incarnation="b")
FIGURES = ProcessMetrics(
    role="all", leads=True, leads_since=NOW - 10, dropped=3, clocks={"node-b": -30.5, "node-c": 4.0},
    partitions=(PartitionMetrics(partition=0, lag_records=500, lag_s=12.5, last_tick=NOW - 13, records=10, frames=3, marks=4, findings=0, incidents=0, dead_letters=2),),
)  # fmt: skip


@pytest.fixture
def sources(tmp_path: Path, ledger: Ledger) -> Iterator[Sources]:
    made = Sources(Config(state_dir=str(tmp_path), server=ServerConfig(http="")), clock=FakeClock(NOW))
    yield made
    made.close()


@pytest.fixture
def scraped(tmp_path: Path, ledger: Ledger) -> Iterator[Sources]:
    """With a server that shows its figures."""
    body, _ = Metrics(lambda: FIGURES, ledger, FakeClock(NOW)).scrape()

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made = Sources(Config(state_dir=str(tmp_path), server=ServerConfig(http=f"127.0.0.1:{server.server_port}")), clock=FakeClock(NOW))
    yield made
    made.close()
    server.shutdown()
    thread.join()
    server.server_close()


def opened(ledger: Ledger) -> None:
    ledger.save_incident(an_incident(since=899.0, time=900.0), IncidentState.OPEN)


def doubted(ledger: Ledger) -> Plan:
    """A plan that a guard has held for a clock."""
    opened(ledger)
    plan = a_plan("plan-1", made=905.0, expires=1500.0)
    ledger.save_plan(plan)
    ledger.save_verdict(plan, Hold(guard="telemetry_distrust", reason="the clock of node-b is more than 5 s behind"), 906.0)
    return plan


def test_status_names_the_leader_owners_blind_spots_and_clocks(sources: Sources, ledger: Ledger) -> None:
    ledger.acquire("leader", HOLDER, 100.0, NOW - 10)
    ledger.acquire("partition/0", HOLDER, 100.0, NOW - 10)
    failing = a_finding(id="f", kind="collector.failing", entity=Entity(kind=Kind.NODE, name="node-a"), evidence=(Evidence(text="gpu: the driver is gone"),))
    ledger.save_findings([failing])
    ledger.save_notice(Notice(name="stream.away", time=990.0, message="the disk is full"))
    doubted(ledger)
    status = self_monitoring.status(sources)
    assert (status.leader, status.term, status.figures) == ("process 7 on server-1 (term 1)", 1, False)
    assert [(line.partition, line.owner) for line in status.partitions] == [(0, "process 7 on server-1")]
    assert [(line.node, line.reason) for line in status.collectors] == [("node-a", "gpu: the driver is gone")]
    assert [(line.node, line.offset_s, line.measured) for line in status.clocks] == [("node-b", -5.0, False)]
    assert [notice.message for notice in status.notices] == ["the disk is full"]


def test_the_leader_measures_clocks_lag_and_what_was_lost(scraped: Sources, ledger: Ledger) -> None:
    doubted(ledger)
    status = self_monitoring.status(scraped)
    assert [(line.node, line.offset_s, line.measured) for line in status.clocks] == [("node-b", -30.5, True), ("node-c", 4.0, True)], "and not what a guard said a while ago"
    [line] = status.partitions
    assert (line.lag_s, line.lag_records, line.last_tick) == (12.5, 500.0, NOW - 13)
    assert (status.dropped["records of the server that found no room"], status.dropped["records that could not be read"]) == (3.0, 2.0)
    told = {tile.label: (tile.value, tile.tone) for tile in eagle_eye.tiles(status, NOW)}
    assert told["Lag"] == ("12.5\u202fs", "alarm")
    assert told["Clocks off"] == (2, "warning")
    assert told["Lost"] == ("5", "warning")


def test_nobody_leads_once_the_lease_is_over_and_who_led_last_is_told(sources: Sources, ledger: Ledger) -> None:
    ledger.acquire("leader", HOLDER, 2.0, NOW - 10)
    status = self_monitoring.status(sources)
    assert (status.leader, status.last_leader, status.led_until) == ("", "process 7 on server-1", NOW - 8)
    [leader] = [tile for tile in eagle_eye.tiles(status, NOW) if tile.label == "Leader"]
    assert leader.note == "last process 7 on server-1, term 1, until 8\u202fs ago"
