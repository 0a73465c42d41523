"""The variables that a worker finds: torchrun's, so that its scripts run unchanged, and ours."""

import socket
from collections.abc import Mapping

import msgspec

from eagle_eye.access.addresses import is_loopback
from eagle_eye.training.checkpoint import roll_backs
from eagle_eye.training.checkpoint.memory_segment import SLOTS
from eagle_eye.types import Layout, RankPlacement

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


class StoreAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of an epoch meet."""

    host: str
    port: int
    served: bool = True
    """False: nobody serves it yet, rank 0 has to (no torch beside the launcher)."""


class WorkerPaths(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker and those around it share on the node's disk."""

    inbox: str
    """Unix socket of the launcher."""
    ring: str
    probe: str
    """Unix socket of the probe."""
    checkpoints: str
    memory: str = ""
    """File in shared memory for the worker's checkpoints; '' where there is none."""
    copies: int = SLOTS
    """States that it is to hold."""
    elastic: str = ""
    """Unix socket of the launcher for elastic workers."""


def worker_environment(
    given: Mapping[str, str], layout: Layout, place: RankPlacement, store: StoreAddress, paths: WorkerPaths, token: str, max_restarts: int
) -> dict[str, str]:
    """The whole environment of a worker."""
    environment = dict(given)
    environment.update(_torchrun(layout, place, store, max_restarts))
    environment.update(_ours(layout, place, paths, token))
    environment.setdefault("OMP_NUM_THREADS", "1")
    if all(is_loopback(address) for address in layout.launchers.values()):
        environment.setdefault(INTERFACE_VARIABLE, "lo")
    return environment


def _torchrun(layout: Layout, place: RankPlacement, store: StoreAddress, max_restarts: int) -> dict[str, str]:
    nodes = layout.nodes
    local = sum(other.node == place.node for other in layout.placements)
    world = len(layout.placements)
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(nodes.index(place.node)),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": layout.job.rsplit("/", 1)[-1],
        "TORCHELASTIC_RESTART_COUNT": str(layout.epoch - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": str(store.served),
    }


def _ours(layout: Layout, place: RankPlacement, paths: WorkerPaths, token: str) -> dict[str, str]:
    return {
        "EAGLE_EYE_JOB": layout.job,
        "EAGLE_EYE_RUN": layout.job.rsplit("/", 1)[-1],
        "EAGLE_EYE_NODE": place.node,
        "EAGLE_EYE_SLOT": str(place.local_rank),
        "EAGLE_EYE_WORKER": place.worker,
        "EAGLE_EYE_EPOCH": str(layout.epoch),
        "EAGLE_EYE_SOCKET": paths.inbox,
        "EAGLE_EYE_ELASTIC_SOCKET": paths.elastic,
        "EAGLE_EYE_RING": paths.ring,
        "EAGLE_EYE_PROBE_SOCKET": paths.probe,
        "EAGLE_EYE_TOKEN": token,
        "EAGLE_EYE_CHECKPOINT_DIR": paths.checkpoints,
        "EAGLE_EYE_CHECKPOINT_MEMORY": paths.memory,
        "EAGLE_EYE_CHECKPOINT_COPIES": str(paths.copies),
        "EAGLE_EYE_RESUME_STEP": str(layout.resume_step),
        roll_backs.VARIABLE: roll_backs.text_of(layout.rolled_back),
        "EAGLE_EYE_SKIP_STEPS": ",".join(map(str, layout.skipped)),
    }


def with_gloo_interface(environment: Mapping[str, str], address: str) -> dict[str, str]:
    """The environment of the workers of a launcher at `address` (host:port), with the interface that gloo is to use.

    gloo by itself takes the address that the host's name resolves to, which on many machines is one of loopback. What the
    user has chosen stays; where all launchers are on loopback nothing is to be chosen here.
    """
    found = dict(environment)
    if INTERFACE_VARIABLE not in found and not is_loopback(address) and (name := interface_of(address)):
        found[INTERFACE_VARIABLE] = name
    return found


def interface_of(address: str) -> str:
    """Name of the interface that bears the host of a `host:port`; '' if none of this machine's does."""
    import psutil

    host = address.rpartition(":")[0].strip("[]")
    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:
        return ""
    for name, ends in psutil.net_if_addrs().items():
        if any(end.address.partition("%")[0] in wanted for end in ends):
            return name
    return ""
