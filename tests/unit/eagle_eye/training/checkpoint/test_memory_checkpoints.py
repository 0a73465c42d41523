import errno
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy.random
import pytest
import torch

from eagle_eye.training import messages
from eagle_eye.training.checkpoint import memory_checkpoints, memory_segment, state_copy
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.memory_layout import StateLayout
from eagle_eye.training.checkpoint.memory_segment import MemorySegment, TornCopy
from eagle_eye.training.checkpoint.random_state import random_state, restore_random_state
from fakes.memory_trainer import Trainer, begun


def successor(path: Path, **options: Any) -> Trainer:
    """Another process of the worker, for all that its memory knows: with other values, and an optimizer that has no state yet."""
    other = Trainer(path, **options)
    with torch.no_grad():
        for parameter in other.parameters:
            parameter.zero_()
    return other


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def flip(path: Path, step: int) -> None:
    """One bit in the middle of the payload of a step."""
    segment = MemorySegment.open(path)
    content = next(found for found in map(segment.read, range(2)) if found.step == step)
    segment.memory[content.payload_at + content.payload_bytes // 2] ^= 4
    segment.close()


def test_a_successor_loads_what_was_saved_into_its_own_tensors(trainer: Trainer, path: Path) -> None:
    values = trainer.saved(5)
    momentum = trainer.optimizer.state[trainer.parameters[0]]["momentum_buffer"].clone()
    trainer.memory.close()
    other = successor(path)
    found = other.memory.load(other.state())
    assert found is not None
    assert (found.step, found.skipped, found.state["position"], found.state["names"]) == (5, found.skipped, 2, ("a", None))
    assert same(other.values(), values)
    other.optimizer.load_state_dict(found.state["optimizer"])
    assert torch.equal(other.optimizer.state[other.parameters[0]]["momentum_buffer"], momentum), "new, for the template had none"
    other.memory.close()


def test_a_step_of_the_optimizer_waits_for_what_is_not_copied_and_helps(trainer: Trainer, held: threading.Event) -> None:
    values = trainer.values()
    assert trainer.memory.save(trainer.state(), 1)
    copy = begun(trainer)

    def let_go() -> None:
        """Once all is copied but the one piece that the thread holds, and the step waits for that."""
        while sum(copy._left.values()) > state_copy.PIECE or not copy._waiting:
            time.sleep(0.001)
        held.set()

    helped = threading.Thread(target=let_go, daemon=True)
    helped.start()
    trainer.step()
    helped.join(10)
    trainer.memory.finish()
    assert trainer.memory.waited_s > 0.0
    assert trainer.memory.safe_step == 1
    with torch.no_grad():
        trainer.memory.load(trainer.state())
    assert same(trainer.values(), values)


def test_a_piece_that_nobody_finishes_holds_training_up_for_a_time_only(trainer: Trainer, held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_checkpoints, "WAIT_S", 0.01)
    assert trainer.memory.save(trainer.state(), 1)
    begun(trainer)
    trainer.step()
    held.set()
    trainer.memory.finish()
    assert trainer.memory.safe_step == -1, "a copy that nobody waited for to the end does not count"


def test_what_no_optimizer_guards_is_copied_before_save_returns(trainer: Trainer, held: threading.Event) -> None:
    assert trainer.memory.save(trainer.state(), 1)
    trainer.statistics.fill_(7)
    held.set()
    trainer.memory.finish()
    found = trainer.memory.load(trainer.state())
    assert found is not None
    assert trainer.statistics.tolist() == [1, 1, 1]


def test_a_caller_that_waits_itself_has_all_copied_beside_its_work(trainer: Trainer, held: threading.Event) -> None:
    assert trainer.memory.save(trainer.state(), 1, caller_waits=True)
    held.set()
    trainer.memory.wait()
    trainer.statistics.fill_(7)
    trainer.memory.finish()
    assert trainer.memory.load(trainer.state()) is not None
    assert trainer.statistics.tolist() == [1, 1, 1]


def test_a_state_that_somebody_changes_meanwhile_is_no_checkpoint(trainer: Trainer, held: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    assert trainer.memory.save(trainer.state(), 1)
    with torch.no_grad():
        trainer.parameters[0].add_(1)  # no step of the optimizer
    held.set()
    trainer.memory.finish()
    assert trainer.memory.safe_step == -1
    assert "'state.model.p0' was changed while it was being copied" in caplog.text


def test_the_slot_that_is_older_is_written_and_a_torn_one_is_not_seen(trainer: Trainer, held: threading.Event, path: Path) -> None:
    held.set()
    trainer.saved(1)
    values = trainer.saved(2)
    held.clear()
    assert trainer.memory.save(trainer.state(), 3)  # which stands, as if its process were killed
    copy = path.with_name("copy.memory")
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    held.set()
    other = successor(copy)
    found = other.memory.load(other.state())
    assert found is not None
    assert found.step == 2
    assert same(other.values(), values)
    assert "nothing whole is there" in found.skipped[0]
    other.memory.close()


def test_a_slot_that_was_never_filled_is_nothing_that_was_passed_over(trainer: Trainer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Any, ...]] = []
    monkeypatch.setattr("eagle_eye.training.checkpoint.fetched_copies.FetchedCopies.tell", lambda _, step, tier, further=(): told.append((step, tier, further)))
    trainer.saved(1)
    trainer.memory.close()
    other = successor(path)
    found = other.memory.load(other.state())
    assert found is not None
    assert (found.step, found.skipped, told) == (1, (), [])
    other.memory.close()


@pytest.mark.parametrize("flipped", [(2,), (1, 2)])
def test_a_flipped_bit_is_found_and_the_other_slot_is_loaded(trainer: Trainer, path: Path, flipped: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    values = trainer.saved(1)
    trainer.saved(2)
    trainer.memory.close()
    for step in flipped:
        flip(path, step)
    other = successor(path)
    before = other.values()
    found = other.memory.load(other.state())
    assert "was changed since it was written (digest of bytes" in caplog.text
    assert "step 2" in caplog.text
    assert (found.step if found else None) == (None if len(flipped) > 1 else 1)
    assert same(other.values(), values if found else before), "nothing is changed where nothing is whole"
    other.memory.close()


def test_a_changed_description_is_found(trainer: Trainer, path: Path) -> None:
    trainer.saved(1)
    trainer.memory.close()
    segment = MemorySegment.open(path)
    slot = next(slot for slot in range(2) if segment.memory[memory_segment.PAGE + slot * segment.slot_bytes])
    segment.memory[2 * memory_segment.PAGE + slot * segment.slot_bytes + 20] ^= 1  # in its table
    with pytest.raises(TornCopy, match="digest"):
        segment.read(slot)
    segment.close()


def test_a_copy_that_is_too_new_is_not_loaded(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.saved(1)
    trainer.saved(2)
    older = trainer.memory.load(trainer.state(), at_most=1)
    assert older is not None
    assert (older.step, "starts again from step 1" in older.skipped[0]) == (1, True)
    monkeypatch.setenv("EAGLE_EYE_RESUME_STEP", "0")
    assert trainer.memory.load(trainer.state()) is None
    assert trainer.memory.safe_step == -1


def test_a_copy_that_is_not_finite_is_not_loaded(trainer: Trainer) -> None:
    trainer.saved(1)
    with torch.no_grad():
        trainer.parameters[2][5] = float("nan")
    for step in (2, 3, 4):
        trainer.saved(step)
    assert trainer.memory.safe_step == 1, "it stays while there is nothing better"
    found = trainer.memory.load(trainer.state())
    assert found is not None
    assert (found.step, "not finite" in found.skipped[0]) == (1, True)


def test_a_copy_of_an_older_step_that_is_not_finite_costs_no_newer_one(trainer: Trainer, path: Path) -> None:
    values = trainer.saved(10)
    with torch.no_grad():
        trainer.parameters[2][5] = float("nan")
    trainer.saved(5)
    assert trainer.memory.safe_step == 10
    trainer.memory.close()
    other = successor(path)
    found = other.memory.load(other.state())
    assert found is not None
    assert found.step == 10
    assert same(other.values(), values)
    other.memory.close()


def test_that_copies_are_not_finite_is_told_once_with_the_tensor(trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    trainer.saved(1)
    finite = trainer.parameters[2][5].item()
    for value in (float("inf"), float("nan"), finite, float("inf")):
        with torch.no_grad():
            trainer.parameters[2][5] = value
        trainer.optimizer.state.clear()
        assert trainer.memory.save(trainer.state(), 2)
        trainer.memory.finish()
    told = [record.message for record in caplog.records if "will not be loaded" in record.message]
    assert len(told) == 2
    assert all("'state.model.p2'" in text for text in told)
    assert "the newest that will be is that of step 1" in told[0]


@pytest.mark.parametrize(("changed", "step"), [(None, 1), (float("inf"), None), (1.0, None)])
def test_a_mask_is_a_mask_however_many_pieces_it_is_copied_in(path: Path, changed: float | None, step: int | None) -> None:
    mask = torch.zeros(1, 1 << 20)
    mask[0, : 1 << 19] = -float("inf")
    if changed is not None:
        mask[0, -1] = changed
    memory = MemoryCheckpoints(path=path)
    assert memory.prepare({"mask": mask})
    assert memory.save({"mask": mask}, 1)
    memory.finish()
    found = memory.load({"mask": torch.empty_like(mask)})
    assert (None if found is None else found.step) == step
    memory.close()


def test_another_rank_s_copy_is_loaded_only_where_all_hold_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as larger:
        larger.setenv("WORLD_SIZE", "3")
        trainer = Trainer(path)
        trainer.step()
        trainer.memory.prepare(trainer.state())
        trainer.saved(1)
        assert trainer.memory.load(trainer.state()) is None, "ranks that have not met may hold different steps"
        trainer.memory.close()
    for replicated in (False, True):
        other = successor(path, replicated=replicated)
        found = other.memory.load(other.state())
        assert (found is not None) == replicated
        other.memory.close()


@pytest.mark.parametrize(("theirs", "loaded"), [([[2, 1], [1]], 2), ([[1, -1], [1]], 1), ([[2, 1], [0], [1, -1], [1]], 1), ([[-1, -1], [0], [-1, -1], [1]], None)])
def test_all_ranks_load_the_newest_step_that_each_holds_whole(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, theirs: list[list[int]], loaded: int | None
) -> None:
    """`theirs`: what the other rank says: its steps, then whether the one that was agreed upon is whole there, or else whether it has asked other nodes."""
    trainer.saved(1)
    trainer.saved(2)

    def all_gather(gathered: list[torch.Tensor], ours: torch.Tensor) -> None:
        gathered[0].copy_(ours)
        words = theirs.pop(0)
        gathered[1].fill_(-1)[: len(words)] = torch.tensor([[step, 0] for step in words] if ours.dim() == 2 else words)

    for name, value in {"is_initialized": lambda: True, "get_world_size": lambda: 2, "get_backend": lambda: "gloo", "all_gather": all_gather}.items():
        monkeypatch.setattr(torch.distributed, name, value)
    found = trainer.memory.load(trainer.state())
    assert ((found.step if found else None), theirs) == (loaded, [])


def test_a_state_that_has_grown_is_left_out_once_and_the_older_copy_stays(trainer: Trainer, path: Path) -> None:
    trainer.saved(1)
    grown = {**trainer.state(), "more": torch.zeros(2_000_000)}
    assert not trainer.memory.save(grown, 2)
    trainer.memory.finish()
    older = path.parent / "elsewhere" / path.name
    older.parent.mkdir()
    older.write_bytes(path.read_bytes())
    older.chmod(0o600)
    assert MemorySegment.open(older).read(0).step == 1, "until there is a newer one"
    assert trainer.memory.save(grown, 3)
    trainer.memory.finish()
    found = trainer.memory.load(grown)
    assert found is not None
    assert (found.step, trainer.memory.left_out, sorted(each.name for each in path.parent.iterdir())) == (3, 1, [path.name, "elsewhere"])


def test_a_template_of_another_shape_gets_nothing(trainer: Trainer) -> None:
    trainer.saved(1)
    state = trainer.state()
    state["model"]["p1"] = torch.zeros(8)
    assert trainer.memory.load(state) is None
    assert state["model"]["p1"].tolist() == [0] * 8


def test_while_one_is_copied_the_next_is_left_out(trainer: Trainer, held: threading.Event) -> None:
    assert trainer.memory.save(trainer.state(), 1)
    assert not trainer.memory.save(trainer.state(), 2)
    held.set()
    trainer.memory.finish()
    assert (trainer.memory.safe_step, trainer.memory.left_out) == (1, 1)


def test_a_segment_that_was_removed_is_made_anew(trainer: Trainer, path: Path) -> None:
    trainer.saved(1)
    path.unlink()
    assert not trainer.memory.save(trainer.state(), 2)
    trainer.memory.finish()
    trainer.saved(3)
    assert path.exists()


def test_no_memory_costs_training_nothing_and_is_told_once(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setenv("EAGLE_EYE_SOCKET", "launcher")
    monkeypatch.setenv("EAGLE_EYE_WORKER", "run/a/0")
    monkeypatch.setattr(messages, "send", lambda _, message: told.append(dict(messages.decode(message))))
    monkeypatch.setattr(memory_segment, "free_memory", lambda: 1000)
    trainer, times = Trainer(path), [0.0]
    trainer.step()
    trainer.memory._report._clock = lambda: times[0]
    for step, times[0] in ((1, 0.0), (2, 0.5), (3, 1.5)):  # the second one is not due yet
        assert not trainer.memory.save(trainer.state(), step)
        trainer.memory.finish()
    [message] = told
    names = ("kind", "worker", "errno", "path", "free_bytes", "safe_step", "step")
    assert [message[name] for name in names] == ["memory_checkpoint_failed", "run/a/0", errno.errorcode[errno.ENOMEM], str(path), 1000, -1, 1]
    assert caplog.text.count("no checkpoint in memory") == 1
    monkeypatch.undo()
    times[0] = 10.0
    assert not trainer.memory.save(trainer.state(), 4)
    trainer.memory.finish()
    with caplog.at_level(logging.WARNING):
        trainer.saved(5)
    assert "after 2 attempt(s) that failed" in caplog.text
    trainer.memory.close()


def test_where_no_thread_may_be_started_training_goes_on(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not trainer.memory.save(trainer.state(), 1)
    trainer.step()
    assert trainer.memory.safe_step == -1


def test_an_error_in_the_copying_thread_reaches_nobody(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(state_copy.ctypes, "memmove", lambda *_: 1 / 0)
        trainer.memory.save(trainer.state(), 1)
        trainer.step()
        trainer.memory.finish()
    assert trainer.memory.safe_step == -1
    trainer.memory._report._retry_at = 0.0
    trainer.saved(2)
    assert trainer.memory.safe_step == 2


@pytest.mark.parametrize("mode", [0o644, 0o620])
def test_memory_that_others_may_use_is_not_believed(trainer: Trainer, path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    trainer.saved(1)
    assert path.stat().st_mode & 0o777 == 0o600
    trainer.memory.close()
    path.chmod(mode)
    other = successor(path)
    assert other.memory.load(other.state()) is None
    assert "others may use it" in caplog.text


def test_no_link_is_followed(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))
    trainer = Trainer(path)
    assert not trainer.memory.prepare(trainer.state())
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_forked_child_saves_nothing(trainer: Trainer) -> None:
    memory_checkpoints._forget_all()  # what a fork calls in the child
    assert not trainer.memory.save(trainer.state(), 1)
    assert trainer.memory.load(trainer.state()) is None


def test_without_a_place_nothing_is_done(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EAGLE_EYE_CHECKPOINT_MEMORY", raising=False)
    memory = MemoryCheckpoints()
    assert (memory.save({"a": torch.ones(1)}, 1), memory.load({"a": torch.ones(1)}), memory.left_out) == (False, None, 0)


def test_what_a_checkpoint_cannot_hold_is_the_caller_s_mistake(trainer: Trainer) -> None:
    with pytest.raises(TypeError, match=r"state\.a"):
        trainer.memory.save({"a": object()}, 1)
    with pytest.raises(TypeError, match="sparse"):
        trainer.memory.save({"a": torch.ones(2, 2).to_sparse()}, 1)


def test_tensors_of_all_kinds_come_back(path: Path) -> None:
    kinds = [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]
    state = {str(kind): torch.arange(40).to(kind).view(5, 8) for kind in kinds}
    state |= {"turned": torch.randn(300, 500).t(), "none": torch.empty(0, 3), "one": torch.tensor(3)}
    memory = MemoryCheckpoints(path=path)
    assert memory.prepare(state)
    assert memory.save(state, 1)
    memory.finish()
    empty = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert memory.load(empty) is not None
    assert all(torch.equal(empty[name].view(torch.uint8) if "float8" in name else empty[name], tensor.view(torch.uint8) if "float8" in name else tensor) for name, tensor in state.items())
    memory.close()


@pytest.mark.parametrize("seen", [torch.Tensor.conj, torch._neg_view])
def test_views_of_conjugates_and_negatives_keep_their_values(path: Path, seen: Any) -> None:
    tensor = torch.randn(40, dtype=torch.complex64)
    memory = MemoryCheckpoints(path=path)
    assert memory.prepare({"a": tensor})
    assert memory.save({"a": seen(tensor)}, 1)
    memory.finish()
    plain, view = torch.zeros_like(tensor), seen(torch.zeros_like(tensor))
    for template in (plain, view):
        assert memory.load({"a": template}) is not None
        assert torch.equal(template.resolve_conj().resolve_neg(), seen(tensor).resolve_conj().resolve_neg())
    memory.close()


@pytest.mark.parametrize("turned", [False, True])
def test_no_tensor_takes_the_place_of_another_whose_keys_give_the_same_name(path: Path, turned: bool) -> None:
    def state(first: float) -> dict[str, Any]:
        parts = [("a.b", torch.full((3,), first)), ("a", {"b": torch.full((3,), 2 * first), 0: {"x": torch.full((3,), 4 * first)}}), ("a.b#2", torch.full((3,), 3 * first)), ("a.0", {"x": torch.full((3,), 5 * first)})]
        return dict(parts[::-1] if turned and not first else parts)

    memory = MemoryCheckpoints(path=path)
    assert memory.prepare(state(1.0))
    assert memory.save(state(1.0), 1)
    memory.finish()
    template = state(0.0)
    assert memory.load(template) is not None
    assert [template[key][0].item() for key in ("a.b", "a.b#2")] == [1.0, 3.0]
    assert [template["a"]["b"][0].item(), template["a"][0]["x"][0].item(), template["a.0"]["x"][0].item()] == [2.0, 4.0, 5.0]
    memory.close()


def test_the_table_has_room(trainer: Trainer) -> None:
    layout = StateLayout(trainer.state())
    assert len(layout.table(10**9, finite=True, shard=trainer.memory.shard)) <= layout.table_bytes


def test_random_generators_go_on_where_they_were() -> None:
    import random

    before = random_state()
    drawn = torch.rand(3), random.random(), numpy.random.rand()
    restore_random_state(before)
    again = torch.rand(3), random.random(), numpy.random.rand()
    assert torch.equal(drawn[0], again[0])
    assert drawn[1:] == again[1:]


def test_what_is_older_than_the_trainings_own_checkpoint_changes_nothing(trainer: Trainer) -> None:
    trainer.saved(5)
    before = trainer.values()
    assert trainer.memory.load(trainer.state(), at_least=6) is None
    assert all(map(torch.equal, before, trainer.values()))
    assert (found := trainer.memory.load(trainer.state(), at_least=5)) is not None
    assert found.step == 5


def test_an_optimizer_that_is_there_later_waits_from_then_on(trainer: Trainer, held: threading.Event) -> None:
    trainer.memory.guard([])
    trainer.memory.guard([trainer.optimizer])
    assert trainer.memory.save(trainer.state(), 3)
    copy = begun(trainer)

    def let_go() -> None:
        while not copy._waiting and not held.is_set():
            time.sleep(0.001)
        held.set()

    threading.Thread(target=let_go, daemon=True).start()
    trainer.step()
    held.set()
    trainer.memory.finish()
    assert (trainer.memory.waited_s > 0.0, trainer.memory.safe_step) == (True, 3)


def test_there_is_no_place_without_a_launcher_nor_behind_the_end(path: Path) -> None:
    assert not MemoryCheckpoints().has_place
    memory = MemoryCheckpoints(path=path)
    before, _ = memory.has_place, memory.close()
    assert (before, memory.has_place) == (True, False)
