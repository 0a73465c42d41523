"""Whose a job is, and who may report about it: the leader believes a claim from its owner alone.

    certificate limited to tenants       the jobs of these tenants, on whichever of the tenant's nodes they run
    certificate of a node, not limited   jobs that nobody has declared yet, and those whose layouts have named the node
    user of this machine (no TLS)        jobs that nobody has declared yet, and the user's own; root and the server's user: all

A coordinator that fails over, a launcher that is started again and a spare node that has joined stand in a layout of the job; a node
that is to join needs only a session, and its job's coordinator to name it in the next layout.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import AccessDenied
from eagle_eye.ledger import JobOwner
from eagle_eye.rpc.control_messages import Peer
from eagle_eye.types import EPOCH_JUMP, Layout, Notice

log = logging.getLogger(__name__)

TOLD_AGAIN_S = 3600.0
"""The same refusal is counted meanwhile."""
NODES_KEPT = 10_000
"""Of one job; those that were named first are forgotten beyond."""
TOLD_KEPT = 1000
"""Refusals that are told apart; beyond them the oldest is forgotten."""


class OwnerTable(Protocol):
    """The ledger's part."""

    def job_owners(self) -> dict[str, JobOwner]: ...
    def save_job_owner(self, job: str, owner: JobOwner, time: float) -> None: ...


TellJob = Callable[[str, Peer, str, Mapping[str, str]], None]
"""Writes an event into a job's stream: (job, who was refused, message, attributes)."""


def objection(peer: Peer, job: str, owner: JobOwner | None) -> str:
    """Why this peer may not speak for a job; '' if it may."""
    certificate, caller = peer.caller.certificate, peer.caller
    if certificate is not None and not certificate.speaks_for(job):
        return f"{caller} may not speak for {job}: issue it with --tenant {job.partition('/')[0]} if this node may run jobs of that tenant"
    if owner is None:
        return ""
    if certificate is not None and not certificate.tenants and peer.node not in owner.nodes:
        return (
            f"{job} belongs to {owner}, and no layout of it has named {peer.node}: join it through its coordinator, choose another run "
            f"name, or issue the certificate of {peer.node} with --tenant {job.partition('/')[0]}"
        )
    if certificate is None and caller.local and owner.local and caller.user != owner.user and not caller.owns_server:
        return f"{job} belongs to {owner}, not to {caller}: choose another run name (--run-id)"
    return ""


def next_owner(owner: JobOwner, peer: Peer, layout: Layout) -> JobOwner:
    """The owner of a job once this peer has reported this layout: who declared it first, and all nodes that were ever named."""
    nodes = dict.fromkeys((*owner.nodes, *layout.launchers, *layout.nodes, peer.node))
    return msgspec.structs.replace(owner, nodes=tuple(nodes)[-NODES_KEPT:])


def first_owner(peer: Peer, job: str) -> JobOwner:
    """Of a job that this peer declares."""
    certificate, local = peer.caller.certificate, peer.caller.local
    tenant = job.partition("/")[0] if certificate is not None and certificate.tenants else ""
    return JobOwner(tenant=tenant, local=local, user=peer.caller.user if local else None)


@dataclass(slots=True)
class _Refusals:
    """Of one caller, for one job."""

    told_at: float
    count: int = 0
    """Since then."""


class JobOwnership:
    """Checks claims against the owners in the ledger, and tells each kind of refusal once an hour, with its number. Thread-safe."""

    def __init__(self, ledger: OwnerTable, clock: Clock, notify: Callable[[Notice], None], tell_job: TellJob) -> None:
        self._ledger = ledger
        self._clock = clock
        self._notify = notify
        self._tell_job = tell_job
        self._lock = threading.Lock()
        self._owners = ledger.job_owners()
        self._inherited: dict[str, JobOwner] = {}
        """Of jobs of an older version, until they are reported again."""
        self._refusals: OrderedDict[tuple[str, str, str], _Refusals] = OrderedDict()
        self.refused = 0
        """Claims and sessions, so far."""

    def owner(self, job: str) -> JobOwner | None:
        """None for a job that nobody has declared."""
        return self._owners.get(job) or self._inherited.get(job)

    def inherit(self, layout: Layout) -> None:
        """A job that an older version wrote into the ledger belongs to the nodes of its layout."""
        if layout.job not in self._owners:
            self._inherited[layout.job] = JobOwner(nodes=tuple(dict.fromkeys((*layout.launchers, *layout.nodes))))

    def session_objection(self, peer: Peer) -> str:
        """Why this peer may have no session; '' if it may. Does not block. A node that is to join a job has a session before any layout names it."""
        if not peer.job or peer.caller.certificate is not None:
            return ""
        return objection(peer, peer.job, self.owner(peer.job))

    def check(self, peer: Peer, layout: Layout, epoch: int, known: int) -> None:
        """Whether a claim about a job is believed; `known`: its highest epoch so far. Raises AccessDenied, and tells."""
        why = self._why_not(peer, layout, epoch, known)
        if why:
            self.tell_refused(peer, layout.job, "claim.refused", why)
            raise AccessDenied(why)

    def declare(self, peer: Peer, layout: Layout) -> None:
        """A claim was believed: whose the job is now is in the ledger before this returns. Raises LedgerError, Stale."""
        with self._lock:
            before = self._owners.get(layout.job)
            named = self._inherited.get(layout.job, JobOwner()).nodes
            after = next_owner(before or msgspec.structs.replace(first_owner(peer, layout.job), nodes=named), peer, layout)
            if after != before:
                self._ledger.save_job_owner(layout.job, after, self._clock.now())
                self._owners[layout.job] = after

    def tell_refused(self, peer: Peer, job: str, name: str, why: str) -> None:
        """In the log and as a notice; where the job is somebody's, in its own stream, too. Does not block."""
        told, count = self._count((f"{peer.caller} {peer.role} {peer.node}", name, job if self.owner(job) else ""))
        if not told:
            return
        message = f"the {peer} was refused: {why}" + (f" ({count} times)" if count > 1 else "")
        log.warning(message)
        self._notify(Notice(name=name, time=self._clock.now(), message=message))
        if self.owner(job) is not None:
            self._tell_job(job, peer, message, {"role": peer.role, "caller": str(peer.caller), "refusals": str(count)})

    # --- inside --------------------------------------------------------------------------------------------------

    def _why_not(self, peer: Peer, layout: Layout, epoch: int, known: int) -> str:
        if peer.role != "launcher" or peer.job != layout.job:
            return f"the {peer} may not speak for {layout.job}: only the job's own launchers report its epochs"
        if max(epoch, layout.epoch) > known + EPOCH_JUMP:
            return f"epoch {max(epoch, layout.epoch)} of {layout.job} is not believed: {known} is the highest that its launchers have declared"
        return objection(peer, layout.job, self.owner(layout.job))

    def _count(self, key: tuple[str, str, str]) -> tuple[bool, int]:
        """(whether it is time to tell it, how often it happened since it was told last)"""
        now = self._clock.monotonic()
        with self._lock:
            self.refused += 1
            known = self._refusals.get(key)
            if known is not None and now - known.told_at < TOLD_AGAIN_S:
                known.count += 1
                return False, known.count
            self._refusals[key] = _Refusals(now)
            self._refusals.move_to_end(key)
            if len(self._refusals) > TOLD_KEPT:
                self._refusals.popitem(last=False)
            return True, known.count + 1 if known is not None else 1
