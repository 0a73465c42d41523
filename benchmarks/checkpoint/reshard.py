"""A checkpoint of so many ranks is loaded by another number of them, or by another split of a pipeline: are the bits the same?

    python -m benchmarks.checkpoint.reshard

Ranks are processes of one gloo group each. 4 → 3 and 8 → 6: a model of FSDP2 (`fully_shard`) with AdamW, of sizes that no number of ranks divides, is
trained, saved by `checkpoint.save_shard` and loaded by `checkpoint.restore` into a model of other values; compared is the SHA-256 of all whole tensors,
parameters and moments, in the layout before and after. [3,3,2] → [8] and back: stages of a pipeline of 8 layers, each with its optimizer's moments. The peer
named beside loads by the same number of ranks alone, its documentation says.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.report import Row, report
from eagle_eye.ports import free_port
from eagle_eye.training import checkpoint

WORLDS = ((4, 3), (8, 6))
PIPELINES = (((3, 3, 2), (8,)), ((8,), (3, 3, 2)))
STEP = 7
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
RankWork = Callable[[Path, int], None]
"""Of one rank, with the folder of the checkpoint."""
PEER = "NVRx local checkpoints: the same number of ranks only"


class Block(torch.nn.Module):
    """Sizes that leave a rest, and one that leaves some ranks nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(37, 53), torch.nn.Linear(53, 37)
        self.scale = torch.nn.Parameter(torch.rand(2))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + self.narrow(torch.tanh(self.wide(given))) * self.scale.sum()


class Sharded:
    """A model and its optimizer, cut among the ranks of this process's group."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(*(Block() for _ in range(4)))
        mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
        for block in self.model:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def train(self, steps: int) -> None:
        """On random data."""
        for _ in range(steps):
            self.model(torch.randn(5, 37)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """By names of parameters."""
        model, optimizer = get_state_dict(self.model, self.optimizer, options=OPTIONS)
        return {"model": model, "optimizer": optimizer}

    def take(self, state: Mapping[str, Any]) -> None:
        """What was restored."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=OPTIONS)

    def digest(self) -> str:
        """Of all whole tensors; a collective."""
        found = hashlib.sha256()
        for kind, values in sorted(self.state().items()):
            for name, value in sorted(values.items()):
                if isinstance(value, torch.Tensor):
                    whole = value.full_tensor() if hasattr(value, "full_tensor") else value
                    found.update(f"{kind} {name} {tuple(whole.shape)}".encode() + whole.detach().contiguous().numpy().tobytes())
        return found.hexdigest()


def save_sharded(home: Path, rank: int, world: int) -> None:
    """One of the ranks that save."""
    sharded = Sharded(seed=1)
    sharded.train(3)
    checkpoint.save_shard(sharded.state(), STEP, home, rank=rank, world_size=world, run="a", data_position={"sample": 11})
    note(home, "saved", rank, sharded.digest())


def load_sharded(home: Path, rank: int) -> None:
    """One of those that load."""
    sharded = Sharded(seed=2)
    sharded.train(1)
    state = sharded.state()
    found = checkpoint.restore(state, home, rank=rank)
    if found is None or found.step != STEP or found.data_position != {"sample": 11}:
        raise RuntimeError(f"the checkpoint of step {STEP} was not loaded: {found}")
    sharded.take(found.state)
    note(home, "loaded", rank, sharded.digest())


def layer(number: int, *, empty: bool = False) -> dict[str, torch.Tensor]:
    """Of the pipeline: a weight and its two moments."""
    generator = torch.Generator().manual_seed(number)
    values = {name: torch.randn(33 + number, 17, generator=generator) for name in ("weight", "exp_avg", "exp_avg_sq")}
    return {name: torch.zeros_like(value) for name, value in values.items()} if empty else values


def stage(split: Sequence[int], rank: int, *, empty: bool = False) -> dict[str, Any]:
    """That of a rank: its layers, named as in the whole model."""
    first = sum(split[:rank])
    return {"layers": {str(number): layer(number, empty=empty) for number in range(first, first + split[rank])}}


def save_stage(split: Sequence[int], home: Path, rank: int) -> None:
    """As docs/frameworks.md says it."""
    checkpoint.save_shard(stage(split, rank), STEP, home, rank=rank, world_size=len(split), run="a", writes_whole=True, layout={"pp": len(split)})
    note(home, "saved", rank, stage_digest(stage(split, rank)))


def load_stage(split: Sequence[int], home: Path, rank: int) -> None:
    """Into zeros, which it fills: the state that it returns names the layers of the other stages, too."""
    mine = stage(split, rank, empty=True)
    found = checkpoint.restore(mine, home, rank=rank, strict=False, agree=True)
    if found is None or found.step != STEP:
        raise RuntimeError(f"the checkpoint of step {STEP} was not loaded: {found}")
    note(home, "loaded", rank, stage_digest(mine))


def stage_digest(state: Mapping[str, Any]) -> str:
    """Layer by layer, so that stages can be put together."""
    lines = []
    for number, values in sorted(state["layers"].items(), key=lambda each: int(each[0])):
        found = hashlib.sha256(b"".join(values[name].contiguous().numpy().tobytes() for name in ("weight", "exp_avg", "exp_avg_sq")))
        lines.append(f"{number} {found.hexdigest()}")
    return "\n".join(lines)


def note(home: Path, when: str, rank: int, digest: str) -> None:
    """For the comparison, beside the checkpoint."""
    (home.parent / f"{when}-{rank}").write_text(digest)


def noted(folder: Path, when: str, ranks: int) -> list[str]:
    """By rank."""
    return [(folder / f"{when}-{rank}").read_text() for rank in range(ranks)]


def on_ranks(world: int, work: Callable[[int], None]) -> None:
    """In so many processes of one gloo group. Raises RuntimeError where one fails."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    children = [forked(rank, work) for rank in range(world)]
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        raise RuntimeError(f"ranks ended with {codes}")


def forked(rank: int, work: Callable[[int], None]) -> int:
    """Pid of one; torch is loaded."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ["RANK"] = str(rank)
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        work(rank)
        distributed.barrier()
        distributed.destroy_process_group()
        code = 0
    except BaseException as error:  # noqa: BLE001 - told by the exit code; the parent goes on
        sys.stderr.write(f"rank {rank}: {error!r}\n")
    os._exit(code)


def sharded_row(saved: int, loaded: int) -> Row:
    """FSDP2."""
    before, after = digests((saved, partial(save_sharded, world=saved)), (loaded, load_sharded))
    return row_of(f"FSDP2 and AdamW, {saved} → {loaded} ranks", before, after, same=len(set(before)) == 1 and set(before) == set(after))


def pipeline_row(saved: Sequence[int], loaded: Sequence[int]) -> Row:
    """Stages."""
    before, after = digests((len(saved), partial(save_stage, saved)), (len(loaded), partial(load_stage, loaded)))
    layers = "\n".join(before)
    return row_of(f"stages of a pipeline with their moments, {list(saved)} → {list(loaded)} layers", before, after, same=layers == "\n".join(after) and len(layers.splitlines()) == sum(saved))


def digests(save: tuple[int, RankWork], load: tuple[int, RankWork]) -> tuple[list[str], list[str]]:
    """By rank, of what was saved and of what was loaded; none where a rank failed."""
    with tempfile.TemporaryDirectory(prefix="eagle-eye-reshard-") as folder:
        try:
            for ranks, work in (save, load):
                on_ranks(ranks, partial(work, Path(folder) / "kept"))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return [], []
        return noted(Path(folder), "saved", save[0]), noted(Path(folder), "loaded", load[0])


def row_of(what: str, before: Sequence[str], after: Sequence[str], *, same: bool) -> Row:
    """Of one case."""
    figure = "bit-exact" if same else "not the same bits" if before and after else "a rank failed"
    return Row(f"reshard: {what}", figure, "bit-exact", same, PEER)


def main() -> int:
    """Save, load, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch")
    torch.set_num_threads(1)
    for name in [name for name in os.environ if name.startswith("EAGLE_EYE_")]:
        del os.environ[name]
    cases = [partial(sharded_row, *worlds) for worlds in WORLDS] + [partial(pipeline_row, *splits) for splits in PIPELINES]
    rows = [case() for case in track(cases, "layouts", console=Console(stderr=True))]
    return report(rows, options.json, "checkpoints loaded in another layout")


if __name__ == "__main__":
    sys.exit(main())
