"""A person's command: what it does not send in the clear, and how it shows a plan."""

import msgspec
import pytest

from eagle_eye.access.tokens import VARIABLE
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.plan_text import plan_rows
from fakes.sample_values import a_plan


def test_a_token_does_not_leave_the_machine_in_the_clear(monkeypatch):
    monkeypatch.setenv(VARIABLE, "eet_mine")
    with pytest.raises(ConfigError, match="not sent to head:7467 without TLS") as told:
        ask(Config(), "head:7467", "status")
    assert "eet_mine" not in str(told.value)


def test_a_plan_in_words_is_one_printable_line_a_fact():
    plan = a_plan(reason="evil\x1b[2J\nline")
    shown = {"plan": msgspec.to_builtins(plan), "digest": plan.digest, "job": "t/n/r", "cause": "c", "holds": ["approval: waits"]}
    words = dict(plan_rows(shown, 103.0))
    assert words["reason"] == "evil [2J line"
    assert words["digest"] == plan.digest
    assert "600 s from now" in words["valid"]
