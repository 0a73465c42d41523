"""What the tests of the dashboard share: recorded runs, a Streamlit over each, and one Chromium a module.

The browser's own loop must not run while other tests run theirs: that is why it ends with its module.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.app.demo import run_archive
from eagle_eye.config import Config
from eagle_eye.ledger import Ledger
from fakes.sample_cluster import SampleRun, add_blind_spots, add_idle_nodes, take_leases, write_recorded


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """What a module has forgotten to close fails that module, not the test that runs when the garbage collector happens to look."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def sample_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State directory: a run of a small job in a large cluster, as the engine, the ledger and the history have written it."""
    folder = tmp_path_factory.mktemp("sample")
    run = SampleRun(folder).run_all()
    add_idle_nodes(folder, run.end)
    take_leases(folder, run.end)
    add_blind_spots(folder, run.end)
    write_recorded(folder, run.end)
    return folder


@pytest.fixture(scope="session")
def sample_url(sample_state: Path) -> Iterator[str]:
    from servers.pages import served

    with served(Config(state_dir=str(sample_state)), sample_state / "dashboard.log") as url:
        yield url


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """What `make demo` has written: the recorded run that the product ships."""
    return run_archive.unpack(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def demo_url(demo: Config) -> Iterator[str]:
    from servers.pages import served

    with served(demo, demo.state / "dashboard.log") as url:
        yield url


def _ledger_of(state: Path) -> Iterator[Ledger]:
    opened = Ledger.open(state / "ledger.sqlite", read_only=True)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def sample_ledger(sample_state: Path) -> Iterator[Ledger]:
    yield from _ledger_of(sample_state)


@pytest.fixture(scope="session")
def demo_ledger(demo: Config) -> Iterator[Ledger]:
    yield from _ledger_of(demo.state)


@pytest.fixture(scope="module")
def browser():
    from servers.pages import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def reader(browser, tmp_path: Path, request: pytest.FixtureRequest):
    """Address of a dashboard, whether its pages are live → somebody who reads there; at the end nothing of what they saw has failed."""
    from servers.pages import Reader

    made: list[Reader] = []

    def read(url: str, *, live: bool = False) -> Reader:
        made.append(Reader(browser, url, tmp_path, live=live))
        return made[-1]

    yield read
    for place, each in enumerate(made):
        each.close(f"{place}-{request.node.name}")


@pytest.fixture(scope="module")
def tour(browser, tmp_path_factory: pytest.TempPathFactory):
    """Address of a dashboard, size of a window → a page there that is led from one address to the next."""
    from servers.pages import DESKTOP, Reader, Tour

    made: list[Reader] = []

    def begin(url: str, size: tuple[int, int] = DESKTOP) -> Tour:
        made.append(Reader(browser, url, tmp_path_factory.mktemp("tour"), size))
        return Tour(made[-1], made[-1]("actions"))

    yield begin
    for each in made:
        each.close("end")
