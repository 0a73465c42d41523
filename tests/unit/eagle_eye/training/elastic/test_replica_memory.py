"""Checkpoints in memory of an elastic job: who keeps them, and which one a job goes on from that nobody holds the state of any more."""

import errno
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle_eye.training import checkpoint, messages
from eagle_eye.training.checkpoint import memory_checkpoints, memory_segment, roll_backs
from eagle_eye.training.checkpoint.memory_layout import Shard
from eagle_eye.training.checkpoint.memory_segment import MemorySegment, SegmentFile
from eagle_eye.training.elastic.checkpointing import Checkpointing
from eagle_eye.training.elastic.epoch_protocol import EpochAssignment
from eagle_eye.training.elastic.replica_memory import ReplicaMemory, node_file, shard_kept_by
from eagle_eye.training.elastic.train_state.train_state import TrainState
from eagle_eye.training.integrations.sample_order import SampleOrder
from fakes.transfer_processes import train_state

WORKERS = ("run/n0/0", "run/n0/1", "run/n1/0")


def assignment(rank: int, workers: tuple[str, ...] = WORKERS, epoch: int = 1) -> EpochAssignment:
    shares = tuple((each,) for each in range(len(workers)))
    return EpochAssignment(epoch, rank, len(workers), workers, 0, shares, shares)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker in slot 1."""
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_COPIES", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_WORKER", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_MEMORY", str(tmp_path / "ee-n0-1.memory"))
    monkeypatch.setenv("EAGLE_EYE_SLOT", "1")
    monkeypatch.setenv("EAGLE_EYE_CHECKPOINT_DIR", str(tmp_path / "kept"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ee-n0-0.memory"


@pytest.fixture
def memories() -> Iterator[list[ReplicaMemory]]:
    made: list[ReplicaMemory] = []
    yield made
    for memory in made:
        memory.release()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where the script stores its checkpoints."""
    return tmp_path / "kept"


def keeper(memories: list[ReplicaMemory], state: TrainState, rank: int = 0, every: int = 1) -> ReplicaMemory:
    memory = ReplicaMemory(state._optimizer, every)
    memories.append(memory)
    memory.begin_epoch(assignment(rank))
    return memory


def keep(memory: ReplicaMemory, state: TrainState, *steps: int) -> None:
    """Copies of these steps, each whole before the next."""
    for step in steps:
        state.step = step
        memory.after_step(state)
        assert memory._client is not None
        memory._client.finish()


def held(path: Path) -> set[int]:
    with closing(SegmentFile(path)) as segment:
        return {stamp.step for slot in range(segment.slots) if (stamp := segment.stamp(slot)) is not None}


def left(memories: list[ReplicaMemory], state: TrainState, *steps: int) -> None:
    """All workers die: what they leave in memory."""
    memory = keeper(memories, state)
    keep(memory, state, 0, *steps)  # the first one reserves
    memory.release()


def started(kept: Path, memories: list[ReplicaMemory], found: TrainState, rank: int = 0, **more: Any) -> TrainState:
    """As a worker begins that is to load for all."""
    memory = keeper(memories, found, rank)
    Checkpointing(0, kept, memory).load(found, **more)
    return found


# --- who keeps it


def test_of_each_node_the_lowest_slot_keeps_the_state_by_the_lowest_rank() -> None:
    workers = ("run/n1/1", "run/n0/3", "run/n1/0", "run/n0/10")
    assert [shard_kept_by(workers, rank) for rank in range(4)] == [None, Shard(1, 1), Shard(0, 1), None]
    assert shard_kept_by(("alone",), 0) == Shard(0, 1)


def test_all_workers_of_a_node_use_one_file(path: Path) -> None:
    given = str(path.with_name("ee-n0-12.memory"))
    assert node_file({"EAGLE_EYE_CHECKPOINT_MEMORY": given, "EAGLE_EYE_SLOT": "12"}) == path
    assert node_file({"EAGLE_EYE_CHECKPOINT_MEMORY": "", "EAGLE_EYE_SLOT": "12"}) is None
    other = path.with_name("mine.memory")
    assert node_file({"EAGLE_EYE_CHECKPOINT_MEMORY": str(other), "EAGLE_EYE_SLOT": "12"}) == other


def test_it_is_kept_each_so_many_steps_behind_the_first_that_there_is_memory_for(memories: list[ReplicaMemory], path: Path) -> None:
    state = train_state(0, steps=1)
    memory = keeper(memories, state, every=5)
    keep(memory, state, 1)
    assert not path.exists(), "its memory is reserved"
    keep(memory, state, 2, 3, 4)
    assert held(path) == {2}
    keep(memory, state, *range(5, 14))
    assert held(path) == {5, 10}


def test_another_worker_of_the_node_takes_the_file_over_with_what_is_in_it(memories: list[ReplicaMemory], path: Path) -> None:
    first, second = train_state(0, steps=1), train_state(0, steps=1)
    ours, theirs = keeper(memories, first, rank=0), keeper(memories, second, rank=1)
    keep(ours, first, 1, 2, 3)
    second.step = 3
    theirs.after_step(second)
    assert theirs._client is None, "not its turn"
    ours.begin_epoch(assignment(1, ("run/n0/1", "run/n0/0"), epoch=2))
    keep(ours, first, 4)
    ours.begin_epoch(assignment(1, ("run/n0/0", "run/n0/1"), epoch=3))
    theirs.begin_epoch(assignment(0, ("run/n0/0", "run/n0/1"), epoch=3))
    assert ours._client is None
    keep(theirs, second, 5, 6)
    assert held(path) == {4, 6}


def test_a_full_memory_is_no_error_of_the_training(memories: list[ReplicaMemory], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: Any, **__: Any) -> MemorySegment:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MemorySegment, "create", full)
    state = train_state(0, steps=1)
    memory, asked = keeper(memories, state, every=100), list[int]()
    real = state.state
    monkeypatch.setattr(state, "state", lambda: asked.append(state.step) or real())
    keep(memory, state, *range(1, 20))
    assert caplog.text.count("no checkpoint in memory") == 1
    assert asked == [1, 2, 3, 4, 5], "no step waits for what there is no memory for"


def test_what_no_checkpoint_can_hold_ends_them_and_not_the_training(memories: list[ReplicaMemory], caplog: pytest.LogCaptureFixture) -> None:
    state = train_state(0, steps=1)
    memory = keeper(memories, state)
    state.state = lambda: {"tensors": [object()]}  # type: ignore[method-assign]
    for _ in range(3):
        memory.after_step(state)
    assert not memory.has_place
    assert caplog.text.count("no checkpoints of this elastic job are kept in memory") == 1


def test_without_a_launcher_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, memories: list[ReplicaMemory], tmp_path: Path) -> None:
    monkeypatch.delenv("EAGLE_EYE_CHECKPOINT_MEMORY")
    state = train_state(0, steps=1)
    memory = keeper(memories, state)
    memory.after_step(state)
    assert memory.load(state, tmp_path, -1) is None
    assert memory._client is None
    with pytest.raises(ValueError, match="memory_every"):
        ReplicaMemory(None, -1)


# --- which one is loaded


def test_memory_is_gone_on_from_where_it_is_newer_than_storage(memories: list[ReplicaMemory], kept: Path) -> None:
    state = train_state(0, steps=2)
    checkpoint.save(train_state(5, steps=1).state(), 1, kept)
    left(memories, state, 1, 2)
    found = started(kept, memories, train_state(1))
    assert (found.step, found.digest()) == (2, state.digest())
    assert memories[-1]._client is not None, "who keeps the state goes on in the same file"
    keep(memories[-1], found, 3)


@pytest.mark.parametrize("step", [4, 3])
def test_storage_is_gone_on_from_where_it_is_as_new(memories: list[ReplicaMemory], kept: Path, step: int) -> None:
    left(memories, train_state(5, steps=2), 2, 3)
    state = train_state(0, steps=1)
    state.step = step
    checkpoint.save(state.state(), step, kept)
    found = started(kept, memories, train_state(1))
    assert (found.step, found.digest()) == (step, state.digest())


def test_what_the_launchers_have_stored_of_it_is_gone_on_from_where_no_memory_is_left(memories: list[ReplicaMemory], kept: Path) -> None:
    state = train_state(0, steps=3)
    checkpoint.save(train_state(5, steps=1).state(), 1, kept)
    checkpoint.save(state.state(), 3, kept / "memory")
    found = started(kept, memories, train_state(1))
    assert (found.step, found.digest()) == (3, state.digest())


def test_memory_that_is_older_than_what_the_launchers_have_stored_of_it_is_left_alone(memories: list[ReplicaMemory], kept: Path) -> None:
    """As on a node that was evicted at that time."""
    left(memories, train_state(5, steps=2), 2)
    state = train_state(0, steps=3)
    checkpoint.save(state.state(), 3, kept / "memory")
    assert started(kept, memories, train_state(1)).digest() == state.digest()


def test_a_copy_that_was_damaged_is_passed_over_for_the_one_before(memories: list[ReplicaMemory], kept: Path, path: Path) -> None:
    left(memories, train_state(0, steps=2), 1, 2)
    with closing(MemorySegment.open(path)) as segment:
        [slot] = [slot for slot in range(segment.slots) if segment.read(slot).step == 2]
        segment.memory[segment.read(slot).payload_at] ^= 1
    assert started(kept, memories, train_state(1)).step == 1


@pytest.mark.parametrize(("refusals", "step"), [(3, 2), (None, 1)])
def test_memory_that_another_process_still_holds_is_waited_for_and_it_is_told_once(
    memories: list[ReplicaMemory], kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusals: int | None, step: int
) -> None:
    """The worker before this one has not ended yet. Who never gives it back is waited for no longer than some seconds: then storage has what is left."""
    left(memories, train_state(0, steps=2), 2)
    checkpoint.save(train_state(0, steps=1).state(), 1, kept)
    real, asked = MemorySegment._opened, list[Path]()

    def held(path: Path, *, shared: bool) -> MemorySegment:
        asked.append(path)
        if refusals is None or len(asked) <= refusals:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable", str(path))
        return real(path, shared=shared)

    clock = iter(range(1000))
    monkeypatch.setattr(memory_segment, "_TRIED_S", 0.0)
    monkeypatch.setattr(memory_segment, "time", SimpleNamespace(monotonic=lambda: next(clock), monotonic_ns=lambda: 0))
    monkeypatch.setattr(MemorySegment, "_opened", held)
    assert started(kept, memories, train_state(1)).step == step
    assert len(asked) == (4 if refusals else memory_checkpoints.END_S)
    assert sum("still held by another process" in record.getMessage() for record in caplog.records) == 1


def test_twin_memory_of_another_user_is_not_waited_for(memories: list[ReplicaMemory], kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(memories, train_state(0, steps=2), 2)
    asked: list[Path] = []

    def foreign(path: Path, *, shared: bool) -> MemorySegment:
        asked.append(path)
        raise OSError(errno.EPERM, "it is another user's", str(path))

    monkeypatch.setattr(MemorySegment, "_opened", foreign)
    assert started(kept, memories, train_state(1)).step == 0
    assert len(asked) == 1


def test_a_worker_that_does_not_load_for_all_takes_what_all_can_read(memories: list[ReplicaMemory], kept: Path) -> None:
    left(memories, train_state(0, steps=2), 2)
    checkpoint.save(train_state(0, steps=1).state(), 1, kept)
    assert started(kept, memories, train_state(1), for_all=False).step == 1


@pytest.mark.parametrize("width", [12, 20])
def test_memory_of_another_model_is_not_loaded(memories: list[ReplicaMemory], kept: Path, width: int) -> None:
    """Of other shapes, and with fewer layers, each of which fits."""
    left(memories, train_state(0, steps=2), 2)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(width, width) for _ in range(3)]
    other = TrainState(layers, torch.optim.SGD([each for layer in layers for each in layer.parameters()], lr=0.1, momentum=0.9))
    before = other.digest()
    assert (started(kept, memories, other).step, other.digest()) == (0, before)


def test_a_plain_scripts_checkpoints_are_none_of_an_elastic_one(memories: list[ReplicaMemory], kept: Path) -> None:
    checkpoint.save({"model": {"weight": torch.ones(3)}}, 9, kept / "memory")
    assert started(kept, memories, train_state(1)).step == 0


def test_a_store_that_does_not_say_what_it_has_does_not_keep_from_memory(memories: list[ReplicaMemory], tmp_path: Path) -> None:
    left(memories, train_state(0, steps=2), 2)
    wall = tmp_path / "wall"
    wall.touch()
    assert started(wall, memories, train_state(1)).step == 2


# --- a training that was rolled back


def test_steps_behind_the_roll_back_are_not_loaded(memories: list[ReplicaMemory], kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(memories, train_state(0, steps=2), 6, 7)
    monkeypatch.setenv("EAGLE_EYE_RESUME_STEP", "6")
    monkeypatch.setenv("EAGLE_EYE_EPOCH", "4")
    found = started(kept, memories, train_state(1))
    assert (found.step, found.rolled_back_in) == (6, 4)


def test_what_was_abandoned_is_left_alone_where_storage_knows_of_the_roll_back(memories: list[ReplicaMemory], kept: Path) -> None:
    """As on a node that was away while the others went back."""
    left(memories, train_state(5, steps=2), 90, 91)
    state = train_state(0, steps=2)
    state.step, state.rolled_back_in = 60, 4
    checkpoint.save(state.state(), 60, kept)
    found = started(kept, memories, train_state(1))
    assert (found.step, found.rolled_back_in, found.digest()) == (60, 4, state.digest())


def test_what_was_abandoned_is_left_alone_where_another_copy_knows_of_the_roll_back(
    memories: list[ReplicaMemory], kept: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another node: here its launcher has put it beside the own one."""
    state = train_state(0, steps=2)
    state.rolled_back_in = 4
    left(memories, state, 60)
    fetched = path.with_name("ee-n0-1-fetched.memory")
    path.rename(fetched)
    left(memories, train_state(5, steps=2), 90, 91)
    asked: list[dict[str, Any]] = []

    def ask(_: str, line: bytes, __: float) -> messages.ProbeMessage:
        asked.append(messages.decode(line))
        return messages.decode(messages.reply(True, state="done", path=str(fetched), source="n1", why=""))

    monkeypatch.setenv("EAGLE_EYE_SOCKET", "here")
    monkeypatch.setattr(messages, "ask", ask)
    found = started(kept, memories, train_state(1))
    assert (found.step, found.rolled_back_in, found.digest()) == (60, 4, state.digest())
    assert [(each["newer_from"], each["replicated"]) for each in asked if each["kind"] == "fetch_memory_checkpoint"] == [(92, True)]
    assert not fetched.exists(), "its memory is given back"


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_death_before_the_first_copy_behind_a_roll_back_brings_nothing_back_and_other_nodes_are_asked_for_what_is_not_abandoned(
    memories: list[ReplicaMemory], kept: Path, path: Path, monkeypatch: pytest.MonkeyPatch, rolled_back: bool
) -> None:
    """What the own node has is newer, and abandoned: what another node has from before is what is left. Its twin: nothing was rolled back."""
    state = train_state(0, steps=2)
    left(memories, state, 59, 60)
    fetched = path.with_name("ee-n0-1-fetched.memory")
    path.rename(fetched)
    left(memories, train_state(5, steps=2), 90, 91)
    asked: list[dict[str, Any]] = []

    def ask(_: str, line: bytes, __: float) -> messages.ProbeMessage:
        asked.append(messages.decode(line))
        return messages.decode(messages.reply(True, state="done", path=str(fetched), source="n1", why=""))

    monkeypatch.setenv("EAGLE_EYE_SOCKET", "here")
    monkeypatch.setenv("EAGLE_EYE_EPOCH", "3")
    if rolled_back:
        monkeypatch.setenv(roll_backs.VARIABLE, "2:70")
    monkeypatch.setattr(messages, "ask", ask)
    found = started(kept, memories, train_state(1))
    assert (found.step, found.digest() == state.digest()) == ((60, True) if rolled_back else (91, False))
    assert [each["newer_from"] for each in asked if each["kind"] == "fetch_memory_checkpoint"] == [1 if rolled_back else 92]


def test_a_copy_is_of_the_epoch_that_the_worker_is_in_not_of_the_one_that_it_was_started_in(memories: list[ReplicaMemory], kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elastic workers live on."""
    state = train_state(0, steps=2)
    memory = keeper(memories, state)
    memory.begin_epoch(assignment(0, epoch=7))
    keep(memory, state, 59, 60)
    memory.release()
    monkeypatch.setenv(roll_backs.VARIABLE, "5:40")
    assert started(kept, memories, train_state(1)).step == 60


def test_where_the_data_of_a_step_begin_goes_with_its_copy(memories: list[ReplicaMemory], path: Path) -> None:
    order, state = SampleOrder(list(range(100)), list, size=5, micro_batches=4, seed=1), train_state(0, steps=2)
    memory = ReplicaMemory(state._optimizer, 1, order.position)
    memories.append(memory)
    memory.begin_epoch(assignment(0))
    keep(memory, state, 11, 12, 13)
    memory.release()
    with closing(SegmentFile(path)) as segment:
        tables = [json.loads(segment.read(slot).table) for slot in range(segment.slots)]
    assert {each["step"]: each["data_position"] for each in tables}[12] == {"epoch": 2, "batch": 8}, "five steps an epoch"


def test_twin_what_came_behind_the_roll_back_is_loaded(memories: list[ReplicaMemory], kept: Path) -> None:
    checkpoint.save(train_state(5, steps=2).state(), 50, kept)
    state = train_state(0, steps=2)
    state.rolled_back_in = 4
    left(memories, state, 59, 60)
    assert started(kept, memories, train_state(1)).step == 60
