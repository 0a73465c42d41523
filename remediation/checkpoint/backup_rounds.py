"""The part of one node in the rounds of copies (round_leader.py): which checkpoint it sends, and which of its own stay in its memory because other nodes rely on them.

If a node is lost, its shard comes back with the step of the last round. Nodes whose copies lay on the lost one have that step in their own memory alone: it stays there
until the next round is over, however often the training saves meanwhile.
"""

from dataclasses import dataclass

import msgspec

from eagle_eye.training.checkpoint.memory_segment import SlotHold

from .copy_files import CopyFiles
from .copy_states import SAFE, Copies, CopyState, Place, newest_whole
from .round_leader import ROUND_S, Round, RoundEnd

HOLD_S = 15.0
"""A copy that is due, or read, or relied on, stays for so long: a launcher that was killed holds none for longer."""
FIRST_S = 5.0
"""While nothing is agreed yet, what is chosen stays so long for a neighbour that has not asked yet: other nodes may choose the same."""
ALONE_S = 2 * ROUND_S
"""A node whose round has ended, and that is told no new one for so long, goes on by itself."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The checkpoint of a segment in this round."""

    step: int
    since: float


class BackupRounds:
    """Of one node. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._epoch = 0
        self._round = Round()
        self._kept = -1
        """The step that all have on a second node, or had in the epoch before."""
        self._chosen: dict[str, _Chosen] = {}
        self._newest = -1
        self._settled = -1
        """Step of this round's copy, once it is on the other node; -1 before."""
        self._heard_at = float("-inf")
        self._held: dict[tuple[str, SlotHold], tuple[int, int, float]] = {}
        """(segment, why) → slot and sequence of the copy that is to stay, and when that was written there last."""

    def look(self, copies: Copies, epoch: int, every: int, now: float) -> float | None:
        """Choose; seconds that this round's copy took, when it has just come to its end here, else None."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._begin(Round(), now)
        before, self._newest = self._newest, max((copy.step for copy in newest_whole(copies).values()), default=-1)
        if self._newest < before:  # the training was rolled back: what it has now is copied at once
            self._begin(msgspec.structs.replace(self._round, target=0), now)
        if self.is_over and now - self._heard_at > ALONE_S:
            self._begin(Round(number=self._round.number, target=(self._newest // every + 1) * every, agreed=self._settled), now)
        self._choose(copies, now)
        if self.is_over or not self._is_settled(copies):
            return None
        self._settled = min(chosen.step for chosen in self._chosen.values())
        return now - min(chosen.since for chosen in self._chosen.values())

    def is_chosen(self, file: str, step: int) -> bool:
        """Whether that step is the one to copy of this segment."""
        return file in self._chosen and self._chosen[file].step == step

    @property
    def agreed(self) -> int:
        """The newest step that all nodes have on a second one, in this epoch; -1: there is none."""
        return self._round.agreed

    def common(self, now: float) -> int | None:
        """The step that all nodes have now, -1 before there is one; None where it is not known, since rounds do not go on."""
        return None if now - self._heard_at > ALONE_S else self.agreed

    @property
    def is_over(self) -> bool:
        """This round, for this node: it waits for the next one."""
        return self._settled >= 0

    def to_tell(self, node: str, every: int, wait_s: float) -> RoundEnd | None:
        """What the first node is to be told now; None: nothing."""
        if not self.is_over:
            return None
        return RoundEnd(node=node, epoch=self._epoch, number=self._round.number, step=self._settled, newest=self._newest, every=every, wait_s=wait_s)

    def answered(self, epoch: int, answer: Round, now: float) -> None:
        """By the first node."""
        if epoch == self._epoch and answer.number > self._round.number:
            self._begin(answer, now)

    def hold(self, files: CopyFiles, copies: Copies, now: float) -> None:
        """What is relied on stays: the step that all have, and this round's once it is on the other node; the first ones are held from the beginning, for a while."""
        wanted: dict[tuple[str, SlotHold], Place] = {}
        for place, copy in copies.items():
            if copy.state in {CopyState.PENDING, CopyState.BROKEN}:
                continue
            if copy.step == self._kept:
                wanted[place.file, SlotHold.KEPT] = place
            if self.is_chosen(place.file, copy.step) and (copy.state in SAFE or (self._kept < 0 and now - self._chosen[place.file].since < FIRST_S)):
                wanted[place.file, SlotHold.SENT] = place
        for (file, why), place in wanted.items():
            held = (place.slot, copies[place].sequence)
            before = self._held.get((file, why))
            if (before is None or before[:2] != held or now - before[2] > HOLD_S / 3) and (segment := files.segment(file)) is not None:
                segment.hold(*held, HOLD_S, why)
                self._held[file, why] = (*held, now)
        self._held = {key: held for key, held in self._held.items() if key in wanted}

    def _begin(self, round_: Round, now: float) -> None:
        self._round, self._chosen, self._settled, self._heard_at = round_, {}, -1, now
        if round_.agreed >= 0:
            self._kept = round_.agreed

    def _choose(self, copies: Copies, now: float) -> None:
        """Of each segment the first whole checkpoint at or behind the target. One that was written anew before it was sent is chosen no more."""
        if self.is_over:
            return
        whole: dict[str, dict[int, int]] = {}
        for place, copy in copies.items():
            if copy.state not in {CopyState.PENDING, CopyState.BROKEN} and copy.step >= self._round.target:
                whole.setdefault(place.file, {})[copy.sequence] = copy.step
        self._chosen = {file: chosen for file, chosen in self._chosen.items() if chosen.step in whole.get(file, {}).values()}
        for file, steps in whole.items():
            first = min(steps) if self._round.target else max(steps)
            self._chosen.setdefault(file, _Chosen(steps[first], now))

    def _is_settled(self, copies: Copies) -> bool:
        """Of all workers of this node."""
        there = {place.file for place, copy in copies.items() if copy.state in SAFE and self.is_chosen(place.file, copy.step)}
        return bool(there) and there >= {place.file for place in copies}
