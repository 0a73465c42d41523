"""For all tests: nothing is left out where everything is claimed (EAGLE_EYE_REQUIRE_ALL), and what was imported is not looked through again."""

import gc
import os

import pytest

pytest.register_assert_rewrite("contract.ledger_cases")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get("EAGLE_EYE_REQUIRE_ALL") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although EAGLE_EYE_REQUIRE_ALL is set: {report.longrepr}"
    return report


def pytest_collection_finish():
    """What was imported and collected stays to the end: without this the garbage collector looks through it again and again."""
    gc.collect()
    gc.freeze()
