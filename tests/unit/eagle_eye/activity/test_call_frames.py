"""Frames of the C library, passed by its own unwind table: of a thread that waits, in this process."""

import os
import platform
import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.activity.call_frames import CallFrame, UnwindTable
from eagle_eye.activity.native_caller import INTERPRETER, MISREAD, CodeMap, CodeRegion, caller, waiting
from fakes.launchers import wait_until

MACHINE = platform.machine()
OVER = CodeRegion(0x1000, 0x2000, "libtorch_cpu.so", 0x1000)
"""A library that the thread has left."""
CALL = bytes.fromhex("0000e801020304") if MACHINE == "x86_64" else bytes.fromhex("00000000003fd6")


@pytest.fixture
def thread() -> Iterator[int]:
    """Its number; it waits for a lock of Python."""
    lock = threading.Lock()
    lock.acquire()
    found = threading.Thread(target=lock.acquire, daemon=True)
    found.start()
    assert found.native_id is not None
    number = found.native_id
    wait_until("the lock", lambda: words_of(number)[:1] == ["202" if MACHINE == "x86_64" else "98"])
    yield number
    lock.release()
    found.join()


def words_of(thread: int) -> list[str]:
    return Path(f"/proc/self/task/{thread}/syscall").read_text().split()


def test_a_return_address_of_a_call_that_is_over_is_passed(thread: int) -> None:
    """Of a collective that was waited for before: it lies where the C library has room that it does not use."""
    stack_pointer, instruction = (int(word, 16) for word in words_of(thread)[7:9])
    process = CodeMap(os.getpid())
    code = (OVER, *process._read())

    def memory(address: int, size: int) -> bytes:
        if OVER.begin <= address < OVER.end:
            return CALL[-size:]
        found = bytearray(process._memory(address, size))
        place = stack_pointer + 8 - address
        if 0 <= place <= size - 8:
            found[place : place + 8] = struct.pack("<Q", OVER.begin + 100)
        return bytes(found)

    assert caller(stack_pointer, code, memory, MACHINE) == OVER.library, "a search takes it for the caller"
    assert waiting(CallFrame(instruction, stack_pointer), code, process._table, memory, MACHINE) == INTERPRETER


def test_without_a_table_the_stack_is_searched(thread: int) -> None:
    stack_pointer, instruction = (int(word, 16) for word in words_of(thread)[7:9])
    process = CodeMap(os.getpid())
    assert waiting(CallFrame(instruction, stack_pointer), process._read(), lambda _: None, process._memory, MACHINE) == INTERPRETER


@pytest.mark.parametrize("seed", range(8))
def test_what_is_no_table_says_nothing(seed: int) -> None:
    """Bytes of the C library, changed: each mistake is one of those that are expected, and nothing takes for ever."""
    chance, process = random.Random(seed), CodeMap(os.getpid())
    base = next(region.base for region in process._read() if region.library.startswith("libc"))

    def memory(address: int, size: int) -> bytes:
        found = bytearray(process._memory(address, size))
        for _ in range(1 + size // 64 if size < 1 << 12 else 0):
            found[chance.randrange(size)] = chance.randrange(256)
        return bytes(found)

    for _ in range(10):
        try:
            table = UnwindTable(base, memory)
            table.rules(base + chance.randrange(1 << 21))
        except MISREAD:
            continue
