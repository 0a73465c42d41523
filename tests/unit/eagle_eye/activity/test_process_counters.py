"""Counters of a process that move while somebody works."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle_eye.activity.process_counters import read_counters, runs
from eagle_eye.service_thread import mark_service_thread

WRITTEN = 1 << 20


def test_the_demand_of_a_thread_that_computes_grows_and_that_of_one_that_waits_does_not() -> None:
    over, waits = threading.Event(), threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=compute), threading.Thread(target=waits.wait)]
    for each in threads:
        each.start()
    computing, waiting = (each.native_id for each in threads)
    try:
        before = read_counters(os.getpid())
        assert before is not None
        grown = 0.0
        while grown < 0.1:
            now = read_counters(os.getpid())
            assert now is not None
            grown = now.demand[computing] - before.demand[computing]
        assert now.demand[waiting] - before.demand[waiting] < grown / 2
    finally:
        over.set()
        waits.set()
        for each in threads:
            each.join()


@pytest.mark.parametrize(("name", "counted"), [(mark_service_thread, 0), (lambda: None, WRITTEN)], ids=["ours", "twin of the script"])
def test_what_a_thread_of_ours_computes_writes_and_touches_is_not_the_scripts_work(tmp_path: Path, name: Callable[[], None], counted: int) -> None:
    named, begin, done, over = (threading.Event() for _ in range(4))

    def work() -> None:
        name()
        named.set()
        begin.wait()
        (tmp_path / "x").write_bytes(bytes(WRITTEN))
        done.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        named.wait()
        before = read_counters(os.getpid())
        begin.set()
        done.wait()
        now = read_counters(os.getpid())
    finally:
        begin.set()
        over.set()
        thread.join()
    assert before is not None
    assert now is not None
    own_looks = 1 << 19  # what the looks themselves read
    assert counted <= now.io_bytes - before.io_bytes <= 2 * counted + own_looks


COMPUTES = """
import threading
from eagle_eye.service_thread import mark_service_thread

def compute():
    {name}()
    print(flush=True)
    while True: pass

threading.Thread(target=compute).start()
threading.Event().wait()  # from some moment on
"""
LOOKS = 200


@pytest.mark.parametrize(("name", "seen"), [("mark_service_thread", False), ("int", True)], ids=["ours", "twin of the script"])
def test_who_computes_is_seen_to_run_unless_it_is_ours(name: str, seen: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", COMPUTES.format(name=name)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        while any(runs(process.pid) for _ in range(LOOKS)) is not seen:
            pass
    finally:
        process.kill()
        process.communicate()
