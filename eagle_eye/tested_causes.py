"""Tests of the network between a job's launchers and of its storage: for which causes they are run by themselves, and what tells of their results.

They are harmless: a connection and some bytes to a port that a launcher serves already, a stat and a read of 4 KiB. The leader asks for them (`remediation/engine/path_test_requests.py`),
the launchers run them (`remediation/launcher/path_tester.py`), `detectors/path_tests.py` reads the results, and diagnosis puts what it says into the incident.
"""

NETWORK_TESTED, STORAGE_TESTED = "network.tested", "storage.tested"
"""Event of a launcher, and kind of the finding."""

TESTS_OF: dict[str, tuple[str, ...]] = {
    "network error": (NETWORK_TESTED,),
    "collective timeout": (NETWORK_TESTED,),
    "job stalled": (NETWORK_TESTED, STORAGE_TESTED),
    "slow communication": (NETWORK_TESTED,),
    "slow link": (NETWORK_TESTED,),
    "throughput lost": (NETWORK_TESTED, STORAGE_TESTED),
    "slow input": (STORAGE_TESTED,),
    "input stalled": (STORAGE_TESTED,),
    "node lost": (NETWORK_TESTED,),
    "launcher lost": (NETWORK_TESTED,),
    "job waiting": (NETWORK_TESTED,),
    "quorum lost": (NETWORK_TESTED,),
    "storage error": (STORAGE_TESTED,),
    "storage hung": (STORAGE_TESTED,),
    "storage read-only": (STORAGE_TESTED,),
    "storage slow": (STORAGE_TESTED,),
}
"""Cause, in the words of diagnosis → the tests that tell it from what looks like it."""

OPEN, CUT = "paths open", "path cut"
"""Status of a line of evidence: what was tested works; something of it does not."""
FOR_INCIDENT = "for_incident:"
"""Begins the metric of the first line of evidence; behind it stands the id of the incident for which the test was asked."""
