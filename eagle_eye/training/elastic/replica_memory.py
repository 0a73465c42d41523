"""Checkpoints in memory of an elastic job: what is left of its state when all of its workers die at once.

All workers hold the same state. So one of each node keeps it, that of the lowest slot, in one file of the node, which the next one takes over when it dies;
wherever a node is left its memory has the state. Read it is by the one worker that would load from storage: the newest step that is whole, in the memory of
its own node, then of the others, then in storage. The others get it from that worker, so that all begin with the same step.

A copy's number is that of a committed step, and its content the same from every worker: one that was fenced out and writes late does no harm. After a roll-back the
same number means another state: the state says in which epoch the training was rolled back last, and what is of an older history than other copies is left alone.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from eagle_eye.training.checkpoint import checkpoint_directory, roll_backs, storage_restore
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints
from eagle_eye.training.checkpoint.memory_layout import Shard, StepLimits
from eagle_eye.training.checkpoint.memory_restore import CopyTerms
from eagle_eye.training.checkpoint.memory_segment import SUFFIX, VARIABLE
from eagle_eye.training.object_path import StoragePath

from .epoch_protocol import EpochAssignment
from .train_state.train_state import TrainState

_log = logging.getLogger("eagle_eye.elastic")

FIRST_SLOT = "0"
"""Of a node: its file is the one that all elastic workers of the node use, one after another."""
FIRST_TRIES = 5
WHOLE = Shard(0, 1)
"""Whoever loads for all holds all of the state, and agrees with nobody."""


class NewestStored(NamedTuple):
    """The newest of a storage, as its manifest says; compared is the history first."""

    history: int = 0
    step: int = -1


class ReplicaMemory:
    """Of one worker. `every`: steps between two checkpoints in memory, 0: none are kept and none loaded; `data_position`: where the data of a step begin, if
    the model knows. Without a launcher there are none."""

    def __init__(self, optimizer: Any, every: int, data_position: Callable[[int], Any] = lambda _: None) -> None:
        if every < 0:
            raise ValueError(f"memory_every={every}: give a number of steps, or 0 for none")
        self._optimizer, self._every, self._data_position = optimizer, every, data_position
        self._path = node_file(os.environ) if every else None
        self._client: MemoryCheckpoints | None = None
        self._tries = FIRST_TRIES
        """While the file has nothing of this client yet it is tried after each step, so often at the most: the first one has the memory reserved, and behind a roll-back
        what was abandoned is not to stay the newest."""
        self._shard: Shard | None = None
        """Whose state this worker keeps for its node; None: another one does."""
        self._epoch = roll_backs.own_epoch()

    @property
    def has_place(self) -> bool:
        """The launcher has given memory for it, and nothing was found that cannot be kept there."""
        return self._path is not None

    # --- who keeps it ------------------------------------------------------------------------------------------------

    def begin_epoch(self, assignment: EpochAssignment) -> None:
        """Called before the group is formed: who keeps the state no more has given the file back when the first step of the epoch is committed."""
        self._shard, self._epoch = shard_kept_by(assignment.workers, assignment.rank), assignment.epoch
        if self._shard is None:
            self.release()

    def release(self) -> None:
        """Finish the copy under way and give the file back; what is there stays."""
        client, self._client, self._tries = self._client, None, FIRST_TRIES
        if client is not None:
            client.close()

    def wait(self) -> None:
        """Until nothing of the state is copied any more: it is about to change other than by a step of the optimizer."""
        if self._client is not None:
            self._client.wait()

    # --- save --------------------------------------------------------------------------------------------------------

    def after_step(self, train_state: TrainState) -> None:
        """Called after each committed step: begin to copy it, if it is time and this worker is the one. Does not raise."""
        if self._path is None or self._shard is None or (not self._tries and train_state.step % self._every):
            return
        try:
            is_taken = self._opened(self._path, self._shard).save(train_state.state(), train_state.step, data_position=self._data_position(train_state.step))
            self._tries = 0 if is_taken else max(0, self._tries - 1)
        except Exception as error:  # noqa: BLE001 - the training goes on without it
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        _log.warning("no checkpoints of this elastic job are kept in memory: %s", error)
        self.release()
        self._path = None

    def _opened(self, path: Path, shard: Shard) -> MemoryCheckpoints:
        if self._client is None:
            self._client = MemoryCheckpoints([self._optimizer], path, replicated=True)
        self._client.shard, self._client.epoch = shard, self._epoch
        return self._client

    # --- load --------------------------------------------------------------------------------------------------------

    def load(self, train_state: TrainState, home: StoragePath, at_most: int) -> int | None:
        """Load the newest state in memory, or of those that the launchers have stored, if it is newer than what the script has saved in `home`.

        Its step; None if there is none: nothing was changed then. `at_most`: the highest step to load (below 0: no limit). Raises ConfigError as TrainState.load.
        """
        if self._path is None:
            return None
        stored = newest_stored(home, at_most, train_state)
        folder = storage_restore.folder_given()
        from_memory = newest_stored(folder, at_most, train_state) if folder is not None else NewestStored()
        newest = max(stored, from_memory)
        state: dict[str, Any] = train_state.state()
        terms = CopyTerms(partial(_misfit, train_state, newest.history), history_of, of_all_nodes=True)
        try:
            client = self._opened(self._path, WHOLE)
        except Exception as error:  # noqa: BLE001 - an optimizer that is none of torch's, for instance: storage has what is left
            self._give_up(error)
            return None
        try:
            found: Any = client.load(state, at_most=at_most, at_least=newest.step + 1, terms=terms)
        finally:
            if self._shard is None:
                self.release()
            else:
                client.shard = self._shard
        if found is None and from_memory > stored and folder is not None:
            found = storage_restore.restore(state, folder, StepLimits(at_most, stored.step + 1), WHOLE, replicated=True)
        if found is None:
            return None
        train_state.load(found.state)
        return int(found.step)


def node_file(environment: Mapping[str, str]) -> Path | None:
    """The one file of all elastic workers of this node; None where the launcher gives none."""
    given, slot = environment.get(VARIABLE, ""), environment.get("EAGLE_EYE_SLOT", "")
    if not given:
        return None
    path = Path(given)
    ending = f"{slot}{SUFFIX}"
    return path.with_name(path.name.removesuffix(ending) + FIRST_SLOT + SUFFIX) if slot and path.name.endswith(ending) else path


def shard_kept_by(workers: tuple[str, ...], rank: int) -> Shard | None:
    """What the worker of this rank keeps for its node; None if another one does. `workers`: run/node/slot, by rank.

    It goes by the lowest rank of the node: so one node of the job has that of rank 0, which launchers bring to storage.
    """
    node = workers[rank].rpartition("/")[0]
    mates = [other for other, worker in enumerate(workers) if worker.rpartition("/")[0] == node]
    keeper = min(mates, key=lambda other: _slot_of(workers[other]))
    return Shard(min(mates), 1) if keeper == rank else None


def _slot_of(worker: str) -> int:
    slot = worker.rpartition("/")[2]
    return int(slot) if slot.isdecimal() else 0


def newest_stored(home: StoragePath, at_most: int, train_state: TrainState) -> NewestStored:
    """What a restart would load from there, if it is of this model. A storage that does not say has none: memory may have."""
    try:
        entries = checkpoint_directory.entries(home)
    except OSError as error:
        _log.warning("%s does not say which checkpoints it has: %s", home, error)
        return NewestStored()
    fitting = [entry for entry in entries if entry.finite and (at_most < 0 or entry.step <= at_most) and not _misfit(train_state, 0, entry.manifest.rest)]
    return max((NewestStored(history_of(entry.manifest.rest), entry.step) for entry in fitting), default=NewestStored())


def history_of(rest: Any) -> int:
    """In which epoch the training that led to this state was rolled back last; 0: never. `rest`: a state without its tensors."""
    try:
        return int(rest["global"].get("rolled_back_in", 0))
    except (KeyError, TypeError, ValueError, AttributeError):
        return 0


def _misfit(train_state: TrainState, history: int, rest: Any) -> str:
    """Why a state without its tensors is none that this worker can go on from; '' if it is. What lies in an optimizer is compared when it is loaded."""
    try:
        theirs = [sorted(name for name in layer if ":" not in name) for layer in rest["tensors"]]
        groups = len(rest["global"]["groups"])
    except (KeyError, TypeError):
        return "it is not the state of an elastic worker"
    ours = [sorted(entry.name for entry in layer.entries if ":" not in entry.name) for layer in train_state.layers]
    if theirs != ours or groups != len(train_state.global_state()["groups"]):
        return f"it is of another model: {len(theirs)} layers and {groups} groups of parameters there, {len(ours)} and {len(train_state.global_state()['groups'])} here, or other names"
    return "" if history_of(rest) >= history else "the training was rolled back behind it"
