"""Secrets: from a file of one's own, or from the environment; never shown."""

from pathlib import Path

import pytest

from eagle_eye.access.secret_files import secret_of
from eagle_eye.errors import ConfigError


def test_a_file_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "from the environment")
    assert secret_of("", "A_SECRET", "the password") == "from the environment"
    (tmp_path / "secret").write_text("from the file\n")
    (tmp_path / "secret").chmod(0o600)
    assert secret_of(str(tmp_path / "secret"), "A_SECRET", "the password") == "from the file"
    assert secret_of("", "NO_SECRET", "the password") == ""


@pytest.mark.parametrize(("text", "mode", "words"), [("hidden", 0o644, "chmod 600"), ("", 0o600, "is empty")])
def test_a_file_that_is_no_secret_is_refused_without_telling_it(tmp_path: Path, text: str, mode: int, words: str) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(ConfigError, match=words) as raised:
        secret_of(str(tmp_path / "secret"), "A_SECRET", "the password")
    assert "hidden" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere \(the password\) cannot be read.*set A_SECRET"):
        secret_of(str(tmp_path / "nowhere"), "A_SECRET", "the password")
