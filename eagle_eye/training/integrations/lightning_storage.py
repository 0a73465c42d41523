"""Lightning's own checkpoints in our storage format: without pickle, with digests, visible only when they are whole.

    from eagle_eye.training.integrations.lightning_storage import ShardCheckpointIO

    trainer = Trainer(plugins=[ShardCheckpointIO()])

ModelCheckpoint, `trainer.save_checkpoint` and `fit(ckpt_path=...)` stay as they are; each path is a directory then, which `eagle-eye checkpoint` reads, too.
Import lightning or pytorch_lightning first.
"""

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

from eagle_eye.training.checkpoint import checkpoint_directory, checkpoint_reader, checkpoint_writer

from .lightning_scores import with_tensors, without_tensors

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:  # two packages with the same classes: the one that is used
    from pytorch_lightning.plugins.io import CheckpointIO, TorchCheckpointIO
else:
    try:
        from lightning.pytorch.plugins.io import CheckpointIO, TorchCheckpointIO
    except ImportError:
        from pytorch_lightning.plugins.io import CheckpointIO, TorchCheckpointIO

_log = logging.getLogger("eagle_eye.checkpoint")


class ShardCheckpointIO(CheckpointIO):  # type: ignore[misc]  # of another package, which is not looked into
    """For strategies in which one rank writes the checkpoint: a single device, DDP.

    Storage that refuses a checkpoint does not end the training: it is tried again in the background, and no older one is removed until a newer one is there.
    """

    def __init__(self) -> None:
        self._newest: Path | None = None
        self._to_remove: list[Path] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        """Raises TypeError, naming the place, for what is no number, text, tensor, or dict or list of them, such as an object among hyperparameters."""
        if storage_options is not None:
            raise TypeError("storage_options: a ShardCheckpointIO has none")
        state = {**checkpoint, "callbacks": {name: without_tensors(each) for name, each in checkpoint.get("callbacks", {}).items()}}
        self._newest = Path(path)
        saved = checkpoint_writer.save(state, int(checkpoint["global_step"]), path)
        if saved is not None:
            with contextlib.suppress(OSError):
                checkpoint_directory.prune(self._newest, kept=1, published=saved)  # of a path that is written again and again, such as last.ckpt

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """On the CPU. A file, which Lightning itself has written, is read as it reads it. Raises FileNotFoundError, UnusableCheckpoint (a digest does not match)."""
        if not Path(path).is_dir():
            loaded: dict[str, Any] = TorchCheckpointIO().load_checkpoint(path, map_location, weights_only)
            return loaded
        found = checkpoint_directory.entries(path)
        if not found:
            raise FileNotFoundError(f"there is no whole checkpoint in {Path(path).absolute()}; give the path of another one")
        state = checkpoint_reader.load_whole(found[-1])
        return {**state, "callbacks": {name: with_tensors(each) for name, each in state["callbacks"].items()}}

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """The files of this path; later, if the checkpoint that was saved last is not there yet."""
        self._to_remove.append(Path(path))
        if self._newest is not None and not _is_written(self._newest):
            _log.warning("%s is not removed: %s is not written yet", path, self._newest)
            return
        while self._to_remove:
            _remove(self._to_remove.pop())


def _is_written(path: Path) -> bool:
    """Whether a checkpoint is there; where storage does not say, it is not."""
    try:
        return bool(checkpoint_directory.entries(path))
    except OSError:
        return False


def _remove(path: Path) -> None:
    if not path.is_dir():
        TorchCheckpointIO().remove_checkpoint(path)
        return
    for each in [*path.glob("step-*.json"), *path.glob("step-*"), *path.glob(".step-*")]:  # without its manifest there is no checkpoint
        each.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody has put something else there
        path.rmdir()
