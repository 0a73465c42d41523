"""What a script writes of its own steps."""

import os
import sys
import time
from pathlib import Path


class StepsLog:
    """The times at which rank 0's steps were done, one in each line of the file that the command line names."""

    def __init__(self) -> None:
        first = int(os.environ.get("RANK", "0")) == 0
        self._file = Path(sys.argv[1]).open("a", buffering=1) if first else None  # noqa: SIM115 -- open as long as the script

    def step_done(self) -> None:
        """The optimizer has made its step."""
        if self._file is not None:
            self._file.write(f"{time.monotonic():.6f}\n")
