"""Looks at the processes that `eagle-eye stacks` was asked for, and what is known of each: the socket that it waits for with its other end."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from eagle_eye.activity.open_files import OpenFile, SocketEnds, SocketTable, open_file, open_files
from eagle_eye.activity.stack_facts import ProcessReport, report
from eagle_eye.activity.stack_sampler import ChildPrograms, StackSample, StackSampler, take_sample
from eagle_eye.activity.stack_text import members_text
from eagle_eye.app.stack_targets import StackTargets
from eagle_eye.clock import Clock

Taken = Mapping[str, Sequence[StackSample]]
"""Name → its looks, the oldest first, at least one."""


def bar(what: str) -> Progress:
    """A progress bar on a terminal that leaves nothing behind."""
    console = Console(stderr=True)
    return Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), console=console, transient=True, disable=not console.is_terminal)


def sample_processes(targets: StackTargets, count: int, every_s: float, clock: Clock) -> tuple[Taken, tuple[str, ...]]:
    """The looks; and the names of those that a look did not come back from. As many processes at once as the machine has cores."""
    names = {pid: name for name, pid in targets.pids.items()}
    taken: dict[str, list[StackSample]] = {name: [] for name in targets.pids}
    late: list[str] = []
    programs = ChildPrograms()
    sampler = StackSampler(clock, partial(take_sample, clock=clock, programs=programs), count, every_s, parallel=min(len(names), len(os.sched_getaffinity(0))))
    with contextlib.closing(programs), bar("looking at processes") as shown:
        task = shown.add_task("", total=count * len(names))
        for result in sampler.run(names):
            name = names[result.pid]
            if result.sample is not None:
                taken[name].append(result.sample)
            elif result.late:
                late.append(name)
            shown.advance(task)
    return {name: found for name, found in taken.items() if found}, tuple(late)


def reports_of(taken: Taken, targets: StackTargets, patience_s: float) -> dict[str, ProcessReport]:
    """Name → what is known of it."""
    sockets = _Sockets(targets)
    return {name: report(found, patience_s, partial(sockets.file_of, name)) for name, found in taken.items()}


class _Sockets:
    """Which of the processes has which socket; looked up when one waits for a socket."""

    def __init__(self, targets: StackTargets) -> None:
        self._targets = targets
        self._tables: dict[str, SocketTable] = {}
        self._owners: dict[tuple[str, str], str] | None = None

    def file_of(self, name: str, descriptor: int) -> OpenFile | None:
        """A descriptor of one of them; a socket to another one names it."""
        pid = self._targets.pids[name]
        found = open_file(pid, descriptor, self._table(pid))
        if found is None or found.ends is None or not found.ends.remote:
            return found
        owner = self._owner(found.ends)
        return found if not owner else found._replace(target=f"{found.target} ({members_text([owner], self._targets.word)})")

    def _owner(self, ends: SocketEnds) -> str:
        if self._owners is None:
            listed = ((name, file.ends) for name, pid in self._targets.pids.items() for file in open_files(pid, self._table(pid)))
            self._owners = {(each.local, each.remote): name for name, each in listed if each is not None}
        return self._owners.get((ends.remote, ends.local), "")

    def _table(self, pid: int) -> SocketTable:
        """One for each network that they are in."""
        try:
            network = str(Path(f"/proc/{pid}/ns/net").readlink())
        except OSError:
            network = str(pid)
        return self._tables.setdefault(network, SocketTable(pid))
