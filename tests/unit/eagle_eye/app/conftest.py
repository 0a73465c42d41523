"""Commands as a person types them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eagle_eye import config
from eagle_eye.app.cli import main

Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Type `eagle-eye WORDS`, answer `typed` when asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "SEARCHED", (tmp_path / "eagle-eye.toml",))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))

    def typed(*words: str, typed: str = "") -> Result:
        result = CliRunner().invoke(main, list(words), input=typed)
        assert result.exception is None or isinstance(result.exception, SystemExit), "a bug shows its traceback"
        return result

    return typed
