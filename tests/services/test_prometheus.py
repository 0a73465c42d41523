"""A real Prometheus and a real server: rules are checked, the server is scraped, an alert fires and comes back as a finding."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eagle_eye.app.local_cluster import LocalCluster, end
from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.history.history_metrics import HistoryMetrics, PartitionHistoryMetrics
from eagle_eye.ledger import Ledger
from eagle_eye.metrics import Metrics, PartitionMetrics, ProcessMetrics
from eagle_eye.ports import free_port
from eagle_eye.types import Breaker, Entity, Event, IncidentState, Kind, Outcome, Refuse
from eagle_eye.types.job_snapshot import JobSnapshot, SnapshotStep
from fakes.sample_values import JOB, a_layout, a_plan, an_incident

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DEADLINE_S = 90.0
CLOCK = SystemClock()


def needed(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is missing: scripts/install-debian prometheus prometheus-alertmanager")


def promtool(*arguments: str, stdin: str = "") -> str:
    """What it prints. Fails with that if it does not like what it sees."""
    needed("promtool")
    done = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, cwd=DEPLOY / "prometheus")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait(what: str, look: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """The first answer that is not empty."""
    until = CLOCK.monotonic() + seconds
    while CLOCK.monotonic() < until:
        if found := look():
            return found
        CLOCK.sleep(0.1)
    pytest.fail(f"waited {seconds:.0f} s in vain for {what}")


# --- what stands in deploy/ ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> str:
    """A scrape in which every family has a sample."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger.open(path)
    partition = PartitionMetrics(partition=0, lag_records=0, lag_s=0.0, last_tick=1.0, records=1, frames=1, marks=1, findings=1, incidents=1, dead_letters=1)
    figures = ProcessMetrics(role="all", leads=True, partitions=(partition,), sessions={"agent": 1})
    metrics = Metrics(lambda: figures, ledger, FakeClock(1000.0))
    metrics.add(HistoryMetrics(lambda: [PartitionHistoryMetrics(partition=0, files=1, rows=1, bytes=1, skipped=0, failures=0, behind_s=30.0)]))
    step = SnapshotStep(number=1, epoch=1, end=1.0, workers=2, tokens=8.0, step_s=0.5)
    metrics.observe_job(JobSnapshot(job=JOB, generation=1, number=1, time=2.0, tick=True, steps=(step,), layout=a_layout()))
    failing = Event(name="collector.failing", job=JOB, entity=Entity(kind=Kind.NODE, name="n"), time=1.0, node="n", incarnation="b", number=1, attributes={"collector": "gpu"})
    metrics.observe_events([failing])
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    ledger.save_outcome(Outcome(plan="p", incident="i", action="restart_worker", state="done", time=2.0, detection_s=0.5, transition_s=2.0))
    ledger.save_verdict(a_plan(), Refuse(guard="blast_radius", reason="too many"), 2.0)
    ledger.save_suppression(Breaker(id="b", job=JOB, action="restart_worker", plan="p", incident="i", reason="no help", since=1.0))
    shown = metrics.scrape()[0].decode() + '# HELP eagle_eye_site_alerts_total x.\n# TYPE eagle_eye_site_alerts_total counter\neagle_eye_site_alerts_total{result="events"} 1\n'
    ledger.close()
    return shown


def test_the_names_of_our_metrics_follow_prometheus_rules(everything: str) -> None:
    ours = "".join(f"{line}\n" for line in everything.splitlines() if "eagle_eye" in line)
    assert promtool("check", "metrics", stdin=ours) == ""


def test_the_rules_are_valid_and_fire_as_they_should(everything: str) -> None:
    assert "19 rules found" in promtool("check", "rules", "rules.yml")
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")
    assert "is valid" in promtool("check", "config", "prometheus.yml")
    assert unknown_names((DEPLOY / "prometheus/rules.yml").read_text(), everything) == set()


def test_the_dashboard_asks_for_metrics_that_exist(everything: str) -> None:
    dashboard = json.loads((DEPLOY / "grafana/eagle-eye.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(asked) > 20
    assert all(unknown_names(expression, everything) == set() for expression in asked)
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places), "no panel lies on another"


def test_every_metric_is_documented(everything: str) -> None:
    text = (DEPLOY.parent / "docs/metrics.md").read_text()
    names = set(re.findall(r"^# TYPE (eagle_eye_\w+)", everything, re.MULTILINE))
    assert {name for name in names if f"`{name}`" not in text} == set()


def unknown_names(text: str, scrape: str) -> set[str]:
    known = set(re.findall(r"^(\w+)[{ ]", scrape, re.MULTILINE))
    return set(re.findall(r"\beagle_eye_\w+", text)) - known


def test_alertmanagers_example_is_valid() -> None:
    needed("amtool")
    checked = subprocess.run(["amtool", "check-config", "alertmanager.yml"], capture_output=True, text=True, cwd=DEPLOY / "prometheus")
    assert checked.returncode == 0, checked.stderr


# --- a real one ------------------------------------------------------------------------------------------------------

RULES = """\
groups:
  - name: site
    interval: 1s
    rules:
      - {alert: NobodyTrains, expr: eagle_eye_leader == 1, labels: {severity: warning, node: node-a}, annotations: {summary: The cluster is idle}}
"""
PROMETHEUS = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]}}
scrape_configs: [{{job_name: eagle-eye, honor_labels: true, static_configs: [{{targets: ["127.0.0.1:{http}"]}}]}}]
"""
ALERTMANAGER = """\
route: {{receiver: eagle-eye, group_by: [alertname], group_wait: 0s, group_interval: 1s, repeat_interval: 2s}}
receivers: [{{name: eagle-eye, webhook_configs: [{{url: "http://127.0.0.1:{http}/hooks/alertmanager"}}]}}]
"""
SERVER = """\
[server]
listen = "127.0.0.1:{listen}"
http = "127.0.0.1:{http}"
"""


class Site:
    """A server, a Prometheus that scrapes it, an Alertmanager that posts to it."""

    def __init__(self, folder: Path) -> None:
        self.ports = {name: free_port() for name in ("listen", "http", "prometheus", "alertmanager")}
        for name, text in (("eagle-eye.toml", SERVER), ("prometheus.yml", PROMETHEUS), ("alertmanager.yml", ALERTMANAGER)):
            (folder / name).write_text(text.format(**self.ports))
        (folder / "rules.yml").write_text(RULES)
        self.cluster = LocalCluster(folder=folder, config_file=folder / "eagle-eye.toml", clock=CLOCK, state_dir=folder / "state")
        self._folder = folder
        self._peers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.cluster.start_server()
        self._run("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb")
        self._run("prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=silences", "--cluster.listen-address=", name="alertmanager")

    def stop(self) -> None:
        for peer in self._peers:
            end(peer)
        self.cluster.stop()

    def ask(self, path: str, port: str = "http") -> httpx.Response | None:
        try:
            return httpx.get(f"http://127.0.0.1:{self.ports[port]}{path}", trust_env=False)
        except httpx.TransportError:
            return None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        answer = self.ask(f"/api/v1/query?query={expression}", "prometheus")
        return answer.json()["data"]["result"] if answer is not None and answer.status_code == 200 else []

    def _run(self, program: str, *arguments: str, name: str = "prometheus") -> None:
        listen = f"--web.listen-address=127.0.0.1:{self.ports[name]}"
        with (self._folder / f"{name}.log").open("wb") as log:
            self._peers.append(subprocess.Popen([program, listen, *arguments], cwd=self._folder, stdout=log, stderr=log))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Site]:
    needed("prometheus", "prometheus-alertmanager")
    made = Site(tmp_path_factory.mktemp("site"))
    made.start()
    try:
        yield made
    finally:
        made.stop()


def test_prometheus_scrapes_a_server_and_an_alert_comes_back_as_a_finding(site: Site) -> None:
    def ready() -> bool:
        answer = site.ask("/healthz/ready")
        return answer is not None and answer.status_code == 200

    wait(f"the server to be ready: {site.cluster.tail('server')}", ready)
    wait("a scrape", lambda: site.query("eagle_eye_leader==1"))
    assert site.query("eagle_eye_partition_lag_seconds")[0]["metric"]["partition"] == "0"
    assert site.query("eagle_eye_leader_term")[0]["value"][1] == "1"
    wait("the alert to fire", lambda: site.query('ALERTS{alertname="NobodyTrains",alertstate="firing"}'))

    def findings() -> str:
        with contextlib.closing(Ledger.open(site.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
            return next((each.evidence[0].text for each in ledger.findings(active_only=True) if each.kind == "site.alert"), "")

    assert "NobodyTrains: The cluster is idle (warning)" in wait("the finding", findings)
    wait("the alert to be sent again", lambda: site.query('eagle_eye_site_alerts_total{result="repeated"} > 0'))
    assert site.query('eagle_eye_site_alerts_total{result="events"}')[0]["value"][1] == "1"


def test_a_server_whose_http_port_is_taken_says_so_and_ends(site: Site, tmp_path: Path) -> None:
    wait("the server", lambda: site.ask("/healthz/live"))
    command = [sys.executable, "-m", "eagle_eye.app.cli", "server", "--state-dir", str(tmp_path), "--run-dir", str(tmp_path / "run")]
    second = subprocess.run([*command, "--http", f"127.0.0.1:{site.ports['http']}"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert second.returncode == 1
    assert f"server.http cannot listen on 127.0.0.1:{site.ports['http']}: address already in use" in second.stderr
