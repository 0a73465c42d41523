"""Threads that run no Python: which of them may wake one that does."""

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from eagle_eye.activity.kernel_state import name_of
from eagle_eye.activity.native_caller import CodeMap
from eagle_eye.activity.native_threads import NativeThread, may_wake, wakers
from eagle_eye.activity.thread_wait import RUNS, UNKNOWN, ThreadWait, WaitKind, wait_of
from fakes.launchers import wait_until

IDLE, SOCKET = ThreadWait(WaitKind.LOCK), ThreadWait(WaitKind.INPUT)


@pytest.mark.parametrize(("name", "wait"), [
    ("AwsEventLoop 1", SOCKET), ("tokio-runtime-w", SOCKET), ("python", ThreadWait(WaitKind.TIME, 8.0)), ("python", UNKNOWN), ("python", RUNS),
    ("python", ThreadWait(WaitKind.STORAGE)), ("python", ThreadWait(WaitKind.LOCK, 5.0)), ("python", ThreadWait(WaitKind.INPUT, caller="libaws-c-io.so.1")),
    ("python", ThreadWait(WaitKind.LOCK, 5.0, "libtorch_cpu.so")),
])  # fmt: skip
def test_twin_a_thread_of_a_library_may_call_back(name: str, wait: ThreadWait) -> None:
    assert may_wake(NativeThread(name, wait))


@pytest.mark.parametrize(("name", "wait"), [
    ("python", IDLE), ("tokio-runtime-w", IDLE), ("gloo_tcp_loop", RUNS), ("pt_gloo_runloop", IDLE), ("pt_tcpstore_uv", SOCKET),
    ("pt_nccl_watchdg", ThreadWait(WaitKind.LOCK, 0.1)), ("cuda-EvtHandlr", SOCKET), ("NCCL Progress 1", RUNS), ("eagle-eye/serve", SOCKET), ("", UNKNOWN),
    ("python", ThreadWait(WaitKind.INPUT, 0.01, "libtorch_cpu.so")),
])  # fmt: skip
def test_fault_idle_pools_and_the_threads_that_torch_keeps_hide_no_deadlock(name: str, wait: ThreadWait) -> None:
    assert not may_wake(NativeThread(name, wait))


def test_the_threads_of_a_process_that_run_no_python() -> None:
    done, begun = threading.Event(), threading.Event()

    def sleeps() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("callback")
        begun.set()
        done.wait(60.0)

    other = threading.Thread(target=sleeps)
    other.start()
    begun.wait()
    try:
        python = {each.native_id or 0 for each in threading.enumerate()}
        known, unknown = wakers(os.getpid(), python), wakers(os.getpid(), python - {other.native_id})
    finally:
        done.set()
        other.join()
    assert [[each.name for each in found].count("callback") for found in (known, unknown)] == [0, 1]
    assert wakers(0x7FFFFFFF, ()) == ()


def gloo_loops() -> list[int]:
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return [thread for thread in threads if name_of(os.getpid(), thread).startswith("gloo_tcp")]


def test_the_loop_of_gloo_is_known_without_its_name(tmp_path: Path) -> None:
    """torch 2.11 gives it none; in 2.13 the thread takes it as it begins."""
    group = dist.ProcessGroupGloo(dist.FileStore(str(tmp_path / "store"), 1), 0, 1, timedelta(seconds=30))
    loops = wait_until("the loop's name", gloo_loops)
    for thread in loops:
        Path(f"/proc/self/task/{thread}/comm").write_text("python")
    code = CodeMap(os.getpid())
    waits = [wait_until("its poll", lambda thread=thread: (found := wait_of(os.getpid(), thread, code)).kind is WaitKind.INPUT and found) for thread in loops]
    assert not any(may_wake(NativeThread("python", wait)) for wait in waits)
    del group
