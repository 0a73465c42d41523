"""Whose code waits for a lock: found on a thread's stack."""

import struct

import pytest

from eagle_eye.activity.native_caller import INTERPRETER, caller, is_semaphore, regions

MAPS = """\
400000-500000 r-xp 00000000 08:01 1 /opt/conda/bin/python3.12
500000-600000 rw-p 00000000 08:01 1 /opt/conda/bin/python3.12
7f0000000000-7f0000100000 r-xp 00000000 08:01 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000100000-7f0000200000 r-xp 00000000 08:01 3 /opt/conda/lib/libstdc++.so.6.0.30
7f0000200000-7f0000300000 r-xp 00000000 08:01 4 /opt/conda/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so (deleted)
7f0000300000-7f0000400000 r-xp 00000000 08:01 5 /opt/conda/lib/libpython3.12.so.1.0
7f0000400000-7f0000500000 r-xp 00000000 00:00 0
"""
CODE = tuple(regions(MAPS.splitlines(), "/opt/conda/bin/python3.12"))
STACK = 0x7FFF0000
PYTHON, LIBC, STDCPP, TORCH, LIBPYTHON = 0x401000, 0x7F0000001000, 0x7F0000101000, 0x7F0000201000, 0x7F0000301000
CALLS = {
    "x86_64": [b"\0\0\xe8\1\2\3\4", b"\0\xff\x15\1\2\3\4", b"\0\0\0\0\0\xff\xd0", b"\0\0\0\0\x41\xff\xd4", b"\0\0\0\0\xff\x50\x18", b"\xff\x94\x24\1\2\3\4"],
    "aarch64": [b"\0\0\0\x12\0\0\x94", b"\0\0\0\0\0\x3f\xd6"],
}


def found(*words: int, machine: str = "x86_64", before: bytes = CALLS["x86_64"][0]) -> str:
    """Of a stack with these words, all of which follow this instruction."""
    return caller(STACK, CODE, lambda address, size: struct.pack(f"<{len(words)}Q", *words) if address == STACK else before[-size:], machine)


@pytest.mark.parametrize(("words", "name"), [
    ((0, LIBC, 7, PYTHON, TORCH), INTERPRETER), ((0, LIBC, LIBPYTHON), INTERPRETER), ((LIBC, STDCPP, TORCH, PYTHON), "libtorch_cpu.so"),
    ((LIBC, STDCPP), ""), ((0x500100, 3), ""), ((), ""), ((LIBC, TORCH | 0x5A << 56), "libtorch_cpu.so"),
])  # fmt: skip
def test_the_first_library_beyond_the_c_library_is_whose_lock_it_is(words: tuple[int, ...], name: str) -> None:
    assert found(*words) == name


@pytest.mark.parametrize(("machine", "before"), [(machine, before) for machine, all_ in CALLS.items() for before in all_])
def test_a_return_address_follows_a_call(machine: str, before: bytes) -> None:
    assert found(LIBC, PYTHON, machine=machine, before=before) == INTERPRETER


@pytest.mark.parametrize(("machine", "before"), [("x86_64", bytes(7)), ("x86_64", b"\0\0\0\0\0\xff\xe0"), ("aarch64", bytes(7)), ("x86_64", b"")])
def test_twin_a_pointer_to_a_function_is_no_return_address(machine: str, before: bytes) -> None:
    assert found(LIBC, PYTHON, machine=machine, before=before) == ""


@pytest.mark.parametrize(("words", "sure"), [((0, 1, 0, 0), True), ((0, 0, 0, 0), False), ((2, 1, 0, 0), False), ((0, 1, 128, 0), False), ((0, 1 << 20, 0, 0), False)])
def test_the_interpreters_lock_is_a_semaphore_that_somebody_waits_for(words: tuple[int, int, int, int], sure: bool) -> None:
    assert is_semaphore(struct.pack("<4I", *words)) is sure
    assert not is_semaphore(b"")
