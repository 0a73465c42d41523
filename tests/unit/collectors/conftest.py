"""What the tests of collectors share."""

import pytest

from collectors.node import polled_program


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine ends a program that was killed late, and who is left behind is told by the garbage collector in whichever test runs then."""
    monkeypatch.setattr(polled_program, "REAP_S", 60.0)
