"""Digests, other processes' memory, shared memory."""

import ctypes
import mmap
import os
import random
import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_eye.training.elastic.train_state import huge_pages
from eagle_eye.training.elastic.transfer import layer_buffers, remote_memory
from eagle_eye.training.elastic.transfer.layer_buffers import chunk_digest, layer_digest
from eagle_eye.training.elastic.transfer.shared_memory import SLOTS, SharedMemory


def noise(size: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 7, 1024, 5000, 1 << 16])
def test_a_digest_sees_any_flipped_bit(size: int) -> None:
    content, chance = noise(size), random.Random(0)
    before = chunk_digest([content])
    for _ in range(50):
        place, bit = chance.randrange(size), chance.randrange(8)
        content[place] ^= 1 << bit
        assert chunk_digest([content]) != before
        content[place] ^= 1 << bit
    assert chunk_digest([content]) == before


@pytest.mark.parametrize("block", [1024, 4096, 1000, 12])
def test_a_digest_sees_blocks_in_each_others_place(block: int) -> None:
    content = noise(1 << 16)
    before = chunk_digest([content])
    for first, second in [(0, 1 << 15), (1024, 1024 + 4096), (5000, 40_000)]:
        swapped = content.clone()
        swapped[first : first + block], swapped[second : second + block] = content[second : second + block], content[first : first + block]
        assert chunk_digest([swapped]) != before
    assert layer_digest([b"a" * 16, b"b" * 16]) != layer_digest([b"b" * 16, b"a" * 16])


def test_a_digest_is_of_the_bytes_wherever_they_lie() -> None:
    content = noise(1 << 14)
    shifted = torch.zeros((1 << 14) + 4, dtype=torch.uint8)
    shifted[4:] = content
    assert chunk_digest([shifted[4:]]) == chunk_digest([content])


def test_chunks_cover_every_byte_once_and_begin_at_words() -> None:
    chance = random.Random(1)
    for _ in range(20):
        sizes = [chance.choice([0, 4, 60, 4096, 3 << 19, 5 << 20]) for _ in range(chance.randrange(1400))]
        chunks = layer_buffers.chunks_of(sizes)
        covered = [(piece.entry, piece.start, piece.size) for chunk in chunks for piece in chunk]
        ends = [0] * len(sizes)
        for entry, start, size in covered:
            assert (start, start % 8) == (ends[entry], 0)
            ends[entry] += size
        assert ends == sizes
        assert all(sum(piece.size for piece in chunk) <= layer_buffers.CHUNK_BYTES and 0 < len(chunk) <= layer_buffers.MOST_PIECES for chunk in chunks)


def test_more_ranges_than_the_kernel_takes_at_a_time_are_read() -> None:
    content = noise(3000 * 5)
    there = content.split(5)
    here = torch.zeros(3000 * 5, dtype=torch.uint8)
    remote_memory.read(os.getpid(), [each.data_ptr() for each in there], here.split(5))
    assert torch.equal(here, content)


def test_memory_that_is_not_there_and_processes_that_are_not_there_are_errors() -> None:
    here = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(OSError, match="cannot be read: Bad address"):
        remote_memory.read(os.getpid(), [4096], [here])
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ProcessLookupError):
        remote_memory.read(ended.pid, [4096], [here])


def test_a_process_is_read_only_if_it_is_the_right_one() -> None:
    proof = ctypes.create_string_buffer(b"0123456789abcdef", 16)
    address = ctypes.addressof(proof)
    assert remote_memory.can_read(os.getpid(), address, b"0123456789abcdef")
    assert not remote_memory.can_read(os.getpid(), address, b"0123456789abcdee")
    assert not remote_memory.can_read(os.getpid(), 4096, b"0123456789abcdef")


def test_what_one_writes_into_a_segment_the_other_reads() -> None:
    segment = SharedMemory.make(1000)
    found = SharedMemory.find(segment.path, segment.proof, 1000)
    assert found is not None
    for number in range(SLOTS):
        segment.slot(number, 1000).fill_(number + 1)
    assert [int(found.slot(number, 1000).sum()) for number in range(SLOTS + 1)] == [1000, 2000, 3000, 4000, 1000]
    segment.close(), found.close()


def test_a_segment_that_is_another_one_or_gone_is_not_used() -> None:
    segment = SharedMemory.make(1000)
    assert SharedMemory.find(segment.path, "00" * 16, 1000) is None
    assert SharedMemory.find(segment.path, segment.proof, 10_000) is None
    path, proof = segment.path, segment.proof
    segment.close()
    assert SharedMemory.find(path, proof, 1000) is None


def test_nothing_of_a_segment_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        segment = SharedMemory.make(1000)
        found = SharedMemory.find(segment.path, segment.proof, 1000)
        SharedMemory.find(segment.path, "00" * 16, 1000)
        assert found is not None
        held = found.slot(0, 10)  # even where somebody still looks at a slot
        segment.close(), found.close(), found.close()
        del held
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def small_pages() -> Tensor:
    """8 MiB that the kernel has given in pages of 4 KiB."""
    area = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(area, dtype=torch.uint8).copy_(noise(8 << 20))


def huge_bytes(address: int) -> int:
    """Of the mapping that this address lies in, or those next to it that the kernel made of it."""
    text = Path("/proc/self/smaps").read_text()
    found = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*?AnonHugePages: +(\d+) kB", text, re.MULTILINE | re.DOTALL)
    return sum(int(kilobytes) << 10 for first, last, kilobytes in found if int(first, 16) < address + (8 << 20) and int(last, 16) > address)


def test_state_is_moved_to_huge_pages_in_place(small_pages: Tensor) -> None:
    content, address = small_pages.clone(), small_pages.data_ptr()
    assert huge_bytes(address) == 0
    pieces = [*small_pages.split(1 << 20), torch.zeros(3)]  # each smaller than a page
    huge_pages.collapse(pieces)
    assert torch.equal(small_pages, content)
    assert huge_bytes(address) >= (4 << 20 if collapses() else 0)


def test_a_page_that_is_filled_by_less_than_half_stays_small(small_pages: Tensor) -> None:
    address = small_pages.data_ptr()
    start = -address % huge_pages.PAGE
    huge_pages.collapse([small_pages[start : start + (1 << 20) - 1]])
    assert huge_bytes(address) == 0


def collapses() -> bool:
    """Whether this kernel can put pages together when it is asked to."""
    major, minor = map(int, re.findall(r"\d+", os.uname().release)[:2])
    return huge_pages.is_possible() and (major, minor) >= (6, 1)
