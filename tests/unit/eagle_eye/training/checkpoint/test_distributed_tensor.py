"""Real DTensors of a process group that has only this process: torch's `fake` backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import distributed_tensor
from eagle_eye.training.checkpoint.tensor_regions import Region

FULL = (torch.arange(30, dtype=torch.float64) + 1).sin().float().reshape(10, 3)


@contextmanager
def mesh(rank: int, *sizes: int) -> Iterator[object]:
    """The mesh as this rank sees it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world = torch.Size(sizes).numel()
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield init_device_mesh("cpu", sizes)
    finally:
        dist.destroy_process_group()


def rows(on: object, rank: int, of: int, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's DTensor, cut as FSDP2 does."""
    from torch.distributed.tensor import DTensor, Shard

    chunks = list(torch.chunk(tensor, of))
    own = chunks[rank].clone() if rank < len(chunks) else tensor[:0].clone()
    return DTensor.from_local(own, on, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())


def test_dtensors_of_three_ranks_are_loaded_by_two(tmp_path: Path) -> None:
    few = FULL[:2].clone()  # one rank has nothing of it
    for rank in range(3):
        with mesh(rank, 3) as on:
            checkpoint.save_shard({"w": rows(on, rank, 3, FULL), "few": rows(on, rank, 3, few)}, 5, tmp_path, rank=rank, world_size=3, run="a")
    assert [piece.region.offsets for piece in checkpoint.entries(tmp_path)[0].manifest.tensors["state.few"].pieces] == [(0, 0), (1, 0)]
    for rank in range(2):
        with mesh(rank, 2) as on:
            state = {"w": rows(on, rank, 2, torch.zeros(10, 3)), "few": rows(on, rank, 2, torch.zeros(2, 3))}
            found = checkpoint.restore(state, tmp_path, rank=rank)
            assert found is not None
            assert torch.equal(state["w"].to_local(), torch.chunk(FULL, 2)[rank])
            assert torch.equal(state["few"].to_local(), few[rank : rank + 1])


def test_of_ranks_that_hold_the_same_shard_the_first_writes_it_and_summands_are_refused() -> None:
    for rank in (1, 2):
        with mesh(rank, 2, 2) as on:
            from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

            half = DTensor.from_local(torch.ones(5, 3), on, [Replicate(), Shard(0)], run_check=False)
            local = distributed_tensor.local(half, first=False, name="w")
            assert (local.written_here, local.shape) == (rank < 2, (10, 3))
            assert local.region == Region((5 * (rank % 2), 0), (5, 3))
            summands = DTensor.from_local(torch.ones(5, 3), on, [Partial(), Shard(0)], run_check=False)
            with pytest.raises(TypeError, match="'w': its ranks have summands of it"):
                distributed_tensor.local(summands, first=True, name="w")


class Wrapper(torch.Tensor):
    """As torchao's quantized weights: its elements are in another tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: object, types: object, given: tuple[object, ...] = (), named: object = None) -> torch.Tensor:
        return cls(given[0].inner)  # type: ignore[attr-defined]


class Flattened(Wrapper):
    """One that says which tensors it wraps."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: object) -> "Flattened":
        return Flattened(inner["inner"])


class Named(torch.Tensor):
    """A subclass that has elements of its own."""


@pytest.mark.parametrize("kind", [Wrapper, Flattened])
def test_a_tensor_that_wraps_others_is_refused_by_name(tmp_path: Path, kind: type[Wrapper]) -> None:
    for use in (lambda state: checkpoint.save(state, 1, tmp_path), lambda state: checkpoint.restore(state, tmp_path)):
        with pytest.raises(TypeError, match=rf"the tensor 'state\.w': a {kind.__name__} wraps other tensors"):
            use({"w": kind(torch.ones(3))})
    assert not list(tmp_path.iterdir())
    assert checkpoint.save({"w": torch.ones(3).as_subclass(Named), "p": torch.nn.Parameter(torch.ones(2))}, 1, tmp_path) is not None, "twin"


def test_a_tensor_whose_memory_was_freed_is_refused_by_name(tmp_path: Path) -> None:
    freed = torch.ones(1000)
    view = freed.view(10, 100)[3:, ::2]
    checkpoint.save({"w": view, "none": torch.empty(0, 3)}, 1, tmp_path)
    freed.untyped_storage().resize_(0)
    for use in (lambda: checkpoint.save({"w": freed}, 2, tmp_path), lambda: checkpoint.save({"w": view}, 2, tmp_path), lambda: checkpoint.restore({"w": view}, tmp_path, strict=False)):
        with pytest.raises(TypeError, match=r"the tensor 'state\.w': the memory of its elements was freed"):
            use()
    assert [entry.step for entry in checkpoint.entries(tmp_path)] == [1]
