"""Real processes that hang and their innocent twins, looked into as an agent does."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle_eye.activity.hang_verdict import Activity, ActivityKind
from eagle_eye.activity.inspector import inspect
from eagle_eye.activity.last_collective import last_collective
from eagle_eye.clock import SystemClock

PATIENCE_S = 600.0
ATTEMPTS, ATTEMPTS_MOST = 20, 60
CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
SCRIPTS = {
    "deadlock": "lock.acquire(); lock.acquire()",
    "event": "threading.Event().wait()",
    "queue": "queue.Queue().get()",
    "joins_a_deadlock": "t = threading.Thread(target=lambda: (lock.acquire(), lock.acquire())); t.start(); t.join()",
    "holds_the_interpreter": "ctypes.PyDLL(None).pause()",
    "sleeps_for_ever": "time.sleep(1 << 30)",
    "loop": "while True: pass",
    "sleeps_a_while": "time.sleep(100)",
    "polls": "while True: time.sleep(0.05)",
    "waits_a_while_for_a_lock": "lock.acquire(); lock.acquire(timeout=100)",
    "socket": "a, b = socket.socketpair(); a.recv(1)",
    "child": "subprocess.run(['sleep', '100'])",
    "working_child": "subprocess.run([sys.executable, '-c', 'while True: bytearray(1 << 22)'])",
    "joins_a_reader": "a, b = socket.socketpair(); t = threading.Thread(target=a.recv, args=(1,), daemon=True); t.start(); t.join()",
    "kernel": f"ctypes.CDLL(None).syscall({CLONE}, 0x4011, 0, 0, 0, 0) or time.sleep(100)",
    "native_lock": "libc, memory = ctypes.CDLL(None), ctypes.create_string_buffer(32); libc.sem_init(memory, 0, 0); libc.sem_wait(memory)",
    "another_process": "multiprocessing.get_context('spawn').Event().wait()",
    "joins_native_code": "t = threading.Thread(target=native_lock, daemon=True); t.start(); t.join()",
    "writes": "f = open(sys.argv[1] + '/data', 'wb')\nwhile True: f.write(bytes(1 << 16)); f.seek(0)",
    "computes": "def fold(n): return n if n < 2 else fold(n - 1) + fold(n - 2)\nwhile True: fold(12)",
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Activity]]:
    """Of all scripts, which run side by side."""
    folder = tmp_path_factory.mktemp("scripts")
    running = {name: _start(folder, name) for name in SCRIPTS}
    try:
        with ThreadPoolExecutor(len(SCRIPTS)) as threads:
            yield dict(zip(running, threads.map(lambda process: _settled(process.pid), running.values()), strict=True))
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _start(folder: Path, name: str) -> "subprocess.Popen[str]":
    head = "import ctypes, multiprocessing, queue, socket, subprocess, sys, threading, time\nlock = threading.Lock()\nprint(flush=True)\n"
    head += f"def native_lock(): {SCRIPTS['native_lock']}\n"
    script = folder / f"{name}_script.py"
    script.write_text(head + SCRIPTS[name] + "\n")
    process = subprocess.Popen([sys.executable, script, str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _settled(pid: int, awaited: ActivityKind | None = None) -> Activity:
    """The verdict once the script has come to its place: two in succession are the same. Of several places on its way one is `awaited`, for a while."""
    seen: list[Activity] = []
    for attempt in range(ATTEMPTS_MOST):
        found = inspect(pid, PATIENCE_S, SystemClock())
        assert found is not None
        if seen and found.kind is seen[-1].kind and (awaited in (None, found.kind) or attempt > ATTEMPTS):
            return found
        seen.append(found)
    raise AssertionError(f"no verdict twice in succession: {seen}")


@pytest.mark.parametrize("name", ["deadlock", "event", "queue", "joins_a_deadlock", "holds_the_interpreter", "sleeps_for_ever", "kernel"])
def test_fault_a_hang_is_proved(verdicts: Mapping[str, Activity], name: str) -> None:
    found = verdicts[name]
    assert found.kind is ActivityKind.HUNG, found
    assert f"{name}_script.py" in found.place


@pytest.mark.parametrize("name", ["sleeps_a_while", "polls", "waits_a_while_for_a_lock", "working_child", "writes", "computes"])
def test_twin_who_works_or_will_wake_is_at_work(verdicts: Mapping[str, Activity], name: str) -> None:
    found = verdicts[name]
    assert found.kind is ActivityKind.WORKING, found


@pytest.mark.parametrize("name", ["socket", "child", "joins_a_reader", "native_lock", "another_process", "joins_native_code"])
def test_twin_whom_somebody_outside_may_wake_only_stands(verdicts: Mapping[str, Activity], name: str) -> None:
    found = verdicts[name]
    assert found.kind is ActivityKind.STANDING, found


def test_an_endless_loop_is_told_and_proves_nothing(verdicts: Mapping[str, Activity]) -> None:
    found = verdicts["loop"]
    assert found.kind is ActivityKind.SPINNING, found
    assert "loop_script.py" in found.doing


def test_twin_whom_a_debugger_holds_is_paused_and_not_hung(tmp_path: Path) -> None:
    process = _start(tmp_path, "deadlock")
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        assert _settled(process.pid).kind is ActivityKind.HUNG
        assert libc.ptrace(PTRACE_ATTACH, process.pid, None, None) == 0
        os.waitpid(process.pid, 0)
        held = _settled(process.pid)
        assert libc.ptrace(PTRACE_DETACH, process.pid, None, None) == 0
        assert held.kind is ActivityKind.TRACED
        assert f"process {os.getpid()}, in deadlock_script.py" in held.doing
        assert _settled(process.pid).kind is ActivityKind.HUNG, "the hang is still found"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


RANKS = {
    0: ("time.sleep(100)", ActivityKind.WORKING),
    1: ("dist.all_reduce(torch.ones(1), async_op=True).wait()", ActivityKind.AWAITS_PEERS),
    2: ("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))", ActivityKind.AWAITS_PEERS),
    3: ("lock = threading.Lock(); lock.acquire(); lock.acquire()", ActivityKind.HUNG),
}
"""Rank of a job on torch.distributed → what it does when all have met, and what is seen of it."""


def test_twin_ranks_that_wait_for_others_in_native_code_await_their_peers(tmp_path: Path) -> None:
    head = f"import sys, threading, time\nimport torch\nimport torch.distributed as dist\ndist.init_process_group('gloo', init_method='file://{tmp_path}/meet', rank=int(sys.argv[1]), world_size={len(RANKS)})\n"
    running = {}
    for rank, (text, _) in RANKS.items():
        script = tmp_path / f"rank{rank}.py"
        recorder = "from eagle_eye.training import live_flight_recorder, group_progress\n"
        recorder += f"live_flight_recorder.serve('{tmp_path}/{rank}.fr')\ngroup_progress.begin('{tmp_path}/{rank}.groups', {{}})\n"
        script.write_text(f"{head}{recorder}dist.barrier()\nprint(flush=True)\n{text}\n")
        running[rank] = subprocess.Popen([sys.executable, script, str(rank)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for process in running.values():
            assert process.stdout is not None
            process.stdout.readline()
        found = {rank: _settled(process.pid, RANKS[rank][1]).kind for rank, process in running.items()}
        collectives = {rank: last_collective(f"{tmp_path}/{rank}.fr") for rank in running}
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert found == {rank: kind for rank, (_, kind) in RANKS.items()}
    numbers = {rank: (each.number, each.pending) for rank, each in collectives.items() if each is not None}
    assert numbers == {0: (1, False), 1: (2, True), 2: (2, True), 3: (1, False)}, "two have entered the second collective, two have not"
