"""The dashboard in a real browser: one Streamlit over a deployment, and pages of a Chromium as somebody in Berlin sees them."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, BrowserContext, Locator, Page, WebSocket, expect, sync_playwright
from playwright.sync_api import TimeoutError as Late
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from dashboard import formatting
from eagle_eye.app.dashboard_process import Dashboard
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.ports import free_port

CHROMIUM = "/usr/bin/chromium"
DESKTOP, PHONE = (1280, 800), (390, 844)
BERLIN = ZoneInfo("Europe/Berlin")
PATIENCE_S = 90.0
"""For any condition: a busy machine is slow, a true fault never goes away."""
PATIENCE_MS = PATIENCE_S * 1000
LOOK_MS = 50
STILL = 3
"""Pictures in a row on which a page that has settled looks the same."""
UNMADE = """() => {
  const all = (where) => [...document.querySelectorAll(where)];
  if (!window.eagleEyeLinks) return 'the script of the page is not there';
  if (all("[data-testid='stSkeleton']").length) return 'the browser still loads a part of the page';
  if (all("[data-testid='stPlotlyChart']").some((each) => !each.querySelector('.main-svg'))) return 'a figure is not drawn';
  return document.fonts.status === 'loaded' ? '' : 'letters are being loaded';
}"""
"""What the browser is still busy with; '' if nothing."""
UNSETTLED = f"""() => {{
  const state = document.querySelector("[data-testid='stApp']")?.dataset.testScriptState;
  if (state !== 'notRunning') return `the script is ${{state}}`;
  return document.querySelector("[data-stale='true']") ? 'a part of the page is of an earlier run' : ({UNMADE})();
}}"""
"""What a page is still waiting for; '' if nothing."""
SETTLED = f"""({{turn, still}}) => {{
  const all = document.querySelectorAll("[data-testid='stMain'] .stElementContainer, .main-svg, .stMainBlockContainer");
  const boxes = [...all].map((each) => {{ const box = each.getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; }}).join();
  const same = !({UNSETTLED})() && window.eeTurn === turn && window.eeBoxes === boxes;
  [window.eeTurn, window.eeBoxes, window.eeStill] = [turn, boxes, same ? window.eeStill + 1 : 0];
  return window.eeStill >= still;
}}"""
"""Looked at once for each picture that the browser paints. turn: of whoever asks, so that nobody takes what another one saw for their own."""
DRAWN = ".js-plotly-plot .main-svg"
AXIS = "document.querySelector('.js-plotly-plot')?._fullLayout?.xaxis"
"""Of the first figure; undefined while it is exchanged."""
ENLARGED, WHOLE = f"{AXIS}?.autorange === false && {AXIS}.range", f"{AXIS}?.autorange === true"
HIT = "addEventListener('mousedown', (event) => { window.eeHit = Boolean(event.target.closest?.('.js-plotly-plot .draglayer')); }, true)"
"""Whether the last press met a figure: while one is exchanged, a press falls beside it."""
IN_VIEW = "(each) => { each.scrollIntoView({block: 'center'}); const box = each.getBoundingClientRect(); return [box.x, box.y, box.width, box.height]; }"
"""Scrolls there and says where it is, at once: a live page may draw a figure anew at any moment."""
TRIES, TRY_MS = 10, 5000
"""What a hand does again when it has met a figure in the moment in which it was exchanged, or clicked too slowly."""
RUNS: Counter[tuple[Page, bool]] = Counter()
"""(page, whether of the whole script) → runs whose end the page has heard of."""


@contextmanager
def served(config: Config, log: Path) -> Iterator[str]:
    """A dashboard over a deployment, ready; its address."""
    made = Dashboard(config, f"127.0.0.1:{free_port()}", SystemClock(), log=log)
    made.start()
    try:
        made.wait(PATIENCE_S)
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
            RUNS.clear()


@dataclass
class Reader:
    """Somebody with a browser; what they have looked at is kept as pictures in `folder`, and nothing of it may have failed."""

    browser: Browser
    url: str
    folder: Path
    size: tuple[int, int] = DESKTOP
    scheme: str = "light"
    live: bool = False
    """Whether its pages look again and again, so that they never rest for long."""
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
        page = self.page(context)
        page.goto(f"{self.url}/{address}")
        page.locator(until).wait_for()
        if self.live:
            becomes(page, f"!({UNMADE})()", "the page is not whole")
        else:
            settled(page)
        return page

    def page(self, context: BrowserContext) -> Page:
        """One that shows nothing yet."""
        page = context.new_page()
        self._pages.append(page)
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(HIT)
        page.on("websocket", lambda socket: _count_runs(page, socket))
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
        settled(self.page)
        self._seen += 1
        self.page.screenshot(path=str(self.reader.folder / f"{self._seen}.png"))
        assert self.page.get_by_text("has failed").count() == 0, f"a part of {address} has failed: see the pictures in {self.reader.folder}"
        return self.page


def plain(text: str) -> str:
    """A narrow space is a space, and many are one."""
    return re.sub(r"\s+", " ", text.replace(formatting.SPACE, " "))


# --- what a page says --------------------------------------------------------------------------------------------------


def shows(where: Page | Locator, *texts: str) -> None:
    """Wait until a page, or a part of it, says all of it; fails with what is missing. However wide spaces are."""
    place = where.locator(".stMain") if isinstance(where, Page) else where
    for text in texts:
        expect(place).to_contain_text(plain(text), use_inner_text=True)


def tile_of(page: Page, label: str) -> Locator:
    """One tile."""
    return page.locator(".ee-tile", has=page.locator(".ee-label").get_by_text(label, exact=True))


def tile(page: Page, label: str) -> str:
    """All words of one tile, at this moment."""
    return plain(tile_of(page, label).inner_text())


# --- what a page does --------------------------------------------------------------------------------------------------


def eventually(page: Page, holds: Callable[[], bool], fault: str) -> None:
    """Look until it holds; fails with the fault."""
    clock = SystemClock()
    deadline = clock.monotonic() + PATIENCE_S
    while not holds():
        assert clock.monotonic() < deadline, f"{fault}, after {PATIENCE_S:.0f} s"
        page.wait_for_timeout(LOOK_MS)


def becomes(page: Page, condition: str, fault: str, *, given: object = None, timeout_ms: float = PATIENCE_MS) -> Any:
    """The value of a JavaScript condition once it holds; fails with the fault."""
    try:
        return page.wait_for_function(condition, arg=given, timeout=timeout_ms).json_value()
    except Late:
        raise AssertionError(f"{fault}, after {timeout_ms / 1000:.0f} s") from None


def settled(page: Page) -> None:
    """Wait until nothing is under way: the script has run, every part is there, of this run, drawn, and where it stays."""
    try:
        page.wait_for_function(SETTLED, arg={"turn": SystemClock().monotonic(), "still": STILL})
    except Late:
        raise AssertionError(f"the page does not come to rest: {page.evaluate(UNSETTLED) or 'its parts move'}") from None


def ran(page: Page, since: int, *, whole: bool) -> None:
    """Wait until more than `since` runs of the script, or of a part of it, are over: a page does not look as if it ran until the server has heard of a click."""
    eventually(page, lambda: RUNS[page, whole] > since, f"{'the script' if whole else 'the part of the page'} did not run again")
    settled(page)


def _count_runs(page: Page, socket: WebSocket) -> None:
    def heard(frame: bytes | str) -> None:
        message = ForwardMsg.FromString(frame) if isinstance(frame, bytes) else ForwardMsg()
        if message.WhichOneof("type") == "script_finished":
            RUNS[page, message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY] += 1

    socket.on("framereceived", heard)


def fits(page: Page) -> None:
    """Wait until the page is not wider than the window."""
    becomes(page, "(() => { const main = document.querySelector('[data-testid=stMain]'); return main.scrollWidth <= main.clientWidth; })()", "the page is wider than the window")


def within(where: Locator, *, width: float = inf, height: float = inf) -> None:
    """Wait until one can see it whole in a window of that size, without scrolling."""
    expect(where).to_be_visible()

    def inside() -> bool:
        box = where.bounding_box()
        return box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width and box["y"] + box["height"] <= height

    eventually(where.page, inside, f"{where} is not within {width} by {height} pixels")


def coloured(where: Locator, what: str, colour: str) -> None:
    """Wait until it has that colour, #rrggbb. what: of its style."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    expect(where).to_have_css(what, re.compile(rf"rgba?\({red}, {green}, {blue}[,)]"))


def enlarge(page: Page, *, pressed: Callable[[int], None] = lambda _: None) -> Any:
    """Drag over the first figure, from 0.4 of its width to 0.7; the range that it shows then. pressed: what is waited for while the button is down; it is
    given the runs of the whole script before. Again where the figure was exchanged under the hand."""
    for _ in range(TRIES):
        settled(page)
        x, y, width, height = page.locator(".js-plotly-plot").first.evaluate(IN_VIEW)
        runs = RUNS[page, True]
        page.mouse.move(x + width * 0.4, y + height / 2)
        page.mouse.down()
        if page.evaluate("window.eeHit"):
            pressed(runs)
            page.mouse.move(x + width * 0.7, y + height / 2, steps=6)
        page.mouse.up()
        with suppress(Late):
            return page.wait_for_function(ENLARGED, timeout=TRY_MS).json_value()
    raise AssertionError(f"{TRIES} drags over the figure enlarged nothing")


def show_all(page: Page) -> None:
    """A double click in the middle of the first figure; again where a slow browser took it for two single ones."""
    figure = page.locator(".js-plotly-plot").first
    for _ in range(TRIES):
        settled(page)
        figure.dblclick()
        with suppress(Late):
            page.wait_for_function(WHOLE, timeout=TRY_MS)
            return
    raise AssertionError(f"a part of the figure is still enlarged after {TRIES} double clicks")


def choose(page: Page, option: str) -> None:
    """Of the last list on the page, by keys; it belongs to a part of the page that runs by itself."""
    settled(page)
    field, runs = page.get_by_role("combobox").last, RUNS[page, False]
    field.click()
    field.press_sequentially(option)
    expect(page.get_by_role("option", name=option, exact=True)).to_have_attribute("data-focused", "true")
    field.press("Enter")
    expect(field).to_have_value(option)
    ran(page, runs, whole=False)
