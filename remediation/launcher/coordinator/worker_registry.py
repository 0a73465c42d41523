"""Which elastic workers there are, on which node, and which are on their way."""

from collections.abc import Container, Iterable
from itertools import count, islice

import msgspec

from .membership import Member

ATTEMPTS = 5
"""How often a worker is started anew that dies before it has entered."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An elastic worker as it presents itself with `enter`."""

    worker: str
    node: str
    slot: int
    pid: int
    micro_batches: int
    layers: tuple[int, ...]
    """Bytes of state of each layer."""
    segments: int = 0
    """Of a reduced gradient; 0 if it does not say."""


class WorkerRegistry:
    """Kept by the coordinator; names are run/node/slot, one life of a name differs from the next by its pid."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.entered: dict[str, JoinRequest] = {}
        """Alive, and part of the job or waiting to become it."""
        self.suspended: dict[str, JoinRequest] = {}
        """Alive, but excluded until they enter again."""
        self.awaited: dict[str, str] = {}
        """Forked to join and not here yet: worker → node."""
        self.done: set[str] = set()
        """They have reached the end of the training."""
        self.leaving: set[str] = set()
        """Not needed any more: they end at the next boundary."""
        self.sizes: dict[str, int] = {}
        """Workers that a node is to have, where somebody has changed it."""
        self.broken: set[str] = set()
        """Workers that died and are not replaced: their slots are not used again."""
        self._attempts: dict[str, int] = {}

    def name(self, node: str, slot: int) -> str:
        return f"{self._run}/{node}/{slot}"

    def clear(self) -> None:
        """All workers are ended."""
        self.entered.clear()
        self.suspended.clear()
        self.awaited.clear()
        self.done.clear()
        self.leaving.clear()

    def enter(self, join_request: JoinRequest) -> None:
        """A worker is here, for the first time or again."""
        for others in (self.awaited, self.suspended):
            others.pop(join_request.worker, None)
        self.leaving.discard(join_request.worker)
        self.entered[join_request.worker] = join_request

    def returned(self, node: str, join_requests: Iterable[JoinRequest]) -> None:
        """A launcher reports which of its elastic workers live."""
        self.drop(node)
        self.entered |= {join_request.worker: join_request for join_request in join_requests}

    def drop(self, node: str) -> None:
        """A node's workers cannot be reached."""
        for known in (self.entered, self.suspended):
            for worker in [worker for worker, join_request in known.items() if join_request.node == node]:
                del known[worker]
        for worker in [worker for worker, home in self.awaited.items() if home == node]:
            del self.awaited[worker]

    def is_of_another_life(self, worker: str, pid: int) -> bool:
        """Whether the process of that pid is no longer the one behind the name."""
        known = self.entered.get(worker) or self.suspended.get(worker)
        return bool(pid) and known is not None and known.pid != pid

    def gone(self, worker: str) -> None:
        """Its process has ended."""
        for known in (self.entered, self.suspended, self.awaited):
            known.pop(worker, None)
        self.leaving.discard(worker)

    def suspend(self, worker: str) -> JoinRequest:
        """Leave a living worker out."""
        join_request = self.suspended[worker] = self.entered.pop(worker)
        return join_request

    def settled(self, worker: str) -> None:
        """It is part of an epoch: what went wrong at its start is forgotten."""
        self._attempts.pop(worker, None)

    def forgive(self, node: str) -> None:
        """The node was released: what went wrong there before is forgotten."""
        prefix = f"{self._run}/{node}/"
        self._attempts = {worker: count for worker, count in self._attempts.items() if not worker.startswith(prefix)}

    def size(self, member: Member) -> int:
        return self.sizes.get(member.node, member.slots)

    def slots(self, member: Member) -> tuple[int, ...]:
        """Those that a node is to use: the first ones that are not broken."""
        usable = (slot for slot in count() if self.name(member.node, slot) not in self.broken)
        return tuple(islice(usable, self.size(member)))

    def break_slot(self, member: Member, worker: str) -> None:
        """Nobody will take the dead worker's place: the node has one less."""
        if worker not in self.broken and worker in {self.name(member.node, slot) for slot in self.slots(member)}:
            self.sizes[member.node] = self.size(member) - 1
            self.broken.add(worker)

    def is_replaced(self, worker: str) -> bool:
        """Somebody takes its place when it dies."""
        return worker not in self.leaving | self.done | self.broken and self._attempts.get(worker, 0) < ATTEMPTS

    def given_up(self, worker: str) -> bool:
        """It was started as often as may be, and never came."""
        here = (self.entered, self.suspended, self.awaited)
        return self._attempts.get(worker, 0) >= ATTEMPTS and not any(worker in each for each in here)

    def to_fork(self, member: Member, later: Container[str] = ()) -> tuple[int, ...]:
        """Slots of a node that stand empty, each taken as being on its way from now on. `later`: workers that are not started yet."""
        names = ((slot, self.name(member.node, slot)) for slot in self.slots(member))
        slots = tuple(slot for slot, name in names if name not in later and self._is_empty(name))
        for slot in slots:
            worker = self.name(member.node, slot)
            self.awaited[worker] = member.node
            self._attempts[worker] = self._attempts.get(worker, 0) + 1
        return slots

    def not_asked(self, workers: Iterable[str]) -> None:
        """Their launcher could not be reached: nobody has tried to start them."""
        for worker in workers:
            self.awaited.pop(worker, None)
            self._attempts[worker] = max(0, self._attempts.get(worker, 0) - 1)

    def _is_empty(self, worker: str) -> bool:
        known = (self.entered, self.suspended, self.awaited)
        return not any(worker in each for each in known) and self._attempts.get(worker, 0) < ATTEMPTS
