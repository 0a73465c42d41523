"""examples/train_gpt.py with a slowness that clings to the last rank, on whichever node that is. Run by no_help.py.

    SLOW_WHILE=/some/file python benchmarks/cluster/clinging_gpt.py [options of examples/train_gpt.py]

It is slow while that file is there.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script it has to find its neighbour by itself

from benchmarks.chain.stalling_gpt import EXAMPLE, imported

EXTRA_S = 0.15
"""What the last rank takes longer over each micro-batch."""


def main() -> None:
    """Train; the last rank computes slowly while it is told to."""
    example = imported(EXAMPLE)
    trainer = example.Trainer
    last = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
    told = Path(os.environ["SLOW_WHILE"])
    given = trainer.add_gradients

    def add_gradients(self: Any, batch: Any) -> None:
        if last and told.exists():
            with self.monitor.phase("forward"):
                threading.Event().wait(EXTRA_S)
        given(self, batch)

    trainer.add_gradients = add_gradients
    example.main()


if __name__ == "__main__":
    main()
