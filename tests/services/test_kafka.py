"""Kafka against a real broker: the contract of streams, and faults that lose nothing.

EAGLE_EYE_KAFKA=host:port runs the contract against that broker instead of Tansu.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster.brokers import INSTALL, Tansu, tansu_binary
from benchmarks.cluster.kafka_faults import NODES, strike

ROOT = Path(__file__).parents[2]
installed = pytest.mark.skipif(tansu_binary() is None, reason=f"no broker here: {INSTALL}")


@pytest.fixture
def broker() -> Iterator[str]:
    """Address of the user's broker, else of one of our own."""
    if own := os.environ.get("EAGLE_EYE_KAFKA"):
        yield own
        return
    if tansu_binary() is None:
        pytest.skip(f"no broker here: {INSTALL}")
    with Tansu() as tansu:
        yield tansu.address


def test_the_contract_of_streams_holds_on_a_real_broker(broker: str) -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-k", "kafka", "tests/contract/test_stream.py"]
    done = subprocess.run(line, cwd=ROOT, env={**os.environ, "EAGLE_EYE_KAFKA": broker}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


@installed
@pytest.mark.parametrize("kind", ["frozen", "cut", "emptied"])
def test_a_fault_of_the_broker_loses_and_doubles_nothing(kind: str) -> None:
    found = strike(kind, 4.0, timeout_s=2.0, lead_s=2.0)
    assert found.clean, found
    assert found.incidents == NODES
    assert (found.sent_again > 0) == (kind == "emptied")
