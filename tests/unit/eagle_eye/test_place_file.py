"""Where the node is, left by its agent for the launchers on it."""

import os
from pathlib import Path

import pytest

from eagle_eye.place_file import NAME, read_place, write_place
from eagle_eye.types import NodePlace
from fakes.other_user import USER, needs_root

PLACE = NodePlace(switch="leaf-1", rack="a07", source="slurm")


def test_what_was_written_is_read_and_replaced(tmp_path: Path) -> None:
    assert read_place(tmp_path, "n1") == NodePlace()
    write_place(tmp_path, "n1", PLACE)
    assert read_place(tmp_path, "n1") == PLACE
    write_place(tmp_path, "n1", NodePlace(switch="leaf-2"))
    assert read_place(tmp_path, "n1").switch == "leaf-2"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_launchers_of_other_users_may_read_it_although_the_agent_keeps_its_files_to_itself(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_place(tmp_path, "n1", PLACE)
    finally:
        os.umask(before)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o644


def test_the_place_of_another_node_says_nothing(tmp_path: Path) -> None:
    """Two agents that share a run directory, each under a name of its own."""
    write_place(tmp_path, "n2", PLACE)
    assert read_place(tmp_path, "n1") == NodePlace()


@pytest.mark.parametrize("content", [b"", b"{", b'{"node":"n1"}', b'{"node":"n1","place":{"switch":"' + b"x" * 401 + b'"}}', b"[" * 20_000])
def test_a_file_that_is_none_of_ours_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert read_place(tmp_path, "n1") == NodePlace()


def test_neither_a_fifo_nor_a_link_holds_the_launcher_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    assert read_place(tmp_path, "n1") == NodePlace()
    (tmp_path / NAME).unlink()
    write_place(tmp_path, "n1", PLACE)
    (tmp_path / NAME).rename(tmp_path / "elsewhere")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    assert read_place(tmp_path, "n1") == NodePlace()


@needs_root
@pytest.mark.parametrize(("owner", "believed"), [("file", False), ("directory", True)])
def test_another_user_of_a_shared_directory_is_not_believed_and_its_owner_is(tmp_path: Path, owner: str, believed: bool) -> None:
    write_place(tmp_path, "n1", PLACE)
    os.chown(tmp_path / NAME, USER, USER)
    if owner == "directory":
        os.chown(tmp_path, USER, USER)
    assert (read_place(tmp_path, "n1") == PLACE) is believed
