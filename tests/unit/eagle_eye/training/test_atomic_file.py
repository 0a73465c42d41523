"""A file is the old one or the new one; what a killed writer left can be distinguished from what is being written."""

import os

import pytest

from eagle_eye.training import atomic_file


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path, durable):
    path = tmp_path / "fence.json"
    for data in (b"old", b"new"):
        atomic_file.replace(path, data, durable=durable)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_take_its_place_is_removed(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        atomic_file.replace(tmp_path / "taken", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_what_a_dead_process_was_writing_is_abandoned(tmp_path):
    assert atomic_file.is_abandoned(tmp_path / f".step-1.json.7.{2**22 + 1}{atomic_file.UNFINISHED}")
    assert not atomic_file.is_abandoned(tmp_path / f".step-1.json.7.{os.getpid()}{atomic_file.UNFINISHED}")
