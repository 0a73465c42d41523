"""The variables that a worker finds: torchrun's, so that its scripts run unchanged, and ours."""

from collections.abc import Mapping

import msgspec

from eagle_eye.access.listen_address import is_loopback
from eagle_eye.types import Layout, RankPlacement


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of an epoch meet."""

    host: str
    port: int
    served: bool = True
    """False: nobody serves it yet, rank 0 has to (no torch beside the launcher)."""


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker and those around it share on the node's disk."""

    inbox: str
    """Unix socket of the launcher."""
    ring: str
    probe: str
    """Unix socket of the probe."""
    checkpoints: str
    elastic: str = ""
    """Unix socket of the launcher for elastic workers."""


def worker_environment(
    given: Mapping[str, str], layout: Layout, place: RankPlacement, store: Store, paths: Paths, token: str, max_restarts: int
) -> dict[str, str]:
    """The whole environment of a worker."""
    environment = dict(given)
    environment.update(_torchrun(layout, place, store, max_restarts))
    environment.update(_ours(layout, place, paths, token))
    environment.setdefault("OMP_NUM_THREADS", "1")
    if all(is_loopback(address) for address in layout.launchers.values()):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _torchrun(layout: Layout, place: RankPlacement, store: Store, max_restarts: int) -> dict[str, str]:
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


def _ours(layout: Layout, place: RankPlacement, paths: Paths, token: str) -> dict[str, str]:
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
        "EAGLE_EYE_RESUME_STEP": str(layout.resume_step),
        "EAGLE_EYE_SKIP_STEPS": ",".join(map(str, layout.skipped)),
    }
