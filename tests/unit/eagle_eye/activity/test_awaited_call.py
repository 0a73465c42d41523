"""Which descriptors, path or child a kernel call names: lines of /proc/PID/task/TID/syscall."""

import os
import select
import struct
import threading

import pytest

from eagle_eye.activity.awaited_call import POLLED, AwaitedCall, awaited_call, parse, watched

TAIL = "0x0 0x0 0x0 0x7ffe 0x7fa1"


def no_memory(address: int, size: int) -> bytes:
    raise OSError


@pytest.mark.parametrize(("line", "found"), [
    ("0 0x5 0x0 0x1 " + TAIL, AwaitedCall((5,))), ("45 0x3 0x0 0x1 " + TAIL, AwaitedCall((3,))), ("74 0x9 0x0 0x0 " + TAIL, AwaitedCall((9,))),
    ("61 0x1092 0x0 0x0 " + TAIL, AwaitedCall(child=0x1092)), ("61 0xffffffffffffffff 0x0 0x0 " + TAIL, AwaitedCall()),
    ("202 0x7fa1 0x189 0x0 " + TAIL, AwaitedCall()), ("230 0x1 0x1 0x7f " + TAIL, AwaitedCall()), ("running", AwaitedCall()), ("-1 0x7ffe 0x7fa1", AwaitedCall()), ("", AwaitedCall()),
])  # fmt: skip
def test_what_a_call_names(line: str, found: AwaitedCall) -> None:
    assert parse(line, "x86_64", no_memory) == found


def test_the_descriptors_of_a_poll_are_in_the_memory_and_are_bounded() -> None:
    asked: list[int] = []

    def memory(address: int, size: int) -> bytes:
        asked.append(size)
        return b"".join(POLLED.pack(number, 1, 0) for number in (4, -1, 6)) + b"torn"

    assert parse("7 0x7f00 0xffffff 0xffffffff " + TAIL, "x86_64", memory) == AwaitedCall((4, 6))
    assert asked == [64 * POLLED.size]


def test_the_descriptors_of_a_select_are_bits() -> None:
    memory = {0x10: struct.pack("<Q", 0b1001000), 0x20: struct.pack("<Q", 0b10)}
    assert parse("23 0x8 0x10 0x20 " + TAIL, "x86_64", lambda address, size: memory[address][:size]) == AwaitedCall((1, 3, 6))


def test_a_path_is_read_up_to_its_end() -> None:
    def memory(address: int, size: int) -> bytes:
        assert address == 0x7F00
        return b"/mnt/nfs/shard-17\0rest"

    assert parse("257 0xffffff9c 0x7f00 0x0 " + TAIL, "x86_64", memory) == AwaitedCall(path="/mnt/nfs/shard-17")
    assert parse("56 0xffffff9c 0x7f00 0x0 " + TAIL, "aarch64", memory) == AwaitedCall(path="/mnt/nfs/shard-17")


def test_a_machine_that_is_not_known_names_nothing() -> None:
    assert parse("0 0x5 0x0 0x1 " + TAIL, "riscv64", no_memory) == AwaitedCall()


def test_a_thread_that_reads_a_pipe_is_seen_to() -> None:
    read, write = os.pipe()
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: (numbers.append(threading.get_native_id()), os.read(read, 1)))
    thread.start()
    try:
        while not numbers or awaited_call(os.getpid(), numbers[0]) != AwaitedCall((read,)):
            os.sched_yield()
    finally:
        os.write(write, b"x")
        thread.join()
        os.close(read)
        os.close(write)


def test_what_epoll_watches_is_told() -> None:
    read, write = os.pipe()
    with select.epoll() as poll:
        poll.register(read)
        assert watched(os.getpid(), poll.fileno()) == (read,)
    os.close(read)
    os.close(write)


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    assert awaited_call(1 << 22, 1 << 22) == AwaitedCall()
    assert watched(1 << 22, 3) == ()
