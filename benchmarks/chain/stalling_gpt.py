"""examples/train_gpt.py, whose input stalls twice: for all ranks at once, and for one alone. Run by the soak.

    python benchmarks/chain/stalling_gpt.py [options of examples/train_gpt.py]
"""

import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
STALL_S = 5.0
ALL_AT, ONE_AT = 200, 400
"""Steps before which the input stalls: of every rank, and of rank 1."""


def imported(path: Path) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Train, slower to read twice."""
    example = imported(EXAMPLE)
    trainer, rank = example.Trainer, int(os.environ.get("RANK", "0"))
    given = trainer.batches

    def batches(self: Any, start: int) -> Iterator[Any]:
        for step, batch in enumerate(given(self, start), start):
            if step == ALL_AT or (step == ONE_AT and rank == 1):
                threading.Event().wait(STALL_S)
            yield batch

    trainer.batches = batches
    example.main()


if __name__ == "__main__":
    main()
