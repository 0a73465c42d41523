from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eagle_eye.errors import Broken, ConfigError, Fenced, StateTorn
from eagle_eye.training import checkpoint
from eagle_eye.training.elastic import checkpoint_loader
from eagle_eye.training.elastic.train_state import layer_chunks
from eagle_eye.training.elastic.train_state.train_state import TrainState
from eagle_eye.training.elastic.transfer import state_transfer, transports
from eagle_eye.training.elastic.transfer.state_transfer import TransferResult, transfer_state
from fakes.p2p_threads import Correspondent, Mail, together
from fakes.transfer_processes import LAYERS, inventory

TO_RANK_2 = [[0, 2, 0], [1, 2, 1], [0, 2, 2], [1, 2, 3]]
"""Two givers, a taker, all layers."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_chunks, "CHUNK_BYTES", 1024)


class Session:
    """Says that a newer epoch is being formed once it was asked often enough."""

    def __init__(self, calm: int = 1 << 30) -> None:
        self.calm = calm

    def check(self, epoch: int) -> None:
        self.calm -= 1
        if self.calm < 0:
            raise Fenced(epoch + 1)


def move(members: list[TrainState], moves: list[list[int]], *, mail: Mail | None = None, sessions: dict[int, Session] | None = None, **more: Any) -> list[Any]:
    """The result or the exception of each rank."""
    mail, sessions = mail or Mail(), sessions or {}

    def act(rank: int) -> Callable[[], TransferResult]:
        group = Correspondent(mail, rank, len(members))
        return lambda: transfer_state(group, sessions.get(rank, Session()), members[rank], moves, rank, threads=2, **more)

    return together([act(rank) for rank in range(len(members))], mail)


@pytest.mark.parametrize("way", transports.NAMES)
def test_a_fresh_worker_takes_each_layer_from_its_giver(way: str) -> None:
    members = [inventory(0, steps=2), inventory(0, steps=2), inventory(1)]
    mail = Mail()
    givers_and_taker = move(members, TO_RANK_2, mail=mail, allowed=[way])
    bytes_of_state = sum(members[0].bytes_per_layer)
    assert [each.given for each in givers_and_taker] == [bytes_of_state // 2, bytes_of_state // 2, 0]
    assert [each.bytes for each in givers_and_taker] == [0, 0, bytes_of_state]
    assert givers_and_taker[2].sources == {way: bytes_of_state}
    assert members[2].digest() == members[0].digest()
    assert (members[2].step, members[2].whole) == (2, True)
    data = sum(size for tag, size in mail.carried.items() if transports._DATA <= tag < transports._FREE)
    chunks = sum(len(layer_chunks.chunks_of([entry.bytes for entry in layer.entries])) for layer in members[0].layers)
    assert data == {"memory": 0, "segment": chunks, "group": bytes_of_state}[way]  # not a byte more than the inventory's


def test_the_nearest_way_is_taken() -> None:
    assert move([inventory(0, steps=1), inventory(1)], [[0, 1, layer] for layer in range(LAYERS)])[1].sources.keys() == {"memory"}


def test_what_is_not_moved_stays() -> None:
    members = [inventory(0, steps=1), inventory(1, steps=1)]
    before = [members[1].layer(0).entries[0].tensor.clone(), members[0].digest()]
    move(members, [[0, 1, 2]])
    assert torch.equal(members[1].layer(0).entries[0].tensor, before[0])
    assert torch.equal(members[1].layer(2).entries[0].tensor, members[0].layer(2).entries[0].tensor)
    assert members[0].digest() == before[1]


@pytest.mark.parametrize("way", transports.NAMES)
def test_workers_that_give_to_each_other_do_not_wait_for_each_other(way: str) -> None:
    members = [inventory(rank, steps=1, width=60) for rank in range(3)]
    first = [[entry.tensor.clone() for entry in member.layer(0).entries] for member in members]
    moves = [[0, 1, 0], [1, 2, 1], [2, 0, 2], [1, 0, 3], [0, 2, 0]]
    results = move(members, moves, allowed=[way])
    assert all(isinstance(each, TransferResult) for each in results), results
    assert all(torch.equal(entry.tensor, was) for entry, was in zip(members[1].layer(0).entries, first[0], strict=True))


def test_a_worker_without_a_part_in_it_does_nothing() -> None:
    assert move([inventory(0)], [[1, 2, 0]]) == [TransferResult(0, pytest.approx(0, abs=60), {}, 0)]


@pytest.mark.parametrize("way", ["segment", "group"])
def test_one_flipped_bit_on_the_way_is_found_and_named(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [inventory(0, steps=1), inventory(0, steps=1), inventory(1)]
    members[2].step = -1
    mail = Mail()

    def flip(frm: int, to: int, tag: int, letter: torch.Tensor) -> None:
        if frm == 1 and tag == transports._DATA + 1:
            letter[-1] ^= 4

    def flip_slot(self: transports.SharedMemoryTransport, tag: int) -> object:
        if self._group.rank == 1 and tag == transports._DATA + 1:  # filled, and the taker does not know it yet
            self._segment.slot(1, 1)[0] ^= 4
        return tell(self, tag)

    tell = transports.SharedMemoryTransport._tell
    if way == "group":
        mail.spoil = flip
    else:
        monkeypatch.setattr(transports.SharedMemoryTransport, "_tell", flip_slot)
    results = move(members, TO_RANK_2, mail=mail, allowed=[way])
    assert isinstance(results[2], StateTorn)
    assert (results[2].giver, results[2].layers) == (1, (1,))
    assert "layer 1 of rank 1 did not arrive as it is there" in str(results[2])
    assert "take it from another worker or a checkpoint" in str(results[2])
    assert isinstance(results[1], Broken)  # it may not go on as if the taker were whole
    assert (members[2].whole, members[2].step, members[1].whole) == (False, -1, True)


def test_memory_that_was_read_torn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [inventory(0, steps=1), inventory(1)]
    read = transports.remote_memory.read

    def torn(pid: int, addresses: list[int], into: list[torch.Tensor]) -> None:
        read(pid, addresses, into)
        into[-1][-1] ^= 128

    monkeypatch.setattr(transports.remote_memory, "read", torn)
    result = move(members, [[0, 1, 0]])
    assert isinstance(result[1], StateTorn)
    assert not members[1].whole


@pytest.mark.parametrize("way", transports.NAMES)
def test_a_taker_that_is_fenced_in_the_middle_is_fresh_again(way: str) -> None:
    members = [inventory(0, steps=1), inventory(1)]
    results = move(members, [[0, 1, layer] for layer in range(LAYERS)], sessions={1: Session(calm=3)}, allowed=[way])
    assert isinstance(results[1], Fenced)
    assert isinstance(results[0], Broken)
    assert (members[1].whole, members[0].whole) == (False, True)
    move(members, [[0, 1, layer] for layer in range(LAYERS)], allowed=[way])
    assert members[1].whole
    assert members[1].digest() == members[0].digest()


def test_a_giver_that_ends_in_the_middle_breaks_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [inventory(0, steps=1), inventory(1)]
    read = transports.remote_memory.read
    monkeypatch.setattr(transports.remote_memory, "read", lambda pid, addresses, into: read((1 << 22) + 1, addresses, into))
    results = move(members, [[0, 1, 0]])
    assert isinstance(results[1], Broken)
    assert "ended while its state was read" in str(results[1])
    assert not members[1].whole


def test_givers_of_different_steps_are_refused() -> None:
    members = [inventory(0, steps=2), inventory(0, steps=1), inventory(1)]
    result = move(members, TO_RANK_2)[2]
    assert isinstance(result, StateTorn)
    assert "it gives step 1 and rank 0 step 2" in str(result)


def test_another_model_is_refused() -> None:
    result = move([inventory(0, steps=1), inventory(1, width=13)], [[0, 1, 0]])[1]
    assert isinstance(result, ConfigError)


@pytest.mark.parametrize("way", ["segment", "group"])
def test_tensors_that_do_not_lie_in_order_go_as_copies(way: str) -> None:
    def images(seed: int) -> TrainState:
        torch.manual_seed(seed)
        layer = nn.Conv2d(3, 8, 5).to(memory_format=torch.channels_last)
        return TrainState([layer], torch.optim.SGD(layer.parameters(), lr=0.1))

    members = [images(0), images(1)]
    result = move(members, [[0, 1, 0]], allowed=["memory", way])[1]
    assert result.sources.keys() == {way}
    assert members[1].digest() == members[0].digest()
    assert members[1].layer(0).entries[0].tensor.is_contiguous(memory_format=torch.channels_last)


def test_where_nobody_has_it_the_newest_checkpoint_is_loaded_from_the_nearest_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    memory, storage = tmp_path / "memory", tmp_path / "storage"
    old, new = inventory(0, steps=1), inventory(0, steps=2)
    taker = inventory(1)
    assert checkpoint_loader.load_newest(taker, [memory, storage]) is None
    checkpoint.save(old.state(), old.step, storage)
    checkpoint.save(new.state(), new.step, storage)
    checkpoint.save(old.state(), old.step, memory)
    moved = checkpoint_loader.load_newest(taker, [memory, storage])
    assert moved is not None  # storage has a newer one than memory
    assert (moved.sources, taker.step, taker.digest()) == ({str(storage): sum(new.bytes_per_layer)}, 2, new.digest())
    moved = checkpoint_loader.load_newest(taker, [memory, storage], at_most=1)
    assert moved is not None  # both have it
    assert (moved.sources.keys(), taker.step, taker.digest()) == ({str(memory)}, 1, old.digest())
    torn = checkpoint.entries(memory)[0].data
    torn.write_bytes(torn.read_bytes()[:-1])
    moved = checkpoint_loader.load_newest(taker, [memory, storage], at_most=1)
    assert moved is not None  # the one in memory is torn
    assert moved.sources.keys() == {str(storage)}


def test_more_chunks_than_may_be_under_way_at_once_arrive() -> None:
    members = [inventory(0, steps=1, width=100), inventory(1, width=100)]
    assert members[0].bytes_per_layer[0] > 2 * state_transfer.IN_FLIGHT * 1024
    move(members, [[0, 1, layer] for layer in range(LAYERS)], allowed=["group"])
    assert members[1].digest() == members[0].digest()
