"""The server's leader, its real code, on a ledger in memory that outlives it."""

from typing import Any

import msgspec

from eagle_eye.ledger import epoch_table
from eagle_eye.ledger.records import JobOwner, JobRecord
from eagle_eye.types import Layout, digest_of
from remediation.engine.leader import Leader

from .network import Process, SimulatedNetwork

LEASE_S = 1.0


class MemoryLedger:
    """What the leader asks of the ledger, as `EpochTable` answers it."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._owners: dict[str, JobOwner] = {}
        self._granted: dict[tuple[str, int], Layout] = {}

    def jobs(self) -> dict[str, JobRecord]:
        return dict(self._jobs)

    def save_job(self, job: str, layout: Layout, address: str, heal: str, budget_left: int, nodes_min: int = 1, demand: Any = None, coordinator: str = "") -> bool:
        known = self._jobs.get(job)
        if known is not None and known.layout.epoch > layout.epoch:
            return False
        self._jobs[job] = JobRecord(
            layout=layout, address=address, heal=heal, budget_left=budget_left, nodes_min=nodes_min, demand=demand, coordinator=coordinator
        )  # fmt: skip
        return True

    def grant_epoch(self, job: str, epoch: int, layout: Layout, last: int = 0) -> bool:
        granted = self._granted.get((job, epoch))
        if granted is not None:
            return _digest(granted) == _digest(layout)
        known = [self._jobs[job].layout] if job in self._jobs else []
        newest = max((*known, *(each for (name, _), each in self._granted.items() if name == job)), key=lambda each: each.epoch, default=None)
        if newest is not None and (epoch <= newest.epoch or not epoch_table.may_follow(layout, last, newest)):
            return False
        self._granted[job, epoch] = layout
        return True

    def job_owners(self) -> dict[str, JobOwner]:
        return dict(self._owners)

    def save_job_owner(self, job: str, owner: JobOwner, _time: float) -> None:
        self._owners[job] = owner

    def cordoned(self) -> list[Any]:
        return []


def _digest(layout: Layout) -> str:
    return digest_of(msgspec.structs.replace(layout, time=0.0))


class NoOperator:
    """Nobody commands anything here."""

    def declare_job(self, job: str, **_: object) -> None:
        pass


class ServerProcess(Process):
    """One life of the server."""

    def __init__(self, world: Any, ledger: MemoryLedger, term: int) -> None:
        super().__init__("server", world.time.loop("server"))
        self._world = world
        self._leader = Leader(
            term=term, lease_s=LEASE_S, ledger=ledger, operator=NoOperator(), write=lambda *_: None, clock=world.time,  # type: ignore[arg-type]
            incarnation=f"s{term}",
        )  # fmt: skip
        network = SimulatedNetwork(world.time, world.links, self, world.servers, LEASE_S)
        self._server = network.server(self._leader, "server:7467")
        self.spawn(self._server.start())

    def crash(self) -> None:
        self.alive = False
        self._world.servers.pop("server:7467", None)
        self._world.time.end(self.loop)
