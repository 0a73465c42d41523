"""How a job splits its model over its ranks, and where a rank is in that."""

import itertools
import re
from collections.abc import Sequence

import msgspec

from eagle_eye.errors import ConfigError

_WORDS = {
    "tp": ("--tensor-model-parallel-size", "--tensor-parallel-size", "--parallelism.tensor_parallel_degree"),
    "pp": ("--pipeline-model-parallel-size", "--pipeline-parallel-size", "--parallelism.pipeline_parallel_degree"),
}
"""Options of training commands that declare it: Megatron-LM's, and torchtitan's."""


class ParallelSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Tensor and pipeline parallel sizes; what is left of the ranks is data parallel.

    >>> sizes = ParallelSizes(tp=2, pp=2)
    >>> [sizes.coordinates(rank, 8) for rank in (0, 1, 2, 7)]
    [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 1)]
    """

    tp: int = 1
    pp: int = 1

    def coordinates(self, rank: int, world: int) -> tuple[int, int, int]:
        """(dp, pp, tp) of a rank: tensor parallel ranks are neighbours, pipeline stages the farthest apart, as in Megatron and torchtitan.

        A world that the sizes do not divide, as after the loss of a node, counts as data parallel alone.
        """
        if world % (self.tp * self.pp):
            return rank, 0, 0
        per_stage = world // self.pp
        return rank % per_stage // self.tp, rank // per_stage, rank % self.tp


DATA_PARALLEL = ParallelSizes()
"""The model is not split."""


def parse_parallel(text: str) -> ParallelSizes:
    """Read `--parallel`. Raises ConfigError.

    >>> parse_parallel("tp=4,pp=2")
    ParallelSizes(tp=4, pp=2)
    """
    found = dict(re.findall(r"(\w+)=(\d+)", text))
    if ",".join(f"{name}={size}" for name, size in found.items()) != text or not found.keys() <= {"tp", "pp"} or "0" in found.values():
        raise ConfigError(f"--parallel {text!r} is not understood: write tp=N, pp=N or tp=N,pp=N")
    return ParallelSizes(**{name: int(size) for name, size in found.items()})


def sizes_in_command(argv: Sequence[str]) -> ParallelSizes:
    """What a training command declares by options that are known.

    >>> sizes_in_command(["python", "pretrain_gpt.py", "--tensor-model-parallel-size", "8", "--pipeline-model-parallel-size=4"])
    ParallelSizes(tp=8, pp=4)
    """
    words = [part for word in argv for part in word.split("=", 1)]
    following = dict(itertools.pairwise(words))
    found = {name: next((int(following[option]) for option in options if following.get(option, "").isdecimal()), 1) for name, options in _WORDS.items()}
    return ParallelSizes(**{name: max(1, size) for name, size in found.items()})
