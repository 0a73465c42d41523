"""The dashboard in a real browser: one Streamlit over a deployment, and pages of a Chromium as somebody in Berlin sees them."""

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as Late

from dashboard import formatting
from eagle_eye.app.dashboard_process import Dashboard
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.ports import free_port

CHROMIUM = "/usr/bin/chromium"
DESKTOP, PHONE = (1280, 800), (390, 844)
BERLIN = ZoneInfo("Europe/Berlin")
PATIENCE_MS = 90_000
QUIET = "!document.querySelector(\"[data-testid='stApp'][data-test-script-state='running']\")"
"""No script of the page runs."""
DRAWN = ".js-plotly-plot .main-svg"
AXIS = "document.querySelector('.js-plotly-plot')?._fullLayout?.xaxis"
"""Of the first figure; undefined while it is exchanged."""
ENLARGED, WHOLE = f"{AXIS}?.autorange === false", f"{AXIS}?.autorange === true"
CLICKS, CLICK_MS = 5, 3000


@contextmanager
def served(config: Config, log: Path) -> Iterator[str]:
    """A dashboard over a deployment, ready; its address."""
    made = Dashboard(config, f"127.0.0.1:{free_port()}", SystemClock(), log=log)
    made.start()
    try:
        made.wait()
        yield made.url
    finally:
        made.stop()


def bill(ledger: Ledger, kept: IncidentRecord) -> str:
    """What an incident costs as any page should tell it: the highest word of diagnosis or of what was measured after its actions."""
    measured = [outcome.actual.get("bill_gpu_hours", 0.0) for outcome in ledger.outcomes(incident=kept.incident.id)]
    return plain(formatting.gpu_hours(max([kept.incident.bill_gpu_hours, *measured])))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that nobody sees."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--disable-dev-shm-usage"])
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Reader:
    """Somebody with a browser; what they have looked at is kept as pictures in `folder`, and nothing of it may have failed."""

    browser: Browser
    url: str
    folder: Path
    size: tuple[int, int] = DESKTOP
    scheme: str = "light"
    _pages: list[Page] = field(default_factory=list)

    def context(self, size: tuple[int, int] | None = None, scheme: str = "") -> BrowserContext:
        """A browser without cookies, of a reader who wants no motion: what a test reads is final, not half faded in."""
        width, height = size or self.size
        return self.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme or self.scheme, timezone_id=BERLIN.key, reduced_motion="reduce")

    def __call__(self, address: str, size: tuple[int, int] | None = None, scheme: str = "") -> Page:
        """The page at an address, once it is whole."""
        return self.open(self.context(size, scheme), address)

    def open(self, context: BrowserContext, address: str, *, until: str = ".ee-foot") -> Page:
        """In a browser that is there."""
        page = context.new_page()
        self._pages.append(page)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{self.url}/{address}")
        page.locator(until).wait_for()
        return page

    def close(self, name: str) -> None:
        """Keep the pictures under a name; fails if a part of a page has failed."""
        failed = 0
        for number, page in enumerate(self._pages):
            page.screenshot(path=str(self.folder / f"{name[:40]}-{number}.png"))
            failed += page.get_by_text("has failed").count()
        for page in self._pages:
            page.context.close()
        assert failed == 0, f"a part of a page has failed: see the pictures in {self.folder}"


@dataclass
class Tour:
    """One page that is led from address to address as our links do, without loading anything anew: seconds less each time."""

    reader: Reader
    page: Page
    _seen: int = 0

    def __call__(self, address: str, sign: str) -> Page:
        """The page, once `sign` (a heading, or the id of an incident) is there and nothing is under way."""
        self.page.evaluate("to => { history.pushState({}, '', to); dispatchEvent(new PopStateEvent('popstate', { state: {} })); }", f"/{address}")
        self.page.get_by_role("heading", name=sign, exact=True).or_(self.page.locator(".ee-id").get_by_text(sign, exact=True)).first.wait_for()
        self.page.wait_for_function(QUIET)
        self._seen += 1
        self.page.screenshot(path=str(self.reader.folder / f"{self._seen}.png"))
        assert self.page.get_by_text("has failed").count() == 0, f"a part of {address} has failed: see the pictures in {self.reader.folder}"
        return self.page


def plain(text: str) -> str:
    """A narrow space is a space, and many are one."""
    return re.sub(r"\s+", " ", text.replace(formatting.SPACE, " "))


def told(page: Page) -> str:
    """All words of the page."""
    return plain(page.locator(".stMain").inner_text())


def tile_of(page: Page, label: str) -> Locator:
    """One tile."""
    return page.locator(".ee-tile", has=page.locator(".ee-label").get_by_text(label, exact=True))


def tile(page: Page, label: str) -> str:
    """All words of one tile."""
    return plain(tile_of(page, label).inner_text())


def sideways(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("(() => { const main = document.querySelector('[data-testid=stMain]'); return main.scrollWidth - main.clientWidth; })()"))


def enlarge(page: Page, *, pressed: Callable[[], None] = lambda: None) -> None:
    """Drag over the first figure, from 0.4 of its width to 0.7. `pressed`: what is waited for while the button is down."""
    figure = page.locator(".js-plotly-plot").first
    figure.locator(".main-svg").first.wait_for()
    page.wait_for_function(QUIET)
    figure.evaluate("figure => figure.scrollIntoView({block: 'center'})")  # at once: the page may draw the figure anew at any moment
    box = figure.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, y)
    page.mouse.down()
    pressed()
    page.mouse.move(box["x"] + box["width"] * 0.7, y, steps=6)
    page.mouse.up()


def choose(page: Page, option: str) -> None:
    """Of the last list on the page, by keys."""
    field = page.get_by_role("combobox").last
    field.click()
    field.press_sequentially(option)
    page.get_by_role("option", name=option, exact=True).wait_for()
    field.press("Enter")
    expect(field).to_have_value(option)
    page.wait_for_function(QUIET)


def show_all(page: Page) -> None:
    """A double click in the middle of the first figure; again where a slow browser took it for two single ones."""
    figure = page.locator(".js-plotly-plot").first
    for _ in range(CLICKS):
        figure.dblclick()
        with contextlib.suppress(Late):
            page.wait_for_function(WHOLE, timeout=CLICK_MS)
            return
    raise AssertionError(f"a part of the figure is still enlarged after {CLICKS} double clicks")
