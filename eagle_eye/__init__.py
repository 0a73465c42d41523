"""Eagle Eye: finds, explains and heals faults of LLM training jobs.

User code imports this package alone. Nothing heavy is loaded here: the names below come from
`eagle_eye.training`, which needs the standard library only, and are resolved when first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training.probe import Monitor as Monitor
    from .training.probe import monitor as monitor

__version__ = "0.1.0"
__all__ = ["Monitor", "__version__", "monitor"]


def __getattr__(name: str) -> object:
    if name in {"Monitor", "monitor"}:
        from .training import probe

        return getattr(probe, name)
    raise AttributeError(f"module 'eagle_eye' has no attribute {name!r}")
