"""Which steps of a run were abandoned by its roll-backs, however late somebody comes upon a copy of them.

A roll-back begins an epoch, and the training goes on from a step at or before the one that it names. Copies in memory of later steps, made in earlier epochs, stay where they are (in
the slots of workers, on other nodes) until they are written over. Each layout of the job carries its roll-backs, so that whoever looks at copies (a worker that
loads, a launcher that sends or stores them) knows which of them nobody may go on from. It is written nowhere but there: nothing has to be reached, and
whoever was cut off and writes such a copy late writes it under his old epoch.

Needs no torch: launchers use it, too.
"""

import os
from collections.abc import Mapping

VARIABLE = "EAGLE_EYE_ROLLED_BACK"
"""The roll-backs of the run, for its workers."""
RollBacks = tuple[tuple[int, int], ...]
"""(epoch that began by one, highest step to go on from), in the order of their epochs. Their steps rise, too."""


def with_roll_back(before: RollBacks, epoch: int, step: int) -> RollBacks:
    """Those of a layout of that epoch; `step` below 0: it begins by none. What is older and reaches less far back says nothing more."""
    return before if step < 0 else (*(each for each in before if each[1] < step), (epoch, step))


def abandoned(roll_backs: RollBacks, epoch: int, step: int) -> str:
    """Why nobody goes on from what the training of that epoch had at that step; '' if somebody may. `epoch` 0: it is not known, and older than all."""
    return next((f"the job went back from it to step {limit} in epoch {began}" for began, limit in roll_backs if epoch < began and limit < step), "")


def text_of(roll_backs: RollBacks) -> str:
    """As workers are told."""
    return ",".join(f"{epoch}:{step}" for epoch, step in roll_backs)


def given(environment: Mapping[str, str] = os.environ) -> RollBacks:
    """Those that the launcher told this worker; none without one."""
    pairs = (pair.partition(":") for pair in environment.get(VARIABLE, "").split(",") if pair)
    return tuple((int(epoch), int(step)) for epoch, _, step in pairs)


def own_epoch(environment: Mapping[str, str] = os.environ) -> int:
    """In which this process was started; 0 without a launcher."""
    return int(environment.get("EAGLE_EYE_EPOCH") or 0)
