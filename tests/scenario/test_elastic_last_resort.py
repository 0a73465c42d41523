"""What is left when a job cannot go on in place: too few workers and no room for their state; a state that nobody holds any more."""

import json
import os
import resource
import signal
from pathlib import Path

from eagle_eye.training import checkpoint
from fakes.elastic_script import SCRIPT, command, steps_of, undisturbed  # noqa: F401 - the stage writes SCRIPT
from fakes.launchers import FakeLeader, Stage, living, wait_until
from fakes.rehearsed import TORCH

STEPS = 60
SAVE_EVERY = 5
LITTLE = 16_384
"""Bytes that a file may have on the full disk: enough for logs, and not for the state."""


def fill(pid: int, size: int) -> None:
    """From now on no file of the process can grow beyond `size` bytes."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))


def test_too_few_workers_and_a_full_disk_cost_nothing_but_the_wait_for_room(stage: Stage, tmp_path: Path) -> None:
    kept, slow = tmp_path / "kept", tmp_path / "slow"
    slow.touch()
    given = {"nnodes": (1, 1), "command": command(STEPS, SAVE_EVERY), "preload": TORCH, "checkpoint_dir": kept}
    launcher = stage.launch(0, nproc=3, min_workers=3, **given)
    wait_until("steps after a checkpoint", lambda: len(steps_of(tmp_path)) > SAVE_EVERY + 1)
    pids = {each["slot"]: each["pid"] for each in stage.job(0)["workers"]}
    for slot in (0, 2):
        fill(pids[slot], LITTLE)
    os.kill(pids[1], signal.SIGKILL)

    refused = wait_until("a word", lambda: stage.events("checkpoint.refused"))[0]
    older = checkpoint.entries(kept)[-1].step
    reached = int(refused.attributes["step"])
    assert SAVE_EVERY <= older <= reached
    for words in (f"the state of step {reached} cannot be saved to {kept}", "File too large", "kB, ", " are free", "make room", f"that of step {older}"):
        assert words in refused.message
    assert (checkpoint.load(kept) or ({}, -1))[1] == older, "the checkpoint before is whole"
    assert not list(kept.glob(".*")), "no half of another lies beside it"
    saver = int(refused.message.partition("Process ")[2].split()[0])
    assert saver in living(stage.run)
    assert launcher.poll() is None, "the job waits for room"

    for slot in (0, 2):
        if pids[slot] in living(stage.run):
            fill(pids[slot], resource.RLIM_INFINITY)
    assert launcher.wait(30) == 1
    failed = stage.events("job.failed")[0].message
    assert "2 worker(s) are left, the job needs 3 (--min-workers)" in failed
    assert f"its state was saved to {kept}" in failed
    assert checkpoint.entries(kept)[-1].step == reached

    committed = len(steps_of(tmp_path))
    stage.run = f"r{os.getpid()}"  # another one: a run is unique, and the path of a socket is short
    slow.unlink()
    assert stage.launch(0, nproc=2, **given).wait(60) == 0
    assert steps_of(tmp_path)[committed]["step"] == reached, "nothing that was done is done again"
    losses, digest = undisturbed(tmp_path / "alone", STEPS)
    assert all(each["loss"] == losses[each["step"]] for each in steps_of(tmp_path))
    assert set((tmp_path / "digests").read_text().split()) == {digest}


def test_a_state_that_nobody_holds_any_more_is_the_newest_checkpoints_and_it_is_said_whose_it_was(stage: Stage, leader: FakeLeader, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    as_it_gives = [{"worker": 0, "step": step, "phase": "regrouping", "act": "kill"} for step in range(STEPS)]
    launcher = stage.launch(
        0, nnodes=(1, 1), nproc=1, command=command(STEPS, SAVE_EVERY), preload=TORCH, leader=leader.address,
        environment={**os.environ, "EAGLE_EYE_FAULTS": json.dumps(as_it_gives)},
    )  # fmt: skip
    wait_until("steps after a checkpoint", lambda: len(steps_of(tmp_path)) > SAVE_EVERY + 1)
    leader.command("resize", {"workers": {"n0": 2}}, epoch=0, step="a")
    lost = wait_until("a word", lambda: stage.events("state.lost"))[0]
    loaded = int(lost.attributes["loaded"])
    assert lost.attributes["holders"] == f"{stage.run}/n0/0"
    assert lost.attributes["layers"] == "0,1,2"
    assert loaded >= SAVE_EVERY
    assert loaded % SAVE_EVERY == 0
    assert f"no living worker holds the state of layers 0 to 2 any more: {stage.run}/n0/0 held it last, of step {lost.attributes['step']}" in lost.message
    assert f"the newest checkpoint, of step {loaded}, is used: {int(lost.attributes['step']) - loaded} step(s) are lost" in lost.message
    slow.unlink()
    assert launcher.wait(60) == 0

    losses, digest = undisturbed(tmp_path / "alone", STEPS)
    told = steps_of(tmp_path)
    again = next(place for place in range(1, len(told)) if told[place]["step"] <= told[place - 1]["step"])
    assert told[again]["step"] == loaded
    assert told[again - 1]["step"] + 2 == int(lost.attributes["step"]), "it had done one more, and died before it told of it"
    assert all(each["loss"] == losses[each["step"]] for each in told)
    assert set((tmp_path / "digests").read_text().split()) == {digest}
