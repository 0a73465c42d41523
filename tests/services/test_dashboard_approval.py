"""From an alert's link to a healed job: a real job is slowed down, a person reads its incident in a browser and approves the plan."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from dashboard import words
from eagle_eye.app import drills
from eagle_eye.app.addresses import free_port
from eagle_eye.app.demo.stage import Stage
from eagle_eye.app.showing import Dashboard
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.types import IncidentState, Plan

LOOP = Path(__file__).parents[1] / "scenario" / "loop.py"
CHROMIUM = "/usr/bin/chromium"
PATIENCE_S = 120.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""
lease_s = 1.5

[engine]
mode = "recommend"
relapse_s = 5.0

[guards.blast_radius]
nodes = 10
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="approve") as folder:  # short: paths of unix sockets are limited
        made = Stage(folder=Path(folder), config=CONFIG, command=(sys.executable, str(LOOP)), job="test/loop", clock=SystemClock())
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture
def served(stage: Stage) -> Iterator[str]:
    config = Config(state_dir=str(stage.cluster.state_dir), server=ServerConfig(listen=stage.server_address, http=""))
    made = Dashboard(config, f"127.0.0.1:{free_port()}", stage.clock, log=stage.folder / "dashboard.log")
    made.start()
    try:
        made.wait()
        yield made.url
    finally:
        made.stop()


def come(stage: Stage, what: str, there: Callable[[], object]) -> None:
    """Wait for something; fail with its name."""
    assert stage.wait(lambda: bool(there()), PATIENCE_S), f"{what} did not come"


def waiting(stage: Stage, since: float) -> tuple[IncidentRecord, Plan] | None:
    """The incident and its plan that waits for a word."""
    with closing(Ledger.open(stage.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        for kept in ledger.incidents():
            for plan in ledger.plans(incident=kept.incident.id):
                held = any(type(each.verdict).__name__ == "Hold" for each in ledger.verdicts(plan=plan.id))
                if kept.opened > since and held and ledger.outcome(plan.id) is None:
                    return kept, plan
    return None


def epoch(stage: Stage) -> int:
    layout = stage.record.trace.layout
    assert layout is not None
    return layout.epoch


def state_of(stage: Stage, incident: str) -> str:
    with closing(Ledger.open(stage.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        kept = ledger.incident_record(incident)
    return str(kept.state) if kept else ""


def test_a_click_on_approve_heals_the_job(stage: Stage, served: str) -> None:
    assert stage.wait_steps(30, PATIENCE_S), "the job does not run"
    before = epoch(stage)
    struck = drills.slow("node-b", stage.cluster.run_dir("node-b"), stage.clock)
    try:
        come(stage, "a plan that waits", lambda: waiting(stage, struck.truth.time))
        found = waiting(stage, struck.truth.time)
        assert found is not None
        kept, plan = found
        with sync_playwright() as playwright:
            page = playwright.chromium.launch(executable_path=CHROMIUM, args=["--disable-dev-shm-usage"]).new_page()
            page.set_default_timeout(PATIENCE_S * 1000)
            expect.set_options(timeout=PATIENCE_S * 1000)
            page.goto(f"{served}/incident?incident={kept.incident.id}")
            expect(page.get_by_role("heading", name=words.capital(kept.incident.cause)).first).to_be_visible()
            expect(page.locator(".ee-terms", has_text=plan.digest)).to_be_visible()
            page.get_by_role("button", name="Approve…").click()
            page.get_by_label("Your name").fill("ada")
            page.get_by_role("button", name="Approve now").click()
            expect(page.locator(".ee-banner", has_text="ada")).to_be_visible()
            come(stage, "the approved action", lambda: epoch(stage) > before)
            struck.end()
            come(stage, "a healed job", lambda: state_of(stage, kept.incident.id) == IncidentState.HEALED)
            expect(page.locator(".ee-incident-over .ee-badge", has_text="Healed")).to_be_visible()
            expect(page.locator("ol.ee-track li", has_text="Result")).to_have_class("ee-stage-reached")
    finally:
        struck.end()
