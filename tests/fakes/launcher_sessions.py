"""`FakeLauncher`: the launcher's end of the sessions of elastic workers, which a test controls; it keeps the key-value store.

    with FakeLauncher(path) as launcher:
        ... workers connect to `path` and ask to join ...
        launcher.wait_for_joins("a", "b")
        launcher.form(1, "a", "b")                  # fence, held states, plan, assignments
        launcher.form(2, "b", soft=True)

One thread reads all connections. Waits are condition waits; each raises AssertionError after `patience_s`.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any

from eagle_eye.training import messages
from eagle_eye.training.elastic.epoch_protocol import EpochAssignment
from eagle_eye.training.elastic.rendezvous.key_value_store import KeyValueStore

Plan = Callable[[int, dict[str, messages.ProbeMessage], dict[str, messages.ProbeMessage]], dict[str, EpochAssignment]]
"""(epoch, held states, join requests), both by worker in the order of ranks → assignments by worker."""

_TICK_S = 0.05
"""Seconds between two checks for questions to the store whose time-out is over."""


class FakeLauncher:
    """Serves any number of workers on a unix socket."""

    def __init__(self, path: str, plan: "Plan | None" = None, patience_s: float = 30.0) -> None:
        self.path = path
        self.keys = KeyValueStore()
        self._plan = plan or even_plan
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._received: list[messages.ProbeMessage] = []
        self._lines: dict[str, socket.socket] = {}
        self._disconnected: set[str] = set()
        self._open = True
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._bell, ringing = socket.socketpair()
        self._selector.register(ringing, selectors.EVENT_READ, lambda: None)
        self._thread = threading.Thread(target=self._serve, name="fake-launcher", daemon=True)
        self._thread.start()

    def __enter__(self) -> "FakeLauncher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        if not self._open:
            return
        self._open = False
        self._bell.close()
        self._thread.join()
        for connection in [key.fileobj for key in self._selector.get_map().values()]:
            connection.close()  # type: ignore[union-attr]  # all are sockets
        self._selector.close()

    # --- what a launcher sends -------------------------------------------------------------------------------------

    def send(self, worker: str, kind: str, **fields: Any) -> None:
        """One message to one worker; nothing if it is gone."""
        with self._changed, contextlib.suppress(OSError, KeyError):
            self._lines[worker].sendall(messages.encode(kind, **fields))

    def fence(self, epoch: int, *workers: str, soft: bool = False) -> None:
        """To workers that have asked to join, or are about to."""
        self.wait_for_joins(*workers)
        for worker in workers:
            self.send(worker, "fence", epoch=epoch, soft=soft)

    def assign(self, assignments: Mapping[str, EpochAssignment]) -> None:
        for worker, assignment in assignments.items():
            self.send(worker, "assignment", **asdict(assignment))

    def form(self, epoch: int, *workers: str, soft: bool = False) -> dict[str, EpochAssignment]:
        """The whole path to an epoch: fence, held states, plan, assignments. Ranks are in the order of `workers`."""
        self.fence(epoch, *workers, soft=soft)
        held_states = {worker: self.wait_for("held_state", worker, epoch=epoch) for worker in workers}
        join_requests = {worker: self.wait_for("join", worker) for worker in workers}
        assignments = self._plan(epoch, held_states, join_requests)
        self.assign(assignments)
        return assignments

    def halt(self, reason: str, code: int, *workers: str) -> None:
        for worker in workers:
            self.send(worker, "halt", reason=reason, code=code)

    # --- what it receives --------------------------------------------------------------------------------------------

    def wait_for_joins(self, *workers: str) -> None:
        """Wait until all have asked to join."""
        for worker in workers:
            self.wait_for("join", worker)

    def wait_for(self, kind: str, worker: str, **fields: Any) -> messages.ProbeMessage:
        """The newest message of that kind from that worker with these fields; waits for it."""
        pattern = {"kind": kind, "worker": worker, **fields}
        with self._changed:
            self._until(lambda: self._matching(pattern), str(pattern))
            return self._matching(pattern)[-1]

    def received(self, kind: str, **fields: Any) -> list[messages.ProbeMessage]:
        """Every message of that kind with these fields, in order."""
        with self._changed:
            return self._matching({"kind": kind, **fields})

    def wait_for_disconnect(self, worker: str) -> None:
        """Wait until the worker's connection is closed."""
        with self._changed:
            self._until(lambda: worker in self._disconnected, f"the end of {worker}")

    # --- the thread -----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._open:
            for key, _ in self._selector.select(_TICK_S):
                key.data()
            with self._changed:
                self.keys.expire(time.monotonic())

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        lines = messages.Lines()
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(connection, lines))

    def _read(self, connection: socket.socket, lines: messages.Lines) -> None:
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        with self._changed:
            for line in lines.feed(data):
                self._take(messages.decode(line), connection)
            if not data:
                self._forget(connection)
            self._changed.notify_all()

    def _take(self, message: messages.ProbeMessage, connection: socket.socket) -> None:
        if message["kind"] == "store":
            self.keys.ask(message, lambda line: _send(connection, line), time.monotonic())
        if message["kind"] == "join":
            self._lines[message["worker"]] = connection
            self._disconnected.discard(message["worker"])
        self._received.append(message)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        for worker in [worker for worker, line in self._lines.items() if line is connection]:
            del self._lines[worker]
            self._disconnected.add(worker)
            self.keys.forget_asker(worker)
        connection.close()

    def _matching(self, fields: Mapping[str, Any]) -> list[messages.ProbeMessage]:
        return [message for message in self._received if fields.items() <= message.items()]

    def _until(self, condition: Callable[[], Any], what: str) -> None:
        if not self._changed.wait_for(condition, self._patience_s):
            raise AssertionError(f"waited in vain for {what}")


def even_plan(
    epoch: int, held_states: dict[str, messages.ProbeMessage], join_requests: dict[str, messages.ProbeMessage]
) -> dict[str, EpochAssignment]:
    """The simplest transition: the newest state goes from one holder to all behind it; what is wait_for_disconnect is dealt out.

    A worker that has the whole sum of a step which another has applied is brought up to date by state, too.
    """
    workers = list(held_states)
    entry = join_requests[workers[0]]
    known = [held["step"] for held in held_states.values() if not held["fresh"]]
    step = max(known, default=max(held["step"] for held in held_states.values()))
    ready = [bool(known) and not held["fresh"] and held["step"] == step for held in held_states.values()]
    total = int(entry["micro_batches"])
    done = [set(held["done"]) if up else set() for held, up in zip(held_states.values(), ready, strict=True)]
    current = _deal(total, done)
    shares = tuple(
        tuple(range(total * rank // len(workers), total * (rank + 1) // len(workers))) for rank in range(len(workers))
    )
    moves = tuple(
        (ready.index(True), taker, layer)
        for taker, up in enumerate(ready)
        if known and not up
        for layer in range(len(entry["layers"]))
    )
    source = "" if known else "checkpoint"
    now = current if known else shares
    first = EpochAssignment(epoch, 0, len(workers), tuple(workers), step, now, shares, moves=moves, source=source)
    return {worker: replace(first, rank=rank) for rank, worker in enumerate(workers)}


def _deal(total: int, done: list[set[int]]) -> tuple[tuple[int, ...], ...]:
    """Each keeps what it has done; the rest goes one by one to who has least."""
    current: list[set[int]] = []
    for each in done:
        current.append(each - set().union(*current))
    for wait_for_disconnect in sorted(set(range(total)) - set().union(*current)):
        min(current, key=len).add(wait_for_disconnect)
    return tuple(tuple(sorted(each)) for each in current)


def _send(connection: socket.socket, line: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(line)
