"""Collectors are built from the configuration."""

from pathlib import Path
from typing import Any

import pytest

from collectors.agent.agent import build_collectors
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, parse
from eagle_eye.errors import PluginError


def test_collectors_are_built_from_the_configuration(tmp_path: Path) -> None:
    text = f"""
    run_dir = "{tmp_path}"
    [agent]
    stall_poll_s = 0.1
    [stall]
    standing_s = 2.5
    [collectors.gpu]
    enabled = false
    [collectors.host]
    interval_s = 5.0
    """
    built = {each.name: each for each in build_collectors(parse(text), "n1", FakeClock())}
    assert {"host", "process", "training"} <= set(built)
    assert "gpu" not in built
    training: Any = built["training"].collector
    assert (training.stall.standing_s, training.run_dir, training.node) == (2.5, tmp_path, "n1")
    assert built["training"].schedule.interval_s == 0.1
    assert built["host"].schedule.interval_s == 5.0


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(PluginError, match="stal_s"):
        build_collectors(Config(collectors={"training": {"stal_s": 1.0}}), "n1", FakeClock())
