"""The pages in a real browser, over the ledger and the history of a night that the real engine has written.

One Streamlit and one Chromium for all; each test opens a page of its own. Screenshots are kept where pytest keeps things.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dashboard import words
from eagle_eye.app.addresses import free_port
from eagle_eye.app.showing import Dashboard
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.ledger import Ledger
from fakes.night import HUNG, JOB, KILLED, KILLED_AGAIN, SLOW_NODE, WAITING, Night, crowd, recorded

CHROMIUM = "/usr/bin/chromium"
DESK, PHONE = (1280, 800), (390, 844)
PATIENCE_MS = 30_000
CROWD = 10_000
AXIS = "document.querySelector('.js-plotly-plot')._fullLayout.xaxis"
QUIET = "!document.querySelector(\"[data-testid='stApp'][data-test-script-state='running']\")"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    night = Night(folder).live()
    crowd(folder, night.end, CROWD)
    recorded(folder, night.end)
    return folder


@pytest.fixture(scope="module")
def ledger(state: Path) -> Iterator[Ledger]:
    opened = Ledger.open(state / "ledger.sqlite", read_only=True)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def served(state: Path) -> Iterator[str]:
    made = Dashboard(Config(state_dir=str(state)), f"127.0.0.1:{free_port()}", SystemClock(), log=state / "dashboard.log")
    made.start()
    try:
        made.wait()
        yield made.url
    finally:
        made.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Browser, served: str, tmp_path: Path, request: pytest.FixtureRequest):
    """(address, size, scheme) → the page, as somebody in Berlin sees it; its screenshot is kept, and nothing on it has failed."""
    pages: list[Page] = []

    def load(address: str, size: tuple[int, int] = DESK, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, timezone_id="Europe/Berlin")
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{served}/{address}")
        page.locator(".ee-foot").wait_for()
        pages.append(page)
        return page

    yield load
    for number, page in enumerate(pages):
        page.screenshot(path=str(tmp_path / f"{request.node.name[:40]}-{number}.png"))
        failed = page.get_by_text("has failed").count()
        page.context.close()
        assert failed == 0


def told(page: Page) -> str:
    """All words of the page; a narrow space is a space."""
    return re.sub(r"\s+", " ", page.locator(".stMain").inner_text().replace(words.SPACE, " "))


def sideways(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("(() => { const main = document.querySelector('[data-testid=stMain]'); return main.scrollWidth - main.clientWidth; })()"))


def test_the_link_of_an_alert_shows_all_that_counts_without_scrolling_even_as_the_first_page_of_a_fresh_process(opened, ledger: Ledger) -> None:
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
        page.locator(".ee-tile", has_text="Costs so far").get_by_text(words.gpu_hours(kept.incident.bill_gpu_hours)),
        page.locator(".ee-deed-what", has_text=f"Restart without {SLOW_NODE}"),
        page.locator(".ee-terms", has_text=plan.digest),
        page.get_by_role("button", name="Approve…"),
        page.locator("ol.ee-track li", has_text="Result"),
    )
    for each in seen:
        expect(each.first).to_be_visible()
        box = each.first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= DESK[1], f"{each} is below the fold"


def test_a_healed_incident_shows_what_was_said_beside_what_came_of_it_its_stacks_and_the_way_there(opened, ledger: Ledger) -> None:
    page = opened(f"incident?incident={HUNG}", scheme="dark")
    expect(page.locator(".ee-stack").first).to_contain_text("self.queue.get()")
    text = told(page)
    outcome = next(each for each in ledger.outcomes(incident=HUNG) if each.predicted)
    assert "Python hang: worker 0 on node-b" in text
    for name in ("downtime_s", "verify_s"):
        assert words.duration(outcome.actual[name]).replace(words.SPACE, " ") in text
    assert outcome.detail in text
    assert "whether its marks move again" in text.lower()
    assert page.locator(".ee-stack").nth(1).inner_text().startswith("15 workers")
    assert all(name in text for name in ("Signal", "Cause", "Plan", "Transition", "Result"))
    expect(page.locator(".js-plotly-plot").first).to_be_visible()


def test_on_a_telephone_the_incident_is_read_and_decided_on(opened, ledger: Ledger) -> None:
    page = opened(f"incident?incident={WAITING}", PHONE, "dark")
    button = page.get_by_role("button", name="Approve…")
    expect(button).to_be_visible()
    box = button.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= PHONE[1]
    assert sideways(page) <= 0
    button.click()
    page.get_by_label("Your name").fill("ada")
    page.get_by_role("button", name="Approve now").click()
    expect(page.locator(".ee-banner", has_text="This is a recorded run")).to_be_visible()
    text = told(page)
    [note] = ledger.notes(WAITING)
    [plan] = ledger.plans(incident=WAITING)
    assert note.text in text
    assert plan.digest in text
    assert f"Restart without {SLOW_NODE}" in text


def test_the_list_has_what_waits_first_and_leads_to_each_incident(opened, ledger: Ledger) -> None:
    page = opened("incidents")
    rows = page.locator(".ee-table tbody tr")
    expect(rows).to_have_count(len(ledger.incidents()))
    expect(rows.first).to_contain_text("Waits for your decision")
    expect(rows.first).to_contain_text("Slow node")
    text = told(page)
    for kept in ledger.incidents():
        assert words.capital(kept.incident.cause) in text
        assert words.gpu_hours(kept.incident.bill_gpu_hours).replace(words.SPACE, " ") in text
    page.get_by_text("Not over").click()
    expect(rows).to_have_count(1)
    rows.first.get_by_role("link", name="Slow node").click()
    expect(page.get_by_role("heading", name=f"Slow node: {SLOW_NODE}")).to_be_visible()
    assert f"incident={WAITING}" in page.url


def test_similar_incidents_are_one_click_away(opened, ledger: Ledger) -> None:
    page = opened(f"incident?incident={KILLED}")
    heading = page.get_by_role("heading", name="Worker killed: worker 1 on node-b")
    expect(heading).to_be_visible()
    page.locator(".ee-table", has_text="Became").get_by_role("link").click()
    page.wait_for_url(f"**incident={KILLED_AGAIN}")
    expect(page.locator(".ee-id", has_text=KILLED_AGAIN)).to_be_visible()
    kept = ledger.incident_record(KILLED_AGAIN)
    assert kept is not None
    assert kept.incident.evidence[1].text.partition(": ")[2] in told(page), "its last words"


def test_an_incident_that_is_not_there_says_what_to_do(opened) -> None:
    text = told(opened("incident?incident=nonsense"))
    assert "There is no such incident" in text
    assert "older than the ledger keeps" in text


@pytest.mark.parametrize("address", ["", "cluster"])
def test_the_cluster_of_ten_thousand_nodes_opens_and_names_the_sick_one(opened, ledger: Ledger, address: str) -> None:
    page = opened(address)
    expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=PATIENCE_MS)
    text = told(page)
    [(job, facts)] = ledger.jobs().items()
    kept = ledger.incident_record(WAITING)
    assert kept is not None
    assert f"{CROWD + len(facts.layout.nodes):,}" in text
    assert SLOW_NODE in text
    assert job in text
    assert words.gpu_hours(kept.incident.bill_gpu_hours).replace(words.SPACE, " ") in text
    expect(page.locator(".ee-call", has_text=words.capital(kept.incident.cause))).to_contain_text(SLOW_NODE)
    expect(page.locator(".ee-table", has_text="Workers").locator("tbody tr")).to_contain_text(str(len(facts.layout.places)))


def test_the_job_is_told_with_its_workers_and_all_that_happened_to_it(opened, ledger: Ledger) -> None:
    page = opened(f"job?job={JOB}")
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    facts, text = ledger.jobs()[JOB], told(page)
    assert f"epoch {facts.layout.epoch}" in text
    assert f"{len(facts.layout.places)} workers on {len(facts.layout.nodes)} nodes" in text
    for kept in ledger.incidents():
        expect(page.locator(f"a[href*='{kept.incident.id}']", has_text=words.capital(kept.incident.cause)).first).to_be_attached()
    expect(page.locator(".ee-banner", has_text=SLOW_NODE)).to_contain_text("is slow")


def test_the_actions_are_told_with_what_was_expected_of_them_and_who_said_no(opened, ledger: Ledger) -> None:
    page = opened("actions")
    expect(page.locator(".js-plotly-plot")).to_be_visible()
    text = told(page)
    measured = [outcome for outcome in ledger.outcomes() if "downtime_s" in outcome.actual]
    assert len(measured) >= 3
    for outcome in measured:
        assert words.duration(outcome.actual["downtime_s"]).replace(words.SPACE, " ") in text
        assert f"expected {words.duration(outcome.predicted['downtime_s'])}".replace(words.SPACE, " ") in text
        assert outcome.detail in text
    held = [each.verdict.reason for each in ledger.verdicts(incident=WAITING) if type(each.verdict).__name__ == "Hold"]
    assert held[-1] in text


def test_eagle_eye_tells_of_itself_what_the_ledger_knows(opened, ledger: Ledger) -> None:
    text = told(opened("eagle_eye"))
    assert "In a recorded run no process runs any more" in text
    assert "Blind spots 0 collectors that fail" in text
    assert all(notice.message in text for notice in ledger.notices())


@pytest.mark.parametrize("address", ["", "incidents", f"job?job={JOB}", "actions", "eagle_eye"])
def test_every_page_fits_a_telephone(opened, address: str) -> None:
    assert sideways(opened(address, PHONE)) <= 0


def test_the_list_on_a_telephone_names_cause_and_culprit_of_each(opened, ledger: Ledger) -> None:
    page = opened("incidents", PHONE, "dark")
    rows = page.locator(".ee-table tbody tr")
    expect(rows).to_have_count(len(ledger.incidents()))
    for place in range(rows.count()):
        link = rows.nth(place).get_by_role("link").first
        box = link.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE[0]
        assert ":" in link.inner_text(), "cause: culprit"


def test_an_enlarged_figure_shows_only_what_was_chosen_until_a_double_click(opened) -> None:
    page = opened(f"job?job={JOB}")
    figure = page.locator(".js-plotly-plot").first
    expect(figure).to_be_visible()
    page.wait_for_function(QUIET)
    box = figure.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, y, steps=6)
    page.mouse.up()
    page.wait_for_function(f"{AXIS}.autorange === false")
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, y)
    page.wait_for_function(f"{AXIS}.autorange !== false")
