"""The same work for each of many things, in several threads, of which the caller is one: it gets done where no other one may be started."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_map(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Results in the order of the items. What one raises is raised when those under way are done; no further one is begun then.

    >>> thread_map(abs, [-1, 2, -3], threads=2)
    [1, 2, 3]
    """
    results: list[Result | None] = [None] * len(items)
    waiting, turn, failures = iter(range(len(items))), threading.Lock(), list[BaseException]()

    def work_off() -> None:
        while not failures:
            with turn:
                index = next(waiting, None)
            if index is None:
                return
            try:
                results[index] = work(items[index])
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                failures.append(error)

    others = [threading.Thread(target=work_off, name="eagle-eye-part", daemon=True) for _ in range(min(threads, len(items)) - 1)]
    started = []
    with contextlib.suppress(RuntimeError):  # a limit of processes, or the interpreter ends
        for thread in others:
            thread.start()
            started.append(thread)
    work_off()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]
    return results  # type: ignore[return-value]  # all are done
