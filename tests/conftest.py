"""For all tests: nothing is left out where everything is claimed (EAGLE_EYE_REQUIRE_ALL), long files come first, what was imported is not looked through again, a process of
`pytest -n` reports what is read, `random` begins anew with each test, and the tables of a ledger are made once."""

import gc
import logging
import os
import random
import signal
import zlib
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

pytest.register_assert_rewrite("contract.ledger_cases")

gc.set_threshold(50_000, 20, 20)  # before anything is imported and collected, which stays: the garbage collector would look through it a thousand times

for _number, _handler in ((signal.SIGHUP, lambda *_: None), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # under nohup, or in the background of a script: what the tests start would ignore it, too, but not what has a handler here
        signal.signal(_number, _handler)

if (runner := os.environ.get("PYTEST_XDIST_WORKER", "")) and "EAGLE_EYE_PORTS" not in os.environ:
    # one process of `pytest -n` took, in the second until its server listened on it, the port that another one had chosen: each has ports of its own
    first = 10_000 + 2_500 * (int(runner[2:]) % 9)
    os.environ["EAGLE_EYE_PORTS"] = f"{first}-{first + 2_499}"

LONGEST = (
    "test_launcher", "test_failed_saves", "test_elastic_chaos", "test_chain", "test_elastic_launcher", "test_dashboard_habits", "test_elastic_chaos_beyond",
    "test_dashboard_live", "test_network_partition", "test_kafka", "test_rank_swap", "test_dashboard_browser", "test_no_help", "test_elastic_last_resort",
    "test_waiting_for_rank_0", "test_transformers", "test_activity", "test_elastic_state", "test_roles", "test_run", "test_elastic_groups", "test_launcher_signals",
    "test_live_planning", "test_dashboard_recorded",
)  # fmt: skip
"""Files of 20 seconds and more, by their measured time: `make test` hands out whole files of tests/scenario and tests/services, in this order."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if hasattr(item.config, "workerinput") and not report.failed:  # most of what a process of `pytest -n` sends for each test, and nobody reads it
        report.keywords, report.sections = {}, []
    if report.skipped and os.environ.get("EAGLE_EYE_REQUIRE_ALL") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although EAGLE_EYE_REQUIRE_ALL is set: {report.longrepr}"
    return report


def pytest_runtest_protocol(item, nextitem):
    """What a process of `pytest -n` sends for each test costs more than most tests: of the six messages two remain, unless times are asked for.
    A setup or a teardown that did not pass is told as ever."""
    if not hasattr(item.config, "workerinput") or item.config.option.durations is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The longest first, whatever order was drawn: else one process works on one of them while the others have nothing left.
    Then folder by folder: of two processes each begins with one half, and seldom do both import what takes seconds: torch's compiler, scikit-learn."""
    items.sort(key=lambda item: (LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST), item.nodeid.rpartition("/")[0]))


def pytest_collection_finish(session):
    """What was imported and collected stays to the end: without this the garbage collector looks through it again and again."""
    gc.freeze()
    if session.config.option.collectonly:
        _read_constants()


def _read_constants():
    """hypothesis also draws from the constants of the modules that it tests. It reads all of them with the first property of a process, and keeps what it
    found: `make check`, which collects all tests in one process, has them read once, and not by each process of `make unit`."""
    from hypothesis import given, settings
    from hypothesis.strategies import integers

    settings(max_examples=1, database=None)(given(integers())(lambda _: None))()


def pytest_configure(config):
    config.option.randomly_reset_seed = False  # _begin_anew


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    _begin_anew(item, "setup")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    _begin_anew(item, "call")


def _begin_anew(item, phase):
    """As pytest-randomly would, three times a test, with what it keeps for others: five times the time. Nothing here draws from numpy's one generator."""
    random.seed(zlib.crc32(f"{phase} {item.nodeid}".encode(errors="surrogatepass")) + item.config.getoption("randomly_seed", 0))


OF_LIBRARIES = ("alembic", "streamlit", "torch")


@pytest.fixture(scope="module", autouse=True)
def few_loggers():
    """pytest goes through every logger, six times for each test, and adds its handlers to those that pass nothing on: three libraries have 250 of them.
    Before each module, since some are made when a test first draws a page or makes an optimizer. They still write: their parents know them, not the table of names."""
    loggers = logging.root.manager.loggerDict
    for name in [name for name in loggers if name.partition(".")[0] in OF_LIBRARIES]:
        logger = loggers.pop(name)
        if isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory) -> Path:
    """Made once, since the migration takes most of a test's time."""
    from eagle_eye.ledger import Ledger

    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    Ledger.open(path).close()
    return path


@pytest.fixture
def ledger_path(empty_ledger: Path, tmp_path: Path) -> Path:
    """Of a ledger with nothing in it."""
    copy = tmp_path / "ledger.sqlite"
    copy.write_bytes(empty_ledger.read_bytes())
    return copy
