"""Counters of a process that move while somebody works."""

import os
import threading

from eagle_eye.activity.process_counters import read_counters


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
