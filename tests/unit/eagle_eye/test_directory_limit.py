"""A directory with a limit: the oldest files go, and what is no file of ours stays."""

import os
from pathlib import Path

from eagle_eye.directory_limit import delete_oldest


def filled(directory: Path, *names: str) -> list[Path]:
    """Files of 100 bytes, each a second younger than the one before."""
    paths = [directory / name for name in names]
    for number, path in enumerate(paths):
        path.write_bytes(b"x" * 100)
        os.utime(path, (number, number))
    return paths


def test_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    paths = filled(tmp_path, "c.part", "a.part", "b.part", "d.part")
    delete_oldest(tmp_path, "*.part", 250)
    assert [path.exists() for path in paths] == [False, False, True, True]


def test_twin_what_is_kept_or_another_file_stays(tmp_path: Path) -> None:
    first, second, other = filled(tmp_path, "a.part", "b.part", "notes.txt")
    delete_oldest(tmp_path, "*.part", 0, {first})
    assert [path.exists() for path in (first, second, other)] == [True, False, True]
    delete_oldest(tmp_path / "is not there", "*.part", 0)
