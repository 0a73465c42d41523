from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eagle_eye.errors import Broken, ConfigError, Fenced, StateCorrupted
from eagle_eye.training import checkpoint
from eagle_eye.training.elastic import checkpointing
from eagle_eye.training.elastic.train_state.train_state import TrainState
from eagle_eye.training.elastic.transfer import layer_buffers, state_transfer, transports
from eagle_eye.training.elastic.transfer.state_transfer import TransferResult, transfer_state
from fakes.p2p_threads import Mailbox, P2pGroup, together
from fakes.transfer_processes import LAYERS, train_state

TO_RANK_2 = [[0, 2, 0], [1, 2, 1], [0, 2, 2], [1, 2, 3]]
"""Two senders, a receiver, all layers."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_buffers, "CHUNK_BYTES", 1024)


class Session:
    """Says that a newer epoch is being formed once it was asked often enough."""

    def __init__(self, calm: int = 1 << 30) -> None:
        self.calm = calm

    def check(self, epoch: int) -> None:
        self.calm -= 1
        if self.calm < 0:
            raise Fenced(epoch + 1)


def move(members: list[TrainState], moves: list[list[int]], *, mailbox: Mailbox | None = None, sessions: dict[int, Session] | None = None, **more: Any) -> list[Any]:
    """The result or the exception of each rank."""
    mailbox, sessions = mailbox or Mailbox(), sessions or {}

    def act(rank: int) -> Callable[[], TransferResult]:
        group = P2pGroup(mailbox, rank, len(members))
        return lambda: transfer_state(group, sessions.get(rank, Session()), members[rank], moves, rank, threads=2, **more)

    return together([act(rank) for rank in range(len(members))], mailbox)


@pytest.mark.parametrize("transport", transports.NAMES)
def test_a_fresh_worker_receives_each_layer_from_its_sender(transport: str) -> None:
    members = [train_state(0, steps=2), train_state(0, steps=2), train_state(1)]
    mailbox = Mailbox()
    senders_and_receiver = move(members, TO_RANK_2, mailbox=mailbox, allowed=[transport])
    bytes_of_state = sum(members[0].bytes_per_layer)
    assert [each.sent for each in senders_and_receiver] == [bytes_of_state // 2, bytes_of_state // 2, 0]
    assert [each.bytes for each in senders_and_receiver] == [0, 0, bytes_of_state]
    assert senders_and_receiver[2].sources == {transport: bytes_of_state}
    assert members[2].digest() == members[0].digest()
    assert (members[2].step, members[2].is_complete) == (2, True)
    data = sum(size for tag, size in mailbox.carried.items() if transports._DATA <= tag < transports._FREE)
    chunks = sum(len(layer_buffers.chunks_of([entry.bytes for entry in layer.entries])) for layer in members[0].layers)
    assert data == {"remote_memory": 0, "shared_memory": chunks, "group": bytes_of_state}[transport]  # not a byte more than the state has


def test_the_fastest_transport_is_chosen() -> None:
    assert move([train_state(0, steps=1), train_state(1)], [[0, 1, layer] for layer in range(LAYERS)])[1].sources.keys() == {"remote_memory"}


def test_what_is_not_moved_stays() -> None:
    members = [train_state(0, steps=1), train_state(1, steps=1)]
    before = [members[1].layer(0).entries[0].tensor.clone(), members[0].digest()]
    move(members, [[0, 1, 2]])
    assert torch.equal(members[1].layer(0).entries[0].tensor, before[0])
    assert torch.equal(members[1].layer(2).entries[0].tensor, members[0].layer(2).entries[0].tensor)
    assert members[0].digest() == before[1]


@pytest.mark.parametrize("transport", transports.NAMES)
def test_workers_that_give_to_each_other_do_not_wait_for_each_other(transport: str) -> None:
    members = [train_state(rank, steps=1, width=60) for rank in range(3)]
    first = [[entry.tensor.clone() for entry in member.layer(0).entries] for member in members]
    moves = [[0, 1, 0], [1, 2, 1], [2, 0, 2], [1, 0, 3], [0, 2, 0]]
    results = move(members, moves, allowed=[transport])
    assert all(isinstance(each, TransferResult) for each in results), results
    assert all(torch.equal(entry.tensor, was) for entry, was in zip(members[1].layer(0).entries, first[0], strict=True))


def test_a_worker_without_a_part_in_it_does_nothing() -> None:
    assert move([train_state(0)], [[1, 2, 0]]) == [TransferResult(0, pytest.approx(0, abs=60), {}, 0)]


@pytest.mark.parametrize("transport", ["shared_memory", "group"])
def test_one_flipped_bit_on_the_way_is_found_and_named(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [train_state(0, steps=1), train_state(0, steps=1), train_state(1)]
    members[2].step = -1
    mailbox = Mailbox()

    def flip(frm: int, to: int, tag: int, message: torch.Tensor) -> None:
        if frm == 1 and tag == transports._DATA + 1:
            message[-1] ^= 4

    def flip_slot(self: transports.SharedMemoryTransport, tag: int) -> object:
        if self._group.rank == 1 and tag == transports._DATA + 1:  # filled, and the receiver does not know it yet
            self._memory.slot(1, 1)[0] ^= 4
        return send_byte(self, tag)

    send_byte = transports.SharedMemoryTransport._send_byte
    if transport == "group":
        mailbox.spoil = flip
    else:
        monkeypatch.setattr(transports.SharedMemoryTransport, "_send_byte", flip_slot)
    results = move(members, TO_RANK_2, mailbox=mailbox, allowed=[transport])
    assert isinstance(results[2], StateCorrupted)
    assert (results[2].sender, results[2].layers) == (1, (1,))
    assert "layer 1 of rank 1 did not arrive as it is there" in str(results[2])
    assert "take it from another worker or a checkpoint" in str(results[2])
    assert isinstance(results[1], Broken)  # it may not go on as if the receiver were whole
    assert (members[2].is_complete, members[2].step, members[1].is_complete) == (False, -1, True)


def test_memory_that_was_read_torn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [train_state(0, steps=1), train_state(1)]
    read = transports.remote_memory.read

    def torn(pid: int, addresses: list[int], into: list[torch.Tensor]) -> None:
        read(pid, addresses, into)
        into[-1][-1] ^= 128

    monkeypatch.setattr(transports.remote_memory, "read", torn)
    result = move(members, [[0, 1, 0]])
    assert isinstance(result[1], StateCorrupted)
    assert not members[1].is_complete


@pytest.mark.parametrize("transport", transports.NAMES)
def test_a_receiver_that_is_fenced_in_the_middle_is_fresh_again(transport: str) -> None:
    members = [train_state(0, steps=1), train_state(1)]
    results = move(members, [[0, 1, layer] for layer in range(LAYERS)], sessions={1: Session(calm=3)}, allowed=[transport])
    assert isinstance(results[1], Fenced)
    assert isinstance(results[0], Broken)
    assert (members[1].is_complete, members[0].is_complete) == (False, True)
    move(members, [[0, 1, layer] for layer in range(LAYERS)], allowed=[transport])
    assert members[1].is_complete
    assert members[1].digest() == members[0].digest()


def test_a_sender_that_ends_in_the_middle_breaks_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [train_state(0, steps=1), train_state(1)]
    read = transports.remote_memory.read
    monkeypatch.setattr(transports.remote_memory, "read", lambda pid, addresses, into: read((1 << 22) + 1, addresses, into))
    results = move(members, [[0, 1, 0]])
    assert isinstance(results[1], Broken)
    assert "ended while its state was read" in str(results[1])
    assert not members[1].is_complete


def test_senders_of_different_steps_are_refused() -> None:
    members = [train_state(0, steps=2), train_state(0, steps=1), train_state(1)]
    result = move(members, TO_RANK_2)[2]
    assert isinstance(result, StateCorrupted)
    assert "it sends step 1 and rank 0 step 2" in str(result)


def test_another_model_is_refused() -> None:
    result = move([train_state(0, steps=1), train_state(1, width=13)], [[0, 1, 0]])[1]
    assert isinstance(result, ConfigError)


@pytest.mark.parametrize("transport", ["shared_memory", "group"])
def test_tensors_that_do_not_lie_in_order_go_as_copies(transport: str) -> None:
    def images(seed: int) -> TrainState:
        torch.manual_seed(seed)
        layer = nn.Conv2d(3, 8, 5).to(memory_format=torch.channels_last)
        return TrainState([layer], torch.optim.SGD(layer.parameters(), lr=0.1))

    members = [images(0), images(1)]
    result = move(members, [[0, 1, 0]], allowed=["remote_memory", transport])[1]
    assert result.sources.keys() == {transport}
    assert members[1].digest() == members[0].digest()
    assert members[1].layer(0).entries[0].tensor.is_contiguous(memory_format=torch.channels_last)


def test_where_no_worker_has_it_the_newest_checkpoint_is_loaded_from_the_nearest_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    memory, storage = tmp_path / "memory", tmp_path / "storage"
    old, new = train_state(0, steps=1), train_state(0, steps=2)
    receiver = train_state(1)
    assert checkpointing.load_newest(receiver, [memory, storage]) is None
    checkpoint.save(old.state(), old.step, storage)
    checkpoint.save(new.state(), new.step, storage)
    checkpoint.save(old.state(), old.step, memory)
    moved = checkpointing.load_newest(receiver, [memory, storage])
    assert moved is not None  # storage has a newer one than memory
    assert (moved.sources, receiver.step, receiver.digest()) == ({str(storage): sum(new.bytes_per_layer)}, 2, new.digest())
    moved = checkpointing.load_newest(receiver, [memory, storage], at_most=1)
    assert moved is not None  # both have it
    assert (moved.sources.keys(), receiver.step, receiver.digest()) == ({str(memory)}, 1, old.digest())
    torn = checkpoint.entries(memory)[0].shards[0]
    torn.write_bytes(torn.read_bytes()[:-1])
    moved = checkpointing.load_newest(receiver, [memory, storage], at_most=1)
    assert moved is not None  # the one in memory is torn
    assert moved.sources.keys() == {str(storage)}


def test_more_chunks_than_may_be_under_way_at_once_arrive() -> None:
    members = [train_state(0, steps=1, width=100), train_state(1, width=100)]
    assert members[0].bytes_per_layer[0] > 2 * state_transfer.IN_FLIGHT * 1024
    move(members, [[0, 1, layer] for layer in range(LAYERS)], allowed=["group"])
    assert members[1].digest() == members[0].digest()
