"""Where each rank is in the job's tensor, pipeline and data parallel groups."""

import pytest

from eagle_eye.errors import ConfigError
from remediation.launcher.coordinator.membership import Member, rank_placements
from remediation.launcher.parallel_sizes import ParallelSizes, parse_parallel, sizes_in_command

MEMBERS = [Member(node=name, address="", slots=4, incarnation=name) for name in ("n0", "n1")]


def test_the_layout_says_where_each_rank_is() -> None:
    places = rank_placements("r", MEMBERS, ParallelSizes(tp=2, pp=2))
    assert [place.tp for place in places] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [place.dp for place in places] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [place.pp for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_world_that_the_sizes_do_not_divide_is_data_parallel() -> None:
    places = rank_placements("r", MEMBERS, ParallelSizes(tp=3))
    assert [(place.dp, place.pp, place.tp) for place in places] == [(rank, 0, 0) for rank in range(8)]


@pytest.mark.parametrize(
    ("command", "tp", "pp"),
    [
        ("python train.py", 1, 1),
        ("python pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2", 4, 2),
        ("python -m torchtitan.train --parallelism.tensor_parallel_degree=8", 8, 1),
        ("python train.py --tensor-model-parallel-size", 1, 1),
        ("python train.py --tensor-model-parallel-size auto", 1, 1),
        ("python train.py --parallelism.tensor_parallel_degree 0", 1, 1),
    ],
)
def test_the_training_command_may_declare_it(command: str, tp: int, pp: int) -> None:
    assert sizes_in_command(command.split()) == ParallelSizes(tp=tp, pp=pp)


@pytest.mark.parametrize("text", ["tp", "tp=0", "dp=2", "tp=2;pp=2", "tp=2,", "tp=-1"])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="tp=N,pp=N"):
        parse_parallel(text)
