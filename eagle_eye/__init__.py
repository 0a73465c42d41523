"""Eagle Eye: finds, explains and heals faults of LLM training jobs.

User code imports this package alone. Nothing heavy is loaded here: the names below come from
`eagle_eye.training`, of which the monitor needs the standard library only and the elastic worker torch, and are
resolved when first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training.elastic.api import elastic as elastic
    from .training.elastic.worker import ElasticWorker as ElasticWorker
    from .training.probe import Monitor as Monitor
    from .training.probe import monitor as monitor

__version__ = "0.1.0"
__all__ = ["ElasticWorker", "Monitor", "__version__", "elastic", "monitor"]


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
    raise AttributeError(f"module 'eagle_eye' has no attribute {name!r}")
