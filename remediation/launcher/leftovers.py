"""What a run that is over leaves on the disk, and what of it goes."""

import contextlib

from eagle_eye.rpc.command_fence import CommandFence

from .launcher_settings import LauncherSettings


def remove_leftovers(settings: LauncherSettings, fence: CommandFence) -> None:
    """Take away the memory of commands, and our own directory of checkpoints if it is empty.

    Logs stay for the operator. The vote log stays too: a start of the same run id must begin above its epochs.
    """
    fence.remove()
    if settings.checkpoint_dir is None:  # a directory that the user chose is the user's
        with contextlib.suppress(OSError):  # not empty: there are checkpoints
            settings.checkpoints.rmdir()
