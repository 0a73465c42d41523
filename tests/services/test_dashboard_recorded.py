"""Every page in a real browser on what `make demo` has written: the recorded run that the product ships. What each shows is read in its ledger, and in its history."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from dashboard import formatting
from dashboard.queries.incidents import NOT_OVER
from dashboard.sources import Sources
from eagle_eye.config import Config
from eagle_eye.ledger import IncidentRecord, Ledger
from servers.pages import BERLIN, DRAWN, bill, shows, tile_of

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
        shows(page, "No open incident")
    for kept in open_ones:
        call = page.locator(".ee-call", has=page.locator(f"a[href*='{kept.incident.id}']"))
        shows(call, formatting.capital(kept.incident.cause), bill(demo_ledger, kept), "not healed: needs an operator" if str(kept.state) == "failed" else str(kept.state))
    row = page.locator(".ee-table", has_text="Goodput").locator("tbody tr")
    expect(row.locator("td").first).to_contain_text(job_of(demo_ledger))
    shows(row, f"{newest(demo, 'max(step)', 'steps'):,.0f}")
    expect(row.locator("td").last).to_have_text(str(len(open_ones) or formatting.NOTHING))


def test_the_job(go: Go, demo: Config, demo_ledger: Ledger) -> None:
    page = go(f"job?job={job_of(demo_ledger)}", job_of(demo_ledger))
    page.locator(DRAWN).nth(1).wait_for()
    open_ones = present(demo_ledger)
    shows(tile_of(page, "Open incidents"), f"Open incidents {len(open_ones)}")
    shows(tile_of(page, "Step"), f"{newest(demo, 'max(step)', 'steps'):,.0f} epoch {newest(demo, 'max(epoch)', 'steps'):.0f}")
    marks = page.locator(".ee-table", has=page.get_by_text("What happened to the job"))
    for kept in demo_ledger.incidents()[:10]:
        shows(marks, formatting.clock_time(kept.opened, BERLIN), formatting.capital(kept.incident.cause))


def test_the_incidents(go: Go, demo_ledger: Ledger) -> None:
    page = go("incidents", "Incidents")
    assert len(demo_ledger.incidents()) >= 10
    for kept in demo_ledger.incidents():
        row = page.locator("tbody tr", has=page.locator(f"td > a[href*='{kept.incident.id}']"))
        shows(row, formatting.capital(kept.incident.cause), bill(demo_ledger, kept), formatting.clock_time(kept.incident.since, BERLIN))
        expect(row.locator(".ee-badge", has_text=re.compile("Superseded"))).to_have_count(int(kept in superseded(demo_ledger)))


def test_an_incident_of_each_action(go: Go, demo_ledger: Ledger) -> None:
    plans = {plan.id: plan for plan in demo_ledger.plans()}
    judged = {outcome.action: outcome for outcome in demo_ledger.outcomes() if outcome.state == "done" and outcome.actual and outcome.plan in plans}
    assert len(judged) >= 3
    for outcome in judged.values():
        page = go(f"incident?incident={outcome.incident}", outcome.incident)
        kept = demo_ledger.incident_record(outcome.incident)
        assert kept is not None
        shows(tile_of(page, "Cause"), formatting.capital(kept.incident.cause))
        shows(tile_of(page, "Costs so far"), bill(demo_ledger, kept))
        shows(page, kept.incident.id, outcome.detail)


def test_the_actions(go: Go, demo_ledger: Ledger) -> None:
    page = go("actions", "Actions")
    page.locator(DRAWN).first.wait_for()
    measured = [outcome for outcome in demo_ledger.outcomes() if "downtime_s" in outcome.actual]
    assert len(measured) >= 3
    for outcome in measured:
        row = page.locator("tbody tr", has=page.locator(f"a[href*='{outcome.incident}']"), has_text=outcome.detail)
        said = (formatting.duration(outcome.actual["downtime_s"]), "expected", formatting.duration(outcome.predicted.get("downtime_s")))
        expect(row.filter(has_text=re.compile(r"\s*".join(map(re.escape, said)))).first).to_be_visible()


def test_eagle_eye_itself(go: Go, demo: Config, demo_ledger: Ledger, ended: float) -> None:
    page = go("eagle_eye", "Eagle Eye")
    lease = demo_ledger.holder_of("leader")
    assert lease is not None
    shows(tile_of(page, "Leader"), f"process {lease.holder.pid} on {lease.holder.host}, term {lease.term}, until {formatting.relative(lease.until, ended)}")
    shows(tile_of(page, "Newest sample"), formatting.relative(newest(demo, "max(epoch(time))", "node/host"), ended))
    failing = [finding for finding in demo_ledger.findings(active_only=True) if finding.kind == "collector.failing"]
    shows(tile_of(page, "Blind spots"), f"Blind spots {len(failing)}")
    assert demo_ledger.notices()
    for notice in demo_ledger.notices():
        shows(page.locator("tbody tr", has_text=notice.message.replace("`", "")), notice.name, formatting.clock_time(notice.time, BERLIN))
