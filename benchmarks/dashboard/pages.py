"""The pages in a real browser on 10,000 nodes × 8 GPUs × 10 minutes: first paint, interactions, and ten viewers at once.

python -m benchmarks.dashboard.pages [--nodes 10000] [--keep DIR] [--viewers 10] [--picture FILE] [--json]

`eagle-eye dashboard` over data of benchmarks/dashboard/large_cluster.py; Chromium without a window, its cache empty, three visits of each
page after the server's first, of which the median counts. A page counts as painted when what it is for can be seen: the cause and the plan
of an incident, the heat map of the cluster; it is complete when Streamlit has stopped running and the browser has drawn everything and
rests. An interaction lasts from the click on a complete page until it is complete again.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from eagle_eye.app.dashboard_process import Dashboard
from eagle_eye.app.demo import run_archive
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.ports import free_port

from .large_cluster import LargeCluster
from .queries import prepare

PAINT_S, INTERACTION_S, MEMORY_MB = 3.0, 1.0, 1024
CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 60_000
BEGIN_MS = 2_000
"""By then a run has begun after an action, or none does."""
FLAGS = ["--no-sandbox", "--no-proxy-server", "--disable-dev-shm-usage"]
RUNNING = "[data-testid='stApp'][data-test-script-state='running'], [data-testid='stStatusWidget']"

VISITS = 3
WIDTH, HEIGHT = 1280, 800
FIRST_SCREEN = {
    "cause": ".ee-incident-head h1", "proof": ".ee-incident-proof", "culprit": ".ee-incident-facts >> text=Culprit", "cost": ".ee-incident-facts >> text=Costs so far",
    "plan": ".ee-action-what", "why": ".ee-action-why", "terms": ".ee-terms", "approve": "button:has-text('Approve…')", "how far it is": ".ee-track",
}  # fmt: skip
"""Of the page of an incident that waits for a person."""
RESTS = "new Promise(done => requestIdleCallback(() => requestIdleCallback(done)))"
"""A browser that has something to draw calls nobody idle."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A page of the dashboard, and what of it must be seen."""

    name: str
    address: str
    seen: str


PAGES = (
    Opened("cluster", "?since=10m", ".js-plotly-plot"),
    Opened("incidents", "incidents?since=10m", "text=Slow worker"),
    Opened("incident", "incident?incident=incident-000", ".ee-action-what"),
    Opened("job", "job?job=lab/large/run&since=10m", ".js-plotly-plot"),
    Opened("actions", "actions?since=10m", "h1"),
    Opened("Eagle Eye itself", "eagle_eye", "h1"),
)


@dataclass(slots=True)
class Visit:
    """One browser window on the dashboard."""

    page: Any
    url: str
    clock: Clock

    def paint(self, opened: Opened) -> tuple[float, float]:
        """Seconds from asking for the address until what it is for is seen, and until it is complete."""
        begin = self.clock.monotonic()
        self.page.goto(f"{self.url}/{opened.address}", wait_until="commit")
        self.page.locator(opened.seen).first.wait_for(state="visible", timeout=PATIENCE_MS)
        seen = self.clock.monotonic() - begin
        self._settle()
        return seen, self.clock.monotonic() - begin

    def act(self, do: Callable[[Any], None]) -> float:
        """Seconds from an action until the page is complete after it; only the action's own where nothing runs."""
        from playwright.sync_api import TimeoutError as Late

        begin = self.clock.monotonic()
        do(self.page)
        done = self.clock.monotonic()
        try:
            self.page.wait_for_selector(RUNNING, state="attached", timeout=BEGIN_MS)
        except Late:
            return done - begin
        self._settle()
        return self.clock.monotonic() - begin

    def _settle(self) -> None:
        self.page.wait_for_timeout(50)
        self.page.wait_for_function("selector => !document.querySelector(selector)", arg=RUNNING, timeout=PATIENCE_MS)
        self.page.evaluate(RESTS)


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status says whether the goals were met."""
    parser = argparse.ArgumentParser(description="the dashboard's pages on a large cluster")
    parser.add_argument("--json", action="store_true", help="the same rows as JSON")
    parser.add_argument("--nodes", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--viewers", type=int, default=10, help="how many look at once (10)")
    parser.add_argument("--keep", type=Path, help="folder of the data; used again if it is there")
    parser.add_argument("--picture", type=Path, help="where the first screen of the incident that waits is kept")
    options = parser.parse_args(arguments)
    made = LargeCluster(nodes=options.nodes)
    with tempfile.TemporaryDirectory(prefix="eagle-eye-dashboard-") as folder:
        state = options.keep or Path(folder)
        prepare(made, state)
        run_archive.mark(state, began=made.begin, ended=made.end, seed=0, command="python -m benchmarks.dashboard.pages")
        rows = measure(state, Path(folder), options.viewers, SystemClock(), options.picture or Path(folder) / "incident.png")
    return report(rows, json=options.json, title=f"The dashboard's pages at {options.nodes:,} nodes")


def measure(state: Path, folder: Path, viewers: int, clock: Clock, picture: Path) -> list[Row]:
    """Everything, against one dashboard."""
    from playwright.sync_api import sync_playwright

    taken = neighbours()
    config = Config(state_dir=str(state), server=ServerConfig(http=""))
    dashboard = Dashboard(config, f"127.0.0.1:{free_port()}", clock, log=folder / "dashboard.log")
    try:
        dashboard.start()
        dashboard.wait()
        with sync_playwright() as playwright, Console(stderr=True).status("looking at pages"):
            browser = playwright.chromium.launch(executable_path=str(CHROMIUM) if CHROMIUM.exists() else None, args=FLAGS)
            rows = [*_paints(browser, dashboard, clock), *_interactions(browser, dashboard, clock)]
            rows += [_at_three(browser, dashboard, clock, picture), _crowd(browser, dashboard, viewers, clock)]
            browser.close()
    finally:
        dashboard.stop()
    return [*rows, taken()]


def _paints(browser: Any, dashboard: Dashboard, clock: Clock) -> list[Row]:
    rows = []
    for opened in PAGES:
        first, *others = [_first_visit(browser, dashboard, clock, opened) for _ in range(1 + VISITS)]
        painted, complete, again = (median(times) for times in zip(*others, strict=True))
        more = f"complete: {complete:.2f} s; in a browser that was there before: {again:.2f} s; the first of the server: {first[0]:.2f} s"
        rows.append(Row(f"first paint: {opened.name}", f"{painted:.2f} s ({more})", f"≤ {PAINT_S:g} s", painted <= PAINT_S))
    return rows


def _first_visit(browser: Any, dashboard: Dashboard, clock: Clock, opened: Opened) -> tuple[float, float, float]:
    """Seconds until painted and until complete for a browser that has never been there, and until painted when it comes again."""
    visit = _visit(browser, dashboard, clock)
    painted, complete = visit.paint(opened)
    again, _ = visit.paint(opened)
    visit.page.context.close()
    return painted, complete, again


def _interactions(browser: Any, dashboard: Dashboard, clock: Clock) -> list[Row]:
    """What a reader does on each page: another number, another span, another page, a plan's form."""
    rows = []
    for opened, steps in INTERACTIONS:
        visit = _visit(browser, dashboard, clock)
        visit.paint(opened)
        for what, do in steps:
            took = visit.act(do)
            rows.append(Row(f"interaction: {what}", f"{took:.2f} s", f"≤ {INTERACTION_S:g} s", took <= INTERACTION_S))
        visit.page.context.close()
    return rows


def _choose(field: str, number: str) -> Callable[[Any], None]:
    """Of a list of numbers, one that is not chosen yet."""

    def do(page: Any) -> None:
        wanted = page.get_by_role("option", name=number, exact=True)
        while not wanted.count():  # a page that is drawn anew closes the list
            page.locator(f".st-key-{field} input").first.click()
            page.wait_for_timeout(50)
        wanted.click()

    return do


def _click(text: str) -> Callable[[Any], None]:
    return lambda page: page.get_by_text(text, exact=True).first.click()


def _ask_to_approve(page: Any) -> None:
    """The form opens without the server."""
    page.get_by_role("button", name="Approve…").click()
    page.get_by_role("button", name="Approve now").wait_for(state="visible")


INTERACTIONS: tuple[tuple[Opened, tuple[tuple[str, Callable[[Any], None]], ...]], ...] = (
    (
        PAGES[0],
        (
            ("another metric of the heat map", _choose("metric", "gpu · temperature celsius")),
            ("another time span", _click("1h")),
            ("to the incidents", lambda page: page.get_by_role("link", name="Incidents").first.click()),
        ),
    ),
    (PAGES[1], (("only what is not over", _click("Not over")),)),
    (PAGES[2], (("the form of an approval", _ask_to_approve), ("to the job", lambda page: page.get_by_role("link", name="lab/large/run").first.click()))),
    (PAGES[3], (("another number of the workers", _choose("of", "forward")), ("another time span of the job", _click("1h")))),
)


def _at_three(browser: Any, dashboard: Dashboard, clock: Clock, picture: Path) -> Row:
    """What whoever is woken sees without scrolling: each of it lies within the window."""
    visit = _visit(browser, dashboard, clock)
    visit.paint(PAGES[2])
    boxes = {what: visit.page.locator(where).first.bounding_box() for what, where in FIRST_SCREEN.items()}
    missing = [what for what, box in boxes.items() if box is None or box["x"] + box["width"] > WIDTH or box["y"] + box["height"] > HEIGHT]
    visit.page.screenshot(path=picture)
    visit.page.context.close()
    told = f"all seen: {', '.join(FIRST_SCREEN)}" if not missing else f"not seen: {', '.join(missing)}"
    return Row(f"from an alert's link, {WIDTH} × {HEIGHT}, without scrolling", told, "cause, culprit, plan", not missing)


def _crowd(browser: Any, dashboard: Dashboard, viewers: int, clock: Clock) -> Row:
    """Everybody looks at a page of their own; memory of the server and whatever it started."""
    visits = [_visit(browser, dashboard, clock) for _ in range(viewers)]
    for index, visit in enumerate(visits):
        visit.paint(PAGES[index % len(PAGES)])
    assert dashboard.process is not None
    server = psutil.Process(dashboard.process.pid)
    memory = sum(each.memory_info().rss for each in (server, *server.children(recursive=True))) / 2**20
    return Row(f"memory of the server with {viewers} viewers", f"{memory:.0f} MB", f"≤ {MEMORY_MB} MB", memory <= MEMORY_MB)


def _visit(browser: Any, dashboard: Dashboard, clock: Clock) -> Visit:
    page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    return Visit(page, dashboard.url, clock)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
