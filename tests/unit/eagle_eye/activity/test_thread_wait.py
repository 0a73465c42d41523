"""Lines of /proc/PID/task/TID/syscall, as Linux prints them."""

import os
import platform
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_eye.activity.thread_wait import NEVER, RUNS, UNKNOWN, ThreadWait, WaitKind, parse, wait_of

MOMENTS = {0x100: struct.pack("<qq", 30, 500_000_000), 0x200: struct.pack("<qq", 1_030, 0), 0x300: struct.pack("<qq", 1_700_000_020, 0)}


def memory(address: int) -> bytes:
    try:
        return MOMENTS[address]
    except KeyError:
        raise OSError("not allowed") from None


@pytest.mark.parametrize(("line", "machine", "wait"), [
    ("running", "x86_64", RUNS),
    ("202 0x55 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.LOCK)),
    ("98 0x55 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", "aarch64", ThreadWait(WaitKind.LOCK)),
    ("202 0x55 0x80 0x0 0x100 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.LOCK, 30.5)),
    ("202 0x55 0x89 0x0 0x200 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.LOCK, 30.0)),
    ("202 0x55 0x189 0x0 0x300 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.LOCK, 20.0)),
    ("230 0x1 0x1 0x200 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.TIME, 30.0)),
    ("230 0x0 0x1 0x300 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.TIME, 20.0)),
    ("115 0x1 0x0 0x100 0x0 0x0 0x0 0x7f 0x7f", "aarch64", ThreadWait(WaitKind.TIME, 30.5)),
    ("35 0x100 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.TIME, 30.5)),
    ("7 0x55 0x1 0xffffffff 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT)),
    ("7 0x55 0x1 0x3e8 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT, 1.0)),
    ("270 0x0 0x0 0x0 0x0 0x100 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT, 30.5)),
    ("271 0x0 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT)),
    ("34 0x0 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.SIGNAL)),
    ("202 0x55 0x109 0x0 0x0 0x0 0xffffffff 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT)),
    ("202 0x55 0x109 0x0 0x300 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT, 20.0)),
    ("56 0x4011 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.CHILD)),
    ("73 0x3 0x2 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT)),
    ("87 0x55 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.STORAGE)),
    ("82 0x55 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.STORAGE)),
    ("262 0x55 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.STORAGE)),
    ("217 0x55 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.STORAGE)),
    ("35 0x55 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "aarch64", ThreadWait(WaitKind.STORAGE)),
    ("74 0x3 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.STORAGE)),
    ("-1 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.STORAGE)),
    ("61 0x5 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", ThreadWait(WaitKind.INPUT)),
    ("9999 0x0 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", UNKNOWN),
    ("202 0x55 0x189 0x0 0x0 0x0 0x0 0x7f 0x7f", "riscv64", UNKNOWN),
    ("35 0x999 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f", "x86_64", UNKNOWN),
    ("", "x86_64", RUNS),
])  # fmt: skip
def test_what_a_thread_waits_for_and_until_when(line: str, machine: str, wait: ThreadWait) -> None:
    found = parse(line, machine, memory, wall=1_700_000_000.0, monotonic=1_000.0)
    assert found.kind is wait.kind
    assert found.remaining_s == pytest.approx(wait.remaining_s)


def test_whose_lock_it_is_is_asked_by_its_address_and_the_threads_stack() -> None:
    found = parse("202 0x55 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x8f", "x86_64", memory, wall=0.0, monotonic=0.0, waiter=lambda address, stack, place: f"{address:x} {stack:x} {place:x}")
    assert found.caller == "55 7f 8f"


def test_who_polls_is_asked_by_the_threads_stack() -> None:
    found = parse("232 0x3 0x7f 0x40 0xa 0x0 0x0 0x7f 0x8f", "x86_64", memory, wall=0.0, monotonic=0.0, waiter=lambda address, stack, place: f"{address:x} {stack:x} {place:x}")
    assert (found.kind, found.caller) == (WaitKind.INPUT, "0 7f 8f")


def test_a_timer_ends_a_wait_and_storage_has_none() -> None:
    assert ThreadWait(WaitKind.LOCK, 5.0).ends_within(5.0)
    assert not ThreadWait(WaitKind.LOCK, 5.1).ends_within(5.0)
    assert not ThreadWait(WaitKind.LOCK, NEVER).ends_within(1e9)
    assert not RUNS.ends_within(5.0)


CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
CLONE_VFORK = 0x4000


@pytest.mark.parametrize(("child", "kind"), [("time.sleep(100)", WaitKind.CHILD), ("os.read(0, 1)", WaitKind.CHILD), ("exec('while True: pass')", WaitKind.STORAGE)])
def test_who_waits_for_a_child_to_start_its_program_waits_for_storage_while_that_runs(child: str, kind: WaitKind) -> None:
    """Held in the kernel by vfork. Who waits for a pipe reads no program: nobody writes to this one."""
    code = f"import ctypes, os, time\nprint(flush=True)\nctypes.CDLL(None).syscall({CLONE}, {CLONE_VFORK | signal.SIGCHLD}, 0, 0, 0, 0) or {child}"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "D":
            assert process.poll() is None
        while wait_of(process.pid, process.pid).kind is not kind:  # the child may not have come to its place
            assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
