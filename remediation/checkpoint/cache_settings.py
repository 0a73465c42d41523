"""What a launcher's part of checkpoints in memory is told by the configuration and the job's options."""

from dataclasses import dataclass
from pathlib import Path

from eagle_eye.training.checkpoint.checkpoint_retention import NEWEST_KEPT, CheckpointRetention
from eagle_eye.training.checkpoint.memory_segment import SLOTS
from eagle_eye.training.object_path import StoragePath


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Of one launcher."""

    node: str
    run: str
    host: str
    folder: Path
    prefix: str
    """Of the names of this node's segments."""
    workers: int
    every: int = 1
    """Sent is the first checkpoint at or behind each multiple of so many steps, or of more ..."""
    share: float = 0.0
    """... if sending and fetching take more than this share of the node's processors; 0: no limit."""
    limit_bytes: int = 0
    """Of copies that are kept for others; 0: none is kept, and none is sent."""
    limit_steps: int = SLOTS
    """Of each worker of another node, if there is room for so many."""
    storage: StoragePath | None = None
    """Directory to which copies are brought, shared by all nodes; None: none is."""
    storage_interval_s: float = 600.0
    """At the most so much time is between two that are stored ..."""
    tune_interval: bool = False
    """... or, True, as is best for what storing costs and how often the job fails."""
    keep: CheckpointRetention = NEWEST_KEPT
    """What of the stored ones stays."""
