"""What is left when a job cannot go on in place: too few workers, and no room for their state; a state that nobody holds any more."""

import contextlib
import json
import os
import resource
import signal
from pathlib import Path

import pytest

from eagle_eye.training import checkpoint
from fakes.elastic_processes import TORCH
from fakes.elastic_script import SCRIPT, command, steps_of, undisturbed  # noqa: F401 - the cluster writes SCRIPT
from fakes.launchers import DEADLINE_S, FakeLeader, LauncherCluster, living, wait_until

STEPS = 60
SAVE_EVERY = 5
LITTLE = 16_384
"""Bytes that a file may have on the full disk: enough for logs, and not for the state."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], str]:
    """Losses and digest of a worker alone."""
    return undisturbed(tmp_path_factory.mktemp("reference") / "alone", STEPS)


def check(home: Path, expected: tuple[list[float], str]) -> None:
    losses, digest = expected
    assert all(each["loss"] == losses[each["step"]] for each in steps_of(home))
    assert set((home / "digests").read_text().split()) == {digest}


def go_on(cluster: LauncherCluster, step: int, **given: object) -> None:
    """The job is started again, and begins with `step`."""
    committed = len(steps_of(cluster.directory))
    cluster.run = f"r{os.getpid()}"  # another one: a run is unique, and the path of a socket is short
    assert cluster.launch(0, nproc=2, **given).wait(DEADLINE_S) == 0
    assert steps_of(cluster.directory)[committed]["step"] == step, "nothing that was done is done again"


def fill(pid: int, size: int) -> None:
    """From now on no file of the process can grow beyond `size` bytes."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))


def test_too_few_workers_and_a_full_disk_cost_nothing_but_the_wait_for_room(
    cluster: LauncherCluster, tmp_path: Path, expected: tuple[list[float], str]
) -> None:
    kept, slow = tmp_path / "kept", tmp_path / "slow"
    slow.touch()
    given = {"nnodes": (1, 1), "command": command(STEPS, SAVE_EVERY), "preload": TORCH, "checkpoint_dir": kept}
    launcher = cluster.launch(0, nproc=3, min_workers=3, **given)
    wait_until("steps after a checkpoint", lambda: len(steps_of(tmp_path)) > SAVE_EVERY + 1)
    pids = {each["slot"]: each["pid"] for each in cluster.job(0)["workers"]}
    for slot in (0, 2):
        fill(pids[slot], LITTLE)
    os.kill(pids[1], signal.SIGKILL)

    refused = cluster.event("checkpoint.refused")
    older = checkpoint.entries(kept)[-1].step
    reached = int(refused.attributes["step"])
    assert SAVE_EVERY <= older <= reached
    for words in (f"the state of step {reached} cannot be saved to {kept}", "File too large", "kB, ", " are free", "make room", f"that of step {older}"):
        assert words in refused.message
    assert (checkpoint.load(kept) or ({}, -1))[1] == older, "the checkpoint before is whole"
    assert not list(kept.glob(".*")), "no half of another lies beside it"
    saver = int(refused.message.partition("Process ")[2].split()[0])
    assert saver in living(cluster.run)
    assert launcher.poll() is None, "the job waits for room"

    for slot in (0, 2):
        with contextlib.suppress(ProcessLookupError):  # one of them saves, and the other is gone or goes at this moment
            fill(pids[slot], resource.RLIM_INFINITY)
    assert launcher.wait(DEADLINE_S) == 1
    failed = cluster.event("job.failed").message
    assert "2 worker(s) are left, the job needs 3 (--min-workers)" in failed
    assert f"its state was saved to {kept}" in failed
    assert checkpoint.entries(kept)[-1].step == reached

    slow.unlink()
    go_on(cluster, reached, **given)
    check(tmp_path, expected)


def test_a_newer_epoch_during_the_recovery_that_leaves_too_few_is_a_stop_that_loses_nothing(
    cluster: LauncherCluster, tmp_path: Path, expected: tuple[list[float], str]
) -> None:
    kept, slow, struck = tmp_path / "kept", tmp_path / "slow", 7
    slow.touch()  # so that all have applied the step before when the first dies
    faults = [{"worker": 1, "step": struck, "phase": "computing", "act": "kill"}, {"worker": 2, "step": struck, "phase": "regrouping", "act": "kill"}]
    given = {"nnodes": (1, 1), "command": command(STEPS), "preload": TORCH, "checkpoint_dir": kept}
    launcher = cluster.launch(0, nproc=3, min_workers=2, respawns=0, environment={**os.environ, "EAGLE_EYE_FAULTS": json.dumps(faults)}, **given)
    assert launcher.wait(DEADLINE_S) == 1
    failed = cluster.event("job.failed").message
    assert "1 worker(s) are left, the job needs 2 (--min-workers)" in failed
    assert f"its state was saved to {kept}" in failed
    first, second = sorted(cluster.events("exit"), key=lambda event: event.time)
    assert int(second.attributes["epoch"]) > int(first.attributes["epoch"]), "the second died in the epoch that the first had made necessary"
    assert [entry.step for entry in checkpoint.entries(kept)] == [struck]
    slow.unlink()
    go_on(cluster, struck, **given)
    check(tmp_path, expected)


def test_a_state_that_nobody_holds_any_more_is_the_newest_checkpoints_and_it_is_said_whose_it_was(
    cluster: LauncherCluster, leader: FakeLeader, tmp_path: Path, expected: tuple[list[float], str]
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    as_it_gives = [{"worker": 0, "step": step, "phase": "regrouping", "act": "kill"} for step in range(STEPS)]
    launcher = cluster.launch(
        0, nnodes=(1, 1), nproc=1, command=command(STEPS, SAVE_EVERY), preload=TORCH, leader=leader.address,
        environment={**os.environ, "EAGLE_EYE_FAULTS": json.dumps(as_it_gives)},
    )  # fmt: skip
    wait_until("steps after a checkpoint", lambda: len(steps_of(tmp_path)) > SAVE_EVERY + 1)
    leader.command("resize", {"workers": {"n0": 2}}, epoch=0, step="a")
    lost = cluster.event("state.lost")
    loaded = int(lost.attributes["loaded"])
    assert lost.attributes["holders"] == f"{cluster.run}/n0/0"
    assert lost.attributes["layers"] == "0,1,2"
    assert loaded >= SAVE_EVERY
    assert loaded % SAVE_EVERY == 0
    assert f"no living worker holds the state of layers 0 to 2 any more: {cluster.run}/n0/0 held it last, of step {lost.attributes['step']}" in lost.message
    assert f"the newest checkpoint, of step {loaded}, is used: {int(lost.attributes['step']) - loaded} step(s) are lost" in lost.message
    slow.unlink()
    assert launcher.wait(DEADLINE_S) == 0

    before = int(lost.attributes["step"]) - 1
    told = [each["step"] for each in steps_of(tmp_path)]
    assert told == [*range(before), *range(loaded, STEPS)], "it had done one more, and died before it told of it"
    check(tmp_path, expected)
