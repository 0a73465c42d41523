"""A job whose ranks all-reduce a megabyte and gather a tenth of that in each step.

    python all_reduce_loop.py FILE

Rank 0 keeps in FILE how many bytes that was, and since when.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import eagle_eye

ELEMENTS = 262_144
EVERY_S = 0.05


def main() -> None:
    """For ever."""
    dist.init_process_group("gloo")
    told, sums = Path(sys.argv[1]), torch.ones(ELEMENTS)
    part, parts = torch.ones(ELEMENTS // 20), [torch.ones(ELEMENTS // 20) for _ in range(2)]
    moved = 0
    for _ in eagle_eye.monitor().steps(range(10_000_000)):
        time.sleep(EVERY_S)
        dist.all_reduce(sums)
        dist.all_gather(parts, part)
        sums.fill_(1.0)
        moved += 4 * (ELEMENTS + 2 * (ELEMENTS // 20))
        if dist.get_rank() == 0:
            new = told.with_suffix(".new")
            new.write_text(f"{time.monotonic()} {moved}")
            new.replace(told)


if __name__ == "__main__":
    main()
