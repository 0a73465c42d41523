"""The pages in a real browser, over the ledger and the history of a sample run that the real engine has written: each page is compared with the ledger."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboard import formatting
from dashboard.sources import Sources
from eagle_eye.config import Config
from eagle_eye.ledger import Ledger
from eagle_eye.ledger.job_safety import job_safeties
from fakes.sample_cluster import HUNG, IDLE_NODES, JOB, KILLED, KILLED_AGAIN, NODES, SLOW_NODE, WAITING
from servers.pages import DESKTOP, bill, shows, tile_of, within

Open = Callable[..., Page]
Go = Callable[[str, str], Page]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def ledger(sample_ledger: Ledger) -> Ledger:
    return sample_ledger


@pytest.fixture(scope="module")
def go(tour, sample_url: str) -> Go:
    return tour(sample_url)


@pytest.fixture
def opened(reader, sample_url: str) -> Open:
    return reader(sample_url)


def test_the_link_of_an_alert_shows_all_that_counts_without_scrolling_even_as_the_first_page_of_a_fresh_process(opened: Open, ledger: Ledger) -> None:
    page = opened(f"incident?incident={WAITING}")
    kept = ledger.incident_record(WAITING)
    [plan] = ledger.plans(incident=WAITING)
    assert kept is not None
    seen = (
        page.get_by_role("heading", name=f"Slow node: {SLOW_NODE}"),
        page.locator(".ee-incident-proof", has_text=kept.incident.evidence[0].text[11:]),
        page.locator(".ee-tile", has_text="Cause").get_by_text("Slow node"),
        page.locator(".ee-tile", has_text="Culprit").get_by_text(SLOW_NODE),
        page.locator(".ee-tile", has_text="Where").get_by_text(JOB),
        page.locator(".ee-tile", has_text="Costs so far").get_by_text(bill(ledger, kept)),
        page.locator(".ee-action-what", has_text=f"Evict {SLOW_NODE}"),
        page.locator(".ee-terms", has_text=plan.digest),
        page.get_by_role("button", name="Approve…"),
        page.locator("ol.ee-track li", has_text="Result"),
    )
    for each in seen:
        within(each.first, height=DESKTOP[1])


def test_a_healed_incident_shows_what_was_said_beside_what_came_of_it_its_stacks_and_the_way_there(go: Go, ledger: Ledger) -> None:
    page = go(f"incident?incident={HUNG}", HUNG)
    expect(page.locator(".ee-stack").first).to_contain_text("self.queue.get()")
    outcome = next(each for each in ledger.outcomes(incident=HUNG) if each.predicted)
    shows(page, "Python hang: worker 0 on node-b", *(formatting.duration(outcome.actual[name]) for name in ("downtime_s", "verify_s")), outcome.detail)
    expect(page.locator(".stMain")).to_contain_text("whether its marks move again", ignore_case=True)
    expect(page.locator(".ee-stack").nth(1)).to_have_text(re.compile("^15 workers"))
    shows(page, "Signal", "Cause", "Plan", "Transition", "Result")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()


def test_the_list_has_what_waits_first_and_leads_to_each_incident(opened: Open, ledger: Ledger) -> None:
    page = opened("incidents")
    rows = page.locator(".ee-table tbody tr")
    expect(rows).to_have_count(len(ledger.incidents()))
    expect(rows.first).to_contain_text("Waits for your decision")
    expect(rows.first).to_contain_text("Slow node")
    for kept in ledger.incidents():
        shows(page, formatting.capital(kept.incident.cause), bill(ledger, kept))
    page.get_by_text("Not over").click()
    expect(rows).to_have_count(1)
    rows.first.get_by_role("link", name="Slow node").click()
    expect(page.get_by_role("heading", name=f"Slow node: {SLOW_NODE}")).to_be_visible()
    page.wait_for_url(f"**incident={WAITING}")


def test_similar_incidents_are_one_click_away(opened: Open, ledger: Ledger) -> None:
    page = opened(f"incident?incident={KILLED}")
    heading = page.get_by_role("heading", name="Worker killed: worker 1 on node-b")
    expect(heading).to_be_visible()
    page.locator(".ee-table", has_text="Became").get_by_role("link").click()
    page.wait_for_url(f"**incident={KILLED_AGAIN}")
    expect(page.locator(".ee-id", has_text=KILLED_AGAIN)).to_be_visible()
    kept = ledger.incident_record(KILLED_AGAIN)
    assert kept is not None
    shows(page, kept.incident.evidence[1].text.partition(": ")[2])  # its last words


def test_an_incident_that_is_not_there_says_what_to_do(opened: Open) -> None:
    page = opened("incident?incident=nonsense")
    shows(page, "There is no such incident", "older than the ledger keeps")
    page.get_by_role("link", name="the list").click()
    expect(page.get_by_role("heading", name="Incidents", exact=True)).to_be_visible()


@pytest.mark.parametrize("address", ["", "cluster"])
def test_the_cluster_of_ten_thousand_nodes_opens_and_names_the_sick_one(opened: Open, ledger: Ledger, address: str) -> None:
    page = opened(address)
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    [(job, facts)] = ledger.jobs().items()
    kept = ledger.incident_record(WAITING)
    assert kept is not None
    shows(page, f"{IDLE_NODES + len(facts.layout.nodes):,}", SLOW_NODE, job, bill(ledger, kept))
    expect(page.locator(".ee-call", has_text=formatting.capital(kept.incident.cause))).to_contain_text(SLOW_NODE)
    expect(page.locator(".ee-table", has_text="Workers").locator("tbody tr")).to_contain_text(str(len(facts.layout.placements)))


def test_the_job_is_told_with_its_workers_and_all_that_happened_to_it(go: Go, ledger: Ledger) -> None:
    page = go(f"job?job={JOB}", JOB)
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    facts = ledger.jobs()[JOB]
    shows(page, f"epoch {facts.layout.epoch}", f"{len(facts.layout.placements)} workers on {len(facts.layout.nodes)} nodes")
    for kept in ledger.incidents():
        expect(page.locator(f"a[href*='{kept.incident.id}']", has_text=formatting.capital(kept.incident.cause)).first).to_be_attached()
    expect(page.locator(".ee-banner", has_text=SLOW_NODE)).to_contain_text("is slow")
    safe = page.locator(".ee-table", has_text="In storage").locator("tbody tr")
    expect(safe).to_have_count(3)
    tiers = job_safeties(ledger, JOB)[JOB].tiers
    expect(safe.nth(1)).to_contain_text(re.compile(f"On another node.*{tiers['backup'].step:,}.*ago"))
    expect(safe.nth(2)).to_contain_text("node-a: No space left on device")


def test_the_actions_are_told_with_what_was_expected_of_them_and_who_said_no(go: Go, ledger: Ledger) -> None:
    page = go("actions", "Actions")
    expect(page.locator(".js-plotly-plot")).to_be_visible()
    measured = [outcome for outcome in ledger.outcomes() if "downtime_s" in outcome.actual]
    assert len(measured) >= 3
    for outcome in measured:
        shows(page, formatting.duration(outcome.actual["downtime_s"]), f"expected {formatting.duration(outcome.predicted['downtime_s'])}", outcome.detail)
    held = [each.verdict.reason for each in ledger.verdicts(incident=WAITING) if type(each.verdict).__name__ == "Hold"]
    shows(page, held[-1])


def test_eagle_eye_tells_of_itself_who_leads_what_it_cannot_see_and_how_far_the_numbers_go(go: Go, sample_state: Path, ledger: Ledger) -> None:
    page = go("eagle_eye", "Eagle Eye")
    sources = Sources(Config(state_dir=str(sample_state)))
    now, lease, owner = sources.now(), ledger.holder_of("leader"), ledger.holder_of("partition/0")
    assert lease is not None
    assert owner is not None
    shows(tile_of(page, "Leader"), f"{lease.holder.host} process {lease.holder.pid}, term {lease.term}, since {formatting.relative(lease.since, now)}")
    shows(page.locator(".ee-table", has_text="Partition").locator("tbody tr"), f"0 process {owner.holder.pid} on {owner.holder.host} {owner.term}")
    [failing] = [finding for finding in ledger.findings(active_only=True) if finding.kind == "collector.failing"]
    shows(page.locator("tbody tr", has_text="collector fails"), f"{NODES[-1]} ▲collector fails {failing.evidence[0].text} {formatting.relative(failing.since, now)}")
    [told_of] = [each for each in ledger.verdicts(incident=WAITING) if each.verdict.guard == "telemetry_distrust" and "clock" in each.verdict.reason]
    clock = page.locator("tbody tr", has_text="clock is off")
    assert told_of.verdict.reason == f"the clock of {SLOW_NODE} is more than 5 s behind"
    shows(clock, f"{SLOW_NODE} ▲clock is off 5 s behind the server's, at least", formatting.relative(told_of.time, now))
    found = sources.ask("gpu/gpu", "SELECT max(epoch(time)) AS newest FROM {rows}", since=now - 600.0, until=now)
    sources.close()
    assert found is not None
    shows(tile_of(page, "Newest sample"), formatting.relative(float(found["newest"][0]), now))
