"""The dashboard over a job that runs: it follows, holds still while somebody looks, tells how Eagle Eye is, and an alert's link leads to a healed job."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from math import nan
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboard import formatting
from dashboard.sources import Sources
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config, HistoryConfig, ServerConfig
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.ports import free_port
from eagle_eye.types import IncidentState, Plan
from eagle_eye.types.remediation import Refuse
from servers.pages import (
    AXIS,
    RUNS,
    WHOLE,
    becomes,
    choose,
    enlarge,
    plain,
    ran,
    served,
    settled,
    show_all,
    shows,
    tile,
    tile_of,
)

LOOP = Path(__file__).parents[1] / "scenario" / "loop.py"
PATIENCE_S = 120.0
FILE_S = 1.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = "{http}"
lease_s = 1.5

[history]
file_s = 1.0

[engine]
mode = "recommend"
relapse_s = 5.0

[guards.blast_radius]
nodes = 10
"""
JOB = "test/loop"
LOSSES = "document.querySelector('.js-plotly-plot')?.data?.find(trace => trace.name === 'Loss')?.x.length"
"""How many of them the figure shows; undefined while it is exchanged."""
FIGURES = 2
WATCHED = f"""() => {{
  window.away = 0;
  let away = 0;
  const drawn = () => [...document.querySelectorAll('.js-plotly-plot')].filter((each) => each.querySelector('.main-svg')).length;
  (function look() {{ away = drawn() < {FIGURES} ? away + 1 : 0; window.away = Math.max(window.away, away); requestAnimationFrame(look); }})();
}}"""
"""Counts how many pictures in a row are painted while a figure is not there."""
LOST = {"records of nodes that found no room": "eagle_eye_node_dropped_records_total", "records that could not be read": "eagle_eye_partition_dead_letters_total"}
"""As the page says it → the server's own figure."""
LAST_LOOK_MS = 3000
"""After a click the page looks at its figures for the last time so much later (links.js)."""
SEEN = 3
"""Pictures of a sixtieth of a second that nobody sees: Streamlit exchanges a figure whose numbers have changed."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def http() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def demo_job(http: str) -> Iterator[DemoJob]:
    with tempfile.TemporaryDirectory(prefix="live") as folder:  # short: paths of unix sockets are limited
        made = DemoJob(
            folder=Path(folder), config=CONFIG.replace("{http}", http), command=(sys.executable, str(LOOP)), job=JOB,
            launch=("--preload", "none"), clock=SystemClock(),
        )  # fmt: skip
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def config(demo_job: DemoJob, http: str) -> Config:
    return Config(state_dir=str(demo_job.cluster.state_dir), server=ServerConfig(listen=demo_job.server_address, http=http), history=HistoryConfig(file_s=FILE_S))


@pytest.fixture(scope="module")
def live_url(demo_job: DemoJob, config: Config) -> Iterator[str]:
    with served(config, demo_job.folder / "dashboard.log") as url:
        yield url


@pytest.fixture
def opened(reader, live_url: str, demo_job: DemoJob) -> Callable[[str], Page]:
    assert demo_job.wait_steps(30, PATIENCE_S), "the job does not run"
    return reader(live_url, live=True)


def come(demo_job: DemoJob, what: str, there: Callable[[], object]) -> None:
    """Wait for something; fail with its name."""
    assert demo_job.wait(lambda: bool(there()), PATIENCE_S), f"{what} did not come"


def waiting(demo_job: DemoJob, since: float) -> tuple[IncidentRecord, Plan] | None:
    """The incident and its plan that waits for a word."""
    with closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        for kept in ledger.incidents():
            for plan in ledger.plans(incident=kept.incident.id):
                held = any(type(each.verdict).__name__ == "Hold" for each in ledger.verdicts(plan=plan.id))
                if kept.opened > since and held and ledger.outcome(plan.id) is None:
                    return kept, plan
    return None


def refused(demo_job: DemoJob, plan: Plan) -> bool:
    """Whether the ledger holds a person's no."""
    with closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        return any(isinstance(each.verdict, Refuse) for each in ledger.verdicts(plan=plan.id))


def epoch(demo_job: DemoJob) -> int:
    layout = demo_job.record.trace.layout
    assert layout is not None
    return layout.epoch


def nodes(demo_job: DemoJob) -> set[str]:
    layout = demo_job.record.trace.layout
    return set(layout.nodes) if layout is not None else set()


def state_of(demo_job: DemoJob, incident: str) -> str:
    with closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        kept = ledger.incident_record(incident)
    return str(kept.state) if kept else ""


def live(page: Page, *, on: bool) -> None:
    """The switch stands so, and nothing is under way."""
    expect(page.locator(".st-key-live input")).to_be_checked(checked=on)
    settled(page)


def stands_still(page: Page, runs: int) -> None:
    """The switch is off, and the server knows it: `runs` of the script were over before."""
    live(page, on=False)
    ran(page, runs, whole=True)


def stays_off(page: Page, runs: int) -> None:
    """What the page was to look at after the click before does not switch it on again while the button is down."""
    stands_still(page, runs)
    page.wait_for_function(f"performance.now() > {page.evaluate('performance.now()') + LAST_LOOK_MS}")
    live(page, on=False)


def test_figures_follow_the_job_without_leaving_the_page_and_stand_still_while_a_part_is_enlarged(demo_job: DemoJob, opened: Callable[[str], Page]) -> None:
    page = opened(f"job?job={JOB}/run-1")
    expect(page.locator(".js-plotly-plot")).to_have_count(FIGURES)
    live(page, on=True)
    page.evaluate(WATCHED)
    many = becomes(page, LOSSES, "the figure shows no loss")
    becomes(page, f"{LOSSES} > {many}", "no newer loss came", timeout_ms=PATIENCE_S * 1000)
    assert page.evaluate("window.away") <= SEEN, "new numbers come without flicker"
    chosen = enlarge(page, pressed=partial(stands_still, page))
    live(page, on=False)
    step = tile(page, "Step")
    assert demo_job.wait_steps(20, PATIENCE_S), "the job goes on"
    choose(page, "forward")
    assert page.evaluate(f"{AXIS}?.range") == chosen
    assert tile(page, "Step") == step
    runs = RUNS[page, True]
    show_all(page)
    live(page, on=True)
    ran(page, runs, whole=True)
    enlarge(page, pressed=partial(stays_off, page))
    page.locator(".st-key-live label").first.click()
    becomes(page, WHOLE, "the figure is still enlarged", timeout_ms=PATIENCE_S * 1000)
    live(page, on=True)
    come(demo_job, "a newer step on the page", lambda: tile(page, "Step") != step)


def test_eagle_eye_tells_of_itself_what_leases_and_the_servers_own_figures_say(demo_job: DemoJob, opened: Callable[[str], Page], config: Config) -> None:
    page = opened("eagle_eye")
    with closing(Sources(config)) as sources:
        come(demo_job, "the leader on the page", lambda: leader(sources) in tile(page, "Leader"))
        row = page.locator(".ee-table", has_text="Partition").locator("tbody tr")
        come(demo_job, "the owner of the partition on the page", lambda: plain(row.inner_text()).startswith(owner(sources)))
        come(demo_job, "a server that has read everything", lambda: figures(sources, "eagle_eye_partition_lag_seconds") == 0.0)
        shows(tile_of(page, "Lag"), f"{formatting.duration(0.0)} behind the stream")
        lost = page.locator(".ee-table", has=page.get_by_text("What was lost"))
        for words, name in LOST.items():
            come(demo_job, f"{words} on the page", lambda said=words, of=name: plain(f"{said} {formatting.number(figures(sources, of))}") in plain(lost.inner_text()))
        shows(tile_of(page, "Clocks off"), "Clocks off 0")


def leader(sources: Sources) -> str:
    """What the page should say of it."""
    lease = sources.ledger.holder_of("leader")
    assert lease is not None
    return f"{lease.holder.host} process {lease.holder.pid}, term {lease.term}, since"


def owner(sources: Sources) -> str:
    """What the page should say of the partition's."""
    lease = sources.ledger.holder_of("partition/0")
    assert lease is not None
    return f"0 process {lease.holder.pid} on {lease.holder.host} {lease.term}"


def figures(sources: Sources, name: str) -> float:
    """The sum of one of the server's own figures; NaN while it does not answer."""
    told = sources.figures()
    return sum(told[name].values()) if told is not None else nan


def asked(demo_job: DemoJob, opened: Callable[[str], Page], node: str) -> tuple[IncidentRecord, Plan, Page]:
    """A memory of that node breaks, and the job starts again with it: the incident, the plan that waits for a word, and the page that asks for it."""
    now = demo_job.clock.now()
    next(demo_job.folder.rglob("done")).with_name(f"ecc-{node}").touch()
    found: list[tuple[IncidentRecord, Plan]] = []

    def waits() -> bool:
        found[:] = filter(None, [waiting(demo_job, now)])
        return bool(found) and demo_job.full()

    come(demo_job, "a plan that waits", waits)
    page = opened(f"incident?incident={found[0][0].incident.id}")
    expect(page.get_by_role("heading", name=formatting.capital(found[0][0].incident.cause)).first).to_be_visible()
    come(demo_job, "the plan that waits on the page", lambda: waits() and page.locator(".ee-terms", has_text=found[0][1].digest).is_visible())
    return *found[0], page


def test_a_click_on_approve_heals_the_job(demo_job: DemoJob, opened: Callable[[str], Page]) -> None:
    kept, _, page = asked(demo_job, opened, "node-b")
    page.get_by_role("button", name="Approve…").click()
    page.get_by_label("Your name").fill("ada")
    page.get_by_role("button", name="Approve now").click()
    expect(page.locator(".ee-banner", has_text="ada")).to_be_visible()
    come(demo_job, "the approved action", lambda: nodes(demo_job) == {"node-a"})
    come(demo_job, "a healed job", lambda: state_of(demo_job, kept.incident.id) == IncidentState.HEALED)
    expect(page.locator(".ee-incident-over .ee-badge", has_text="Healed")).to_be_visible()
    expect(page.locator("ol.ee-track li", has_text="Result")).to_have_class("ee-stage-reached")
    page.get_by_role("button", name="Note").click()
    page.get_by_role("textbox", name="Note").fill("its memory was replaced")
    page.get_by_role("button", name="Keep").click()
    expect(page.locator(".ee-note", has_text="its memory was replaced")).to_contain_text("ada")
    page.get_by_role("button", name="Silence").click()
    page.get_by_role("textbox", name="Why").fill("until it is tested")
    page.get_by_test_id("stForm").get_by_role("button", name="Silence").click()
    expect(page.locator(".ee-note", has_text="until it is tested")).to_contain_text("Silence by ada")
    demo_job.release("node-b")
    come(demo_job, "the released node", demo_job.full)


def test_a_click_on_refuse_leaves_the_job_as_it_is_and_tells_everybody_why(demo_job: DemoJob, opened: Callable[[str], Page]) -> None:
    kept, plan, page = asked(demo_job, opened, "node-a")
    before = epoch(demo_job)
    page.get_by_role("button", name="Refuse…").click()
    page.get_by_label("Your name").fill("bob")
    page.get_by_label("Why").fill("a checkpoint is being written")
    page.get_by_role("button", name="Refuse now").click()
    expect(page.locator(".ee-banner", has_text="bob")).to_be_visible()
    come(demo_job, "the refusal in the ledger", lambda: refused(demo_job, plan))
    expect(page.get_by_role("button", name="Approve…")).to_have_count(0)
    expect(page.locator(".ee-plan", has_text="Refused").first).to_contain_text(f"bob refused {plan.digest}")
    expect(page.locator(".ee-note", has_text="a checkpoint is being written")).to_contain_text("bob")
    assert demo_job.wait_steps(10, PATIENCE_S), "the job goes on, with that node"
    assert epoch(demo_job) == before
    assert nodes(demo_job) == {"node-a", "node-b"}
    assert state_of(demo_job, kept.incident.id) not in ("healed", "healing")
