"""Under EAGLE_EYE_REQUIRE_ALL a skipped test is a failure: nothing may be left out where everything is claimed."""

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
