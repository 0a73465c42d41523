"""What a run that is over for all leaves on disk and nobody needs any more."""

import contextlib

from eagle_eye.rpc.command_fence import Fence

from .settings import LauncherSettings


def sweep(settings: LauncherSettings, fence: Fence) -> None:
    """Take away the memory of commands, and our own directory of checkpoints if it is empty.

    Logs stay for the operator. The file of terms stays too: a start of the same run id must begin above its epochs.
    """
    fence.remove()
    if settings.checkpoint_dir is None:  # a directory that the user chose is the user's
        with contextlib.suppress(OSError):  # not empty: there are checkpoints
            settings.checkpoints.rmdir()
