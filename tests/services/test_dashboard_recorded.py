"""Every page in a real browser on what `make demo` has written: the recorded run that the product ships. What each shows is read in its ledger, and in its history."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from dashboard import formatting
from dashboard.queries.incidents import NOT_OVER
from dashboard.sources import Sources
from eagle_eye.config import Config
from eagle_eye.ledger import IncidentRecord, Ledger
from servers.pages import BERLIN, DRAWN, bill, plain, tile, told

Go = Callable[[str, str], Page]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def go(tour, demo_url: str) -> Go:
    return tour(demo_url)


@pytest.fixture(scope="module")
def ended(demo: Config) -> float:
    """The time at which the run's clock stands."""
    sources = Sources(demo)
    assert sources.recorded is not None
    return sources.recorded.ended


def job_of(ledger: Ledger) -> str:
    """The one job of the run; it has ended, so that only its incidents name it."""
    [job] = {kept.incident.job for kept in ledger.incidents() if kept.incident.job}
    return job


def superseded(ledger: Ledger) -> list[IncidentRecord]:
    """Those that came back as another one."""
    return [kept for kept in ledger.incidents() if any("it came back as" in outcome.detail for outcome in ledger.outcomes(incident=kept.incident.id))]


def present(ledger: Ledger) -> list[IncidentRecord]:
    """Those that somebody should look at."""
    return [kept for kept in ledger.incidents() if kept.state in NOT_OVER and kept not in superseded(ledger)]


def newest(demo: Config, question: str, table: str) -> float:
    """One number out of the history."""
    sources = Sources(demo)
    assert sources.recorded is not None
    found = sources.ask(table, f"SELECT {question} AS number FROM {{rows}}", since=sources.recorded.began, until=sources.recorded.ended)
    sources.close()
    assert found is not None
    return float(found["number"][0])


def test_the_cluster(go: Go, demo: Config, demo_ledger: Ledger) -> None:
    page = go("", "Cluster")
    page.locator(DRAWN).first.wait_for()
    open_ones = present(demo_ledger)
    if not open_ones:
        assert "No open incident" in told(page)
    for kept in open_ones:
        call = plain(page.locator(".ee-call", has=page.locator(f"a[href*='{kept.incident.id}']")).inner_text())
        assert formatting.capital(kept.incident.cause) in call
        assert bill(demo_ledger, kept) in call
        assert ("not healed: needs an operator" if str(kept.state) == "failed" else str(kept.state)) in call
    row = plain(page.locator(".ee-table", has_text="Goodput").locator("tbody tr").inner_text())
    assert row.startswith(job_of(demo_ledger))
    assert f"{newest(demo, 'max(step)', 'steps'):,.0f}" in row
    assert row.endswith(str(len(open_ones) or formatting.NOTHING))


def test_the_job(go: Go, demo: Config, demo_ledger: Ledger) -> None:
    page = go(f"job?job={job_of(demo_ledger)}", job_of(demo_ledger))
    page.locator(DRAWN).nth(1).wait_for()
    open_ones = present(demo_ledger)
    assert f"Open incidents {len(open_ones)}" in tile(page, "Open incidents")
    assert f"{newest(demo, 'max(step)', 'steps'):,.0f} epoch {newest(demo, 'max(epoch)', 'steps'):.0f}" in tile(page, "Step")
    marks = plain(page.locator(".ee-table", has=page.get_by_text("What happened to the job")).inner_text())
    for kept in demo_ledger.incidents()[:10]:
        assert plain(formatting.clock_time(kept.opened, BERLIN)) in marks
        assert formatting.capital(kept.incident.cause) in marks


def test_the_incidents(go: Go, demo_ledger: Ledger) -> None:
    page = go("incidents", "Incidents")
    assert len(demo_ledger.incidents()) >= 10
    for kept in demo_ledger.incidents():
        row = plain(page.locator("tbody tr", has=page.locator(f"td > a[href*='{kept.incident.id}']")).inner_text())
        assert formatting.capital(kept.incident.cause) in row
        assert bill(demo_ledger, kept) in row
        assert ("Superseded" in row) == (kept in superseded(demo_ledger))
        assert plain(formatting.clock_time(kept.incident.since, BERLIN)) in row


def test_an_incident_of_each_action(go: Go, demo_ledger: Ledger) -> None:
    plans = {plan.id: plan for plan in demo_ledger.plans()}
    judged = {outcome.action: outcome for outcome in demo_ledger.outcomes() if outcome.state == "done" and outcome.actual and outcome.plan in plans}
    assert len(judged) >= 3
    for outcome in judged.values():
        page = go(f"incident?incident={outcome.incident}", outcome.incident)
        kept = demo_ledger.incident_record(outcome.incident)
        assert kept is not None
        assert formatting.capital(kept.incident.cause) in tile(page, "Cause")
        assert bill(demo_ledger, kept) in tile(page, "Costs so far")
        assert kept.incident.id in told(page)
        assert plain(outcome.detail) in told(page)


def test_the_actions(go: Go, demo_ledger: Ledger) -> None:
    page = go("actions", "Actions")
    page.locator(DRAWN).first.wait_for()
    measured = [outcome for outcome in demo_ledger.outcomes() if "downtime_s" in outcome.actual]
    assert len(measured) >= 3
    for outcome in measured:
        row = page.locator("tbody tr", has=page.locator(f"a[href*='{outcome.incident}']"), has_text=outcome.detail)
        cells = [plain(text) for text in row.all_inner_texts()]
        said = f"{plain(formatting.duration(outcome.actual['downtime_s']))} expected {plain(formatting.duration(outcome.predicted.get('downtime_s')))}"
        assert any(said in cell for cell in cells), (said, cells)


def test_eagle_eye_itself(go: Go, demo: Config, demo_ledger: Ledger, ended: float) -> None:
    page = go("eagle_eye", "Eagle Eye")
    lease = demo_ledger.holder_of("leader")
    assert lease is not None
    assert plain(f"process {lease.holder.pid} on {lease.holder.host}, term {lease.term}, until {formatting.relative(lease.until, ended)}") in tile(page, "Leader")
    assert plain(formatting.relative(newest(demo, "max(epoch(time))", "node/host"), ended)) in tile(page, "Newest number")
    failing = [finding for finding in demo_ledger.findings(active_only=True) if finding.kind == "collector.failing"]
    assert f"Blind spots {len(failing)}" in tile(page, "Blind spots")
    assert demo_ledger.notices()
    for notice in demo_ledger.notices():
        row = plain(page.locator("tbody tr", has_text=notice.message.replace("`", "")).inner_text())
        assert notice.name in row
        assert plain(formatting.clock_time(notice.time, BERLIN)) in row
