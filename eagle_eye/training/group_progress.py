"""How far a worker is in each of its process groups, written once a second beside its probe's socket, for the agent to read.

torch keeps the numbers anyway, in its flight recorder; to read them takes 10 µs and stops nobody. Nothing is asked of the worker, so one that
hangs or is stopped costs its reader nothing: its file grows old.

The thread is marked as ours: what it computes and writes each second is not the script's work, and whoever looks whether that hangs leaves it out.
EAGLE_EYE_GROUPS=0 leaves the whole out.
"""

import atexit
import hashlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_eye.service_thread import mark_service_thread

from . import live_flight_recorder

_log = logging.getLogger("eagle_eye.probe")
SUFFIX = ".groups"
EVERY_S = 1.0
FAULTS = 10
"""After so many in succession it is given up: this torch is another one."""
SEARCH_S, SEARCH_LONGEST_S = 1.0, 600.0
"""Pause before the ring is searched again for the name of a group, which takes 30 ms; doubled each time."""
DUMPS = {"nccl": "_dump_nccl_trace_json", "gloo": "_dump_fr_trace_json"}
"""Backend → torch's function for its recorder. The second is of all backends but NCCL."""
_NAMED = re.compile(rb'"pg_id":(\d+),"process_group":\["([^"]*)"')
"""In an entry of a dump as JSON, whose keys are sorted."""
_c10d = "torch._C._distributed_c10d"
_groups = "torch.distributed.distributed_c10d"


def path_beside(probe_socket: str) -> str:
    """Where the worker that serves `probe_socket` writes."""
    return f"{probe_socket}{SUFFIX}"


def begin(path: str, environment: Mapping[str, str]) -> None:
    """Write from a daemon thread, from when torch has process groups to the end of the process."""
    if environment.get("EAGLE_EYE_GROUPS") == "0":
        return
    over = threading.Event()
    thread = threading.Thread(target=_write_each_second, args=(Path(path), over), name="eagle-eye-groups", daemon=True)
    thread.start()
    atexit.register(_end, over, thread)


def _end(over: threading.Event, thread: threading.Thread) -> None:
    """torch must not be in use when the interpreter goes."""
    over.set()
    thread.join(EVERY_S)


def _write_each_second(path: Path, over: threading.Event) -> None:
    mark_service_thread()
    progress, faults, written = GroupProgressReader(), 0, False
    while faults < FAULTS and not over.wait(EVERY_S):
        try:
            if (found := progress.read()) is not None:
                if not written:
                    written = True
                    _serve_recorder(path)
                _write(path, found)
            faults = 0
        except Exception:  # noqa: BLE001 - private parts of torch, read beside a loop that changes them; nothing may reach the script
            faults += 1
            _log.debug("the process groups cannot be read", exc_info=True)


def _serve_recorder(path: Path) -> None:
    """Where the script loaded torch behind the probe, as without the launcher's preload: torch's server could not begin with it."""
    if not live_flight_recorder.serving():
        live_flight_recorder.serve(live_flight_recorder.path_beside(str(path).removesuffix(SUFFIX)))


def _write(path: Path, found: Mapping[str, Any]) -> None:
    """Whole or not at all: a reader never sees half of it."""
    new = path.with_name(f"{path.name}.new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, json.dumps(found).encode())
    finally:
        os.close(file)
    new.replace(path)


@dataclass(slots=True)
class GroupProgressReader:
    """Reads torch's numbers in the process that has them."""

    modules: Mapping[str, Any] = field(default_factory=lambda: sys.modules)
    clock_ns: Callable[[], int] = time.monotonic_ns
    _facts: dict[str, Mapping[str, Any]] = field(default_factory=dict, init=False)
    _names: dict[tuple[str, str], str] = field(default_factory=dict, init=False)
    """(backend, its number for a group) → name of the group."""
    _search_s: float = field(default=SEARCH_S, init=False)
    _searched_ns: int = field(default=-(10**18), init=False)
    _since: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict, init=False)
    """The same → (collectives that are over, since when there is one behind them that is not)."""

    def read(self) -> dict[str, Any] | None:
        """None while there are no groups."""
        c10d, module = self.modules.get(_c10d), self.modules.get(_groups)
        world = getattr(module, "_world", None)
        if c10d is None or world is None or not world.pg_names:
            return None
        now = self.clock_ns()
        groups = {str(name): {**self._facts_of(group, str(name), world), "backends": {}} for group, name in list(world.pg_names.items())}
        for place, status in self._statuses(c10d, now):
            name = self._names.get(place, "")
            if name in groups:
                groups[name]["backends"][place[0]] = self._position(place, status, now)
        return {"version": 1, "pid": os.getpid(), "monotonic_ns": now, "groups": list(groups.values())}

    def _facts_of(self, group: Any, name: str, world: Any) -> Mapping[str, Any]:
        """A group's ranks stay as they are, and there may be ten thousand; its name does not come again."""
        if name not in self._facts:
            ranks = world.pg_group_ranks[group]  # global rank → rank in the group
            listed = sorted(ranks, key=ranks.__getitem__)
            members = hashlib.blake2b(json.dumps(listed).encode(), digest_size=6).hexdigest()
            self._facts[name] = {"name": name, "description": str(group.group_desc), "position": group.rank(), "size": len(listed), "members": members}
        return self._facts[name]

    def _statuses(self, c10d: Any, now: int) -> Iterator[tuple[tuple[str, str], Mapping[str, str]]]:
        found = []
        for backend, dump in _dumps(c10d):
            status = json.loads(dump(False, False)).get("pg_status") or {}
            found += [((backend, number), of_group) for number, of_group in status.items()]
        if any(place not in self._names for place, _ in found) and now - self._searched_ns >= self._search_s * 1e9:
            self._searched_ns, self._search_s = now, min(SEARCH_LONGEST_S, 2 * self._search_s)
            self._search(c10d)
        yield from found

    def _search(self, c10d: Any) -> None:
        """The status tells groups by numbers of the backend's own; the entries of the ring have both."""
        for backend, dump in _dumps(c10d):
            for number, group in _NAMED.findall(dump(True, False)):
                self._names[backend, number.decode()] = group.decode()

    def _position(self, place: tuple[str, str], status: Mapping[str, str], now: int) -> dict[str, int]:
        begun, over = max(0, int(status["last_enqueued_collective"])), max(0, int(status["last_completed_collective"]))
        if begun <= over:
            self._since.pop(place, None)
            return {"begun": begun, "over": over, "pending_ns": 0}
        before, since = self._since.get(place, (-1, now))
        if before != over:
            since = now
        self._since[place] = over, since
        return {"begun": begun, "over": over, "pending_ns": now - since}


def _dumps(c10d: Any) -> Iterator[tuple[str, Callable[[bool, bool], bytes]]]:
    """(backend, its recorder's dump) of those that this torch was built with."""
    yield from ((backend, getattr(c10d, name)) for backend, name in DUMPS.items() if hasattr(c10d, name))
