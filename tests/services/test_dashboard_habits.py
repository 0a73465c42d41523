"""How the pages are used: on a telephone, by keys, by links back and forth, in light and dark, enlarged, with a token."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from playwright.sync_api import TimeoutError as Late

from dashboard import formatting
from dashboard.figures.colours import DARK, LIGHT
from dashboard.login import COOKIE
from dashboard.sources import Sources
from eagle_eye.access import Role
from eagle_eye.access.tokens import add_person
from eagle_eye.clock import SystemClock
from eagle_eye.config import AccessConfig, Config
from eagle_eye.ledger import Ledger
from fakes.sample_cluster import JOB, KILLED, SLOW_NODE, WAITING
from servers.pages import (
    BERLIN,
    DESKTOP,
    PHONE,
    RUNS,
    choose,
    coloured,
    enlarge,
    eventually,
    fits,
    ran,
    served,
    settled,
    show_all,
    shows,
    within,
)

Open = Callable[..., Page]
Go = Callable[[str, str], Page]
PAGES = {"1": "Cluster", "2": "Incidents", "3": JOB, "4": "Actions", "5": "Eagle Eye"}
"""Key → heading of the page that it leads to."""
ADDRESSES = {"": "Cluster", "incidents": "Incidents", f"job?job={JOB}": JOB, "actions": "Actions", "eagle_eye": "Eagle Eye"}
FOCUSED = """(before) => {
  const at = document.activeElement, style = getComputedStyle(at);
  return at !== document.body && at !== before && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && (at.innerText || at.tagName);
}"""
"""Name of what has the keys, once it is another than before and somebody sees it."""
MOST_TABS = 40
FIELDS = "**/static/js/Selectbox.*.js"
"""What the browser loads to show a list."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def ledger(sample_ledger: Ledger) -> Ledger:
    return sample_ledger


@pytest.fixture
def opened(reader, sample_url: str) -> Open:
    return reader(sample_url)


@pytest.fixture(scope="module")
def phone(tour, sample_url: str) -> Go:
    return tour(sample_url, PHONE)


def tab(page: Page) -> str:
    """Press Tab; the name of what has the keys then. Fails if nobody sees what it is."""
    before = page.evaluate_handle("document.activeElement")
    page.keyboard.press("Tab")
    try:
        return str(page.wait_for_function(FOCUSED, arg=before).json_value())
    except Late:
        raise AssertionError(f"nobody sees that {page.evaluate('document.activeElement.outerHTML.slice(0, 200)')} is where the keys go") from None


# --- a telephone -----------------------------------------------------------------------------------------------------


def test_on_a_telephone_the_incident_is_read_and_decided_on(opened: Open, ledger: Ledger) -> None:
    page = opened(f"incident?incident={WAITING}", PHONE, "dark")
    button = page.get_by_role("button", name="Approve…")
    within(button, height=PHONE[1])
    fits(page)
    button.click()
    page.get_by_label("Your name").fill("ada")
    page.get_by_role("button", name="Approve now").click()
    expect(page.locator(".ee-banner", has_text="it accepts no commands")).to_be_visible()
    [note] = ledger.notes(WAITING)
    [plan] = ledger.plans(incident=WAITING)
    shows(page, note.text, plan.digest, f"Evict {SLOW_NODE}")


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_fits_a_telephone(phone: Go, address: str) -> None:
    fits(phone(address, ADDRESSES[address]))


def test_the_list_on_a_telephone_names_cause_and_culprit_of_each(phone: Go, ledger: Ledger) -> None:
    page = phone("incidents", "Incidents")
    rows = page.locator(".ee-table tbody tr")
    expect(rows).to_have_count(len(ledger.incidents()))
    for place in range(len(ledger.incidents())):
        link = rows.nth(place).get_by_role("link").first
        within(link, width=PHONE[0])
        expect(link).to_contain_text(":")  # cause: culprit


# --- light and dark, near and far ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_keys_lead_through_all_pages_in_the_readers_colours(opened: Open, scheme: str, palette) -> None:
    page = opened(f"incident?incident={WAITING}", DESKTOP, scheme)
    expect(page.get_by_test_id("stTopNavLink")).to_have_count(len(PAGES))
    for key, heading in (("", f"Slow node: {SLOW_NODE}"), *PAGES.items()):
        if key:
            page.keyboard.press(key)
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
        settled(page)
        coloured(page.locator(".stApp"), "background-color", palette.background)
        coloured(page.locator("h1"), "color", palette.text)
        coloured(page.locator(".ee-scroll").first, "background-color", palette.surface)
        coloured(page.locator(".ee-muted, .ee-second").first, "color", palette.muted)
        fits(page)
        if key in ("1", "3", "4"):
            coloured(page.locator(".js-plotly-plot .ytick text").first, "fill", palette.muted)


def test_a_page_is_used_by_keys_alone_and_shows_where_one_is(opened: Open) -> None:
    page = opened("")
    page.keyboard.press("/")
    expect(page.get_by_role("combobox").first).to_be_focused()
    page.keyboard.type("4")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text("Cluster")
    page.goto(page.url)
    page.locator(".ee-call a").first.wait_for()
    settled(page)
    reached: list[str] = []
    while len(reached) < MOST_TABS and reached[-1:] != ["Slow node"]:
        reached.append(tab(page))
    assert reached[-1] == "Slow node", reached
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Slow node: {SLOW_NODE}")).to_be_visible()


@pytest.mark.parametrize("later", ["", "Escape"])
def test_a_slash_waits_for_a_field_that_a_slow_browser_has_not_made_yet_unless_another_key_follows(reader, sample_url: str, later: str) -> None:
    slow = reader(sample_url)
    page = slow.page(slow.context())
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(FIELDS, hold)
    page.goto(sample_url)
    page.wait_for_function("window.eagleEyeLinks")
    eventually(page, lambda: bool(held), "the browser asks for no field")
    page.keyboard.press("/")
    if later:
        page.keyboard.press(later)
    for each in held:
        each.continue_()
    field = page.get_by_role("combobox").first
    settled(page)
    if later:
        expect(field).not_to_be_focused()
    else:
        expect(field).to_be_focused()


def test_links_lead_back_and_forth_and_an_address_keeps_what_was_chosen(opened: Open) -> None:
    page = opened("incidents")
    page.locator(f"a[href*='{KILLED}']").first.click()
    killed = page.get_by_role("heading", name="Worker killed: worker 1 on node-b")
    expect(killed).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Incidents", exact=True)).to_be_visible()
    page.go_forward()
    expect(killed).to_be_visible()
    page.locator(".ee-tile", has_text="Where").get_by_role("link").click()
    expect(page.get_by_role("heading", name=JOB, exact=True)).to_be_visible()
    settled(page)
    runs = RUNS[page, True]
    page.get_by_role("radio", name="24h").click()
    page.wait_for_url("**since=24h**")
    ran(page, runs, whole=True)
    choose(page, "backward")
    page.wait_for_url("**of=backward**")
    again = opened(page.url.rpartition("/")[2])
    expect(again.get_by_role("heading", name=JOB, exact=True)).to_be_visible()
    expect(again.get_by_role("radio", name="24h")).to_be_checked()
    expect(again.get_by_role("combobox").last).to_have_value("backward")


def test_times_are_the_readers_own_and_relative(opened: Open, sample_state: Path, ledger: Ledger) -> None:
    kept = ledger.incident_record(WAITING)
    assert kept is not None
    now = Sources(Config(state_dir=str(sample_state))).now()
    began = f"began {formatting.relative(kept.incident.since, now)}, {formatting.clock_time(kept.incident.since, BERLIN)} {formatting.zone_name(BERLIN, now)}"
    shows(opened(f"incident?incident={WAITING}"), began, formatting.clock_time(kept.opened, BERLIN, milliseconds=True))


def test_an_enlarged_figure_shows_only_what_was_chosen_until_a_double_click(opened: Open) -> None:
    page = opened(f"job?job={JOB}")
    enlarge(page)
    show_all(page)


# --- who reads -------------------------------------------------------------------------------------------------------


def test_a_token_lets_in_a_viewer_who_is_told_kindly_that_others_decide(reader, sample_state: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    token = add_person(tokens, "eve", Role.VIEWER, now=SystemClock().now())
    config = Config(state_dir=str(sample_state), access=AccessConfig(tokens_file=str(tokens)))
    with served(config, tmp_path / "dashboard.log") as url:
        eve = reader(url)
        context = eve.context()
        page = eve.open(context, f"incident?incident={WAITING}", until=".ee-login")
        expect(page.locator(".stMain")).not_to_contain_text("Slow node")
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=f"Slow node: {SLOW_NODE}")).to_be_visible()
        expect(page.locator("p.ee-foot")).to_have_text("Signed in as eve, viewer.")
        eventually(page, lambda: COOKIE in {each.get("name") for each in context.cookies()}, "the browser keeps no session")
        later = eve.open(context, f"incident?incident={WAITING}")
        expect(later.get_by_role("heading", name=f"Slow node: {SLOW_NODE}")).to_be_visible()
        later.get_by_role("button", name="Approve…").click()
        expect(later.get_by_text("To approve takes the role operator")).to_be_visible()
        expect(later.get_by_role("button", name="Approve now")).to_have_count(0)
        later.keyboard.press("Escape")
        later.get_by_role("button", name="Sign out").click()
        expect(later.locator(".ee-login")).to_be_visible()
        later.reload()
        expect(later.locator(".ee-login")).to_be_visible()
