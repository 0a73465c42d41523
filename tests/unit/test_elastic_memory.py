"""Digests, other processes' memory, shared memory."""

import ctypes
import os
import random
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle_eye.training.elastic import digest, layout, remote_memory
from eagle_eye.training.elastic.shared_memory import SLOTS, Segment


def noise(size: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 7, 1024, 5000, 1 << 16])
def test_a_digest_sees_any_flipped_bit(size: int) -> None:
    content, chance = noise(size), random.Random(0)
    before = digest.of_chunk([content])
    for _ in range(50):
        place, bit = chance.randrange(size), chance.randrange(8)
        content[place] ^= 1 << bit
        assert digest.of_chunk([content]) != before
        content[place] ^= 1 << bit
    assert digest.of_chunk([content]) == before


@pytest.mark.parametrize("block", [1024, 4096, 1000, 12])
def test_a_digest_sees_blocks_in_each_others_place(block: int) -> None:
    content = noise(1 << 16)
    before = digest.of_chunk([content])
    for first, second in [(0, 1 << 15), (1024, 1024 + 4096), (5000, 40_000)]:
        swapped = content.clone()
        swapped[first : first + block], swapped[second : second + block] = content[second : second + block], content[first : first + block]
        assert digest.of_chunk([swapped]) != before
    assert digest.of_layer([b"a" * 16, b"b" * 16]) != digest.of_layer([b"b" * 16, b"a" * 16])


def test_a_digest_is_of_the_bytes_wherever_they_lie() -> None:
    content = noise(1 << 14)
    shifted = torch.zeros((1 << 14) + 4, dtype=torch.uint8)
    shifted[4:] = content
    assert digest.of_chunk([shifted[4:]]) == digest.of_chunk([content])


def test_chunks_cover_every_byte_once_and_begin_at_words() -> None:
    chance = random.Random(1)
    for _ in range(20):
        sizes = [chance.choice([0, 4, 60, 4096, 3 << 19, 5 << 20]) for _ in range(chance.randrange(1400))]
        chunks = layout.chunks_of(sizes)
        covered = [(piece.entry, piece.start, piece.size) for chunk in chunks for piece in chunk]
        ends = [0] * len(sizes)
        for entry, start, size in covered:
            assert (start, start % 8) == (ends[entry], 0)
            ends[entry] += size
        assert ends == sizes
        assert all(sum(piece.size for piece in chunk) <= layout.CHUNK_BYTES and 0 < len(chunk) <= layout.MOST_PIECES for chunk in chunks)


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
    segment = Segment.make(1000)
    found = Segment.find(segment.path, segment.proof, 1000)
    assert found is not None
    for number in range(SLOTS):
        segment.slot(number, 1000).fill_(number + 1)
    assert [int(found.slot(number, 1000).sum()) for number in range(SLOTS + 1)] == [1000, 2000, 3000, 4000, 1000]
    segment.close(), found.close()


def test_a_segment_that_is_another_one_or_gone_is_not_used() -> None:
    segment = Segment.make(1000)
    assert Segment.find(segment.path, "00" * 16, 1000) is None
    assert Segment.find(segment.path, segment.proof, 10_000) is None
    path, proof = segment.path, segment.proof
    segment.close()
    assert Segment.find(path, proof, 1000) is None


def test_nothing_of_a_segment_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        segment = Segment.make(1000)
        found = Segment.find(segment.path, segment.proof, 1000)
        Segment.find(segment.path, "00" * 16, 1000)
        assert found is not None
        held = found.slot(0, 10)  # even where somebody still looks at a slot
        segment.close(), found.close(), found.close()
        del held
    assert len(list(Path("/proc/self/fd").iterdir())) == before
