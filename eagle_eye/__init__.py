"""Eagle Eye: finds, explains and heals faults of LLM training jobs.

User code imports this package alone. Nothing heavy is loaded here: the names below come from
`eagle_eye.training`, of which the monitor needs the standard library only, the elastic worker and checkpoints torch, and are
resolved when first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training.checkpoint.dcp_storage import DcpReader as DcpReader
    from .training.checkpoint.dcp_storage import DcpWriter as DcpWriter
    from .training.checkpoint.memory_checkpoints import MemoryCheckpoints as MemoryCheckpoints
    from .training.checkpoint.random_state import random_state as random_state
    from .training.checkpoint.random_state import restore_random_state as restore_random_state
    from .training.elastic.api import elastic as elastic
    from .training.elastic.worker import ElasticWorker as ElasticWorker
    from .training.probe import Monitor as Monitor
    from .training.probe import monitor as monitor

__version__ = "0.1.0"
__all__ = ["DcpReader", "DcpWriter", "ElasticWorker", "MemoryCheckpoints", "Monitor", "__version__", "elastic", "monitor", "random_state", "restore_random_state"]


def __getattr__(name: str) -> object:
    if name in {"Monitor", "monitor"}:
        from .training import probe

        return getattr(probe, name)
    if name == "elastic":
        from .training.elastic import api

        return api.elastic
    if name == "ElasticWorker":
        from .training.elastic import worker

        return worker.ElasticWorker
    if name in {"DcpReader", "DcpWriter"}:
        from .training.checkpoint import dcp_storage

        return getattr(dcp_storage, name)
    if name == "MemoryCheckpoints":
        from .training.checkpoint import memory_checkpoints

        return memory_checkpoints.MemoryCheckpoints
    if name in {"random_state", "restore_random_state"}:
        from .training.checkpoint import random_state

        return getattr(random_state, name)
    raise AttributeError(f"module 'eagle_eye' has no attribute {name!r}")
