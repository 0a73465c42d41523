"""Every test of the engine also shows that incidents take no edge but those of EDGES."""

import logging

import pytest


@pytest.fixture(autouse=True)
def only_legal_edges(caplog):
    caplog.set_level(logging.ERROR, logger="remediation.engine.decision_recorder")
    yield
    illegal = [record.getMessage() for record in caplog.get_records("call") if "no legal edge" in record.getMessage()]
    assert not illegal
