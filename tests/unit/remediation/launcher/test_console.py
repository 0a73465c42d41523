"""What rank 0 writes is printed, and nobody waits for whoever reads it."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.launcher_member import Member, made
from remediation.launcher.worker.console import Console


@pytest.fixture
def member(tmp_path: Path) -> Member:
    (tmp_path / "log").write_bytes("损失 0.5\nstep 1\nhalf a line".encode() + b"\xff")
    return made(tmp_path)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_whole_lines_of_rank_0_are_printed_whatever_their_bytes(member: Member, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    console = Console(lambda: tuple(member.workers), writer)
    console.start()
    console.close()
    os.close(writer)
    assert os.read(reader, 1000) == "[n0/0] 损失 0.5\n[n0/0] step 1\n".encode()


@pytest.mark.parametrize("where", ["closed", "full"])
def test_an_output_that_takes_nothing_is_told_once_and_ends_no_launcher(member: Member, pipe: tuple[int, int], where: str, caplog: pytest.LogCaptureFixture) -> None:
    """`launch | head` and `launch > a full disk` ended the launcher, and all workers with it."""
    reader, writer = pipe
    caplog.set_level(logging.WARNING)
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    console = Console(lambda: tuple(member.workers), {"closed": writer, "full": full}[where])
    for _ in range(3):
        console.look()
        with member.workers[0].log.open("ab") as log:
            log.write(b"\nmore\n")
    os.close(full)
    assert caplog.text.count("is not printed here") == 1


def test_an_output_that_is_held_keeps_nobody_waiting(member: Member, pipe: tuple[int, int]) -> None:
    """As by Ctrl-S, or a pager that shows its first page."""
    _, writer = pipe
    member.workers[0].log.write_bytes(b"x" * 100 + b"\n")
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"y" * 4096)
    console = Console(lambda: tuple(member.workers), writer)
    console.start()
    closing = threading.Thread(target=console.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
