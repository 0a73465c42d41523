"""Every page in a real browser on what `make demo` has written: the recorded run that the product ships."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dashboard import words
from eagle_eye.app.addresses import free_port
from eagle_eye.app.demo import recording
from eagle_eye.app.showing import Dashboard
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.ledger import Ledger

PATIENCE_MS = 30_000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return recording.unpack(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def ledger(config: Config) -> Iterator[Ledger]:
    opened = Ledger.open(Path(config.state) / "ledger.sqlite", read_only=True)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def served(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("log") / "dashboard.log"
    made = Dashboard(config, f"127.0.0.1:{free_port()}", SystemClock(), log=log)
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
        opened = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def shown(browser: Browser, served: str, tmp_path: Path):
    """Address → the words of the page, once it is whole; its screenshot is kept."""
    pages: list[Page] = []

    def load(address: str) -> str:
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{served}/{address}")
        page.locator(".ee-foot").wait_for()
        pages.append(page)
        return plain(page.locator(".stMain").inner_text())

    yield load
    for number, page in enumerate(pages):
        page.screenshot(path=str(tmp_path / f"{number}.png"))
        failed = page.get_by_text("has failed").count()
        page.context.close()
        assert failed == 0


def plain(text: str) -> str:
    """A narrow space is a space."""
    return re.sub(r"\s+", " ", text.replace(words.SPACE, " "))


def job_of(ledger: Ledger) -> str:
    """The one job of the run; it has ended, so that only its incidents name it."""
    [job] = {job for kept in ledger.incidents() for job in (kept.incident.job,) if job}
    return job


def test_the_cluster_and_the_job(shown, ledger: Ledger) -> None:
    job = job_of(ledger)
    waiting = [kept for kept in ledger.incidents() if str(kept.state) == "failed"]
    for text in (shown(""), shown(f"job?job={job}")):
        assert job in text
        assert "2 nodes" in text
        assert all(words.capital(kept.incident.cause) in text for kept in waiting)


def test_the_incidents(shown, ledger: Ledger) -> None:
    text = shown("incidents")
    assert len(ledger.incidents()) >= 10
    for kept in ledger.incidents():
        assert words.capital(kept.incident.cause) in text
        assert plain(words.gpu_hours(kept.incident.bill_gpu_hours)) in text


def test_an_incident_of_each_action(shown, ledger: Ledger) -> None:
    plans = {plan.id: plan for plan in ledger.plans()}
    judged = {outcome.action: outcome for outcome in ledger.outcomes() if outcome.state == "done" and outcome.actual and outcome.plan in plans}
    assert len(judged) >= 3
    for outcome in judged.values():
        text = shown(f"incident?incident={outcome.incident}")
        kept = ledger.incident_record(outcome.incident)
        assert kept is not None
        assert words.capital(kept.incident.cause) in text
        assert kept.incident.id in text
        assert plain(outcome.detail) in text


def test_the_actions(shown, ledger: Ledger) -> None:
    text = shown("actions")
    measured = [outcome for outcome in ledger.outcomes() if "downtime_s" in outcome.actual]
    assert len(measured) >= 3
    for outcome in measured:
        assert plain(words.duration(outcome.actual["downtime_s"])) in text
        assert plain(outcome.detail) in text


def test_eagle_eye_itself(shown, ledger: Ledger) -> None:
    text = shown("eagle_eye")
    assert ledger.notices()
    for notice in ledger.notices():
        assert plain(notice.message) in text
