"""An elastic job of which nobody is left goes on from the step in memory: of its own node, of another one, and not from the one that was stored last."""

import os
import signal
from pathlib import Path

import pytest

from eagle_eye.training import checkpoint
from fakes.elastic_processes import TORCH
from fakes.elastic_script import SCRIPT, command, steps_of, undisturbed  # noqa: F401 - the cluster writes SCRIPT
from fakes.launchers import DEADLINE_S, LauncherCluster, wait_until

STEPS, SAVE_EVERY = 60, 20
MORE = 6
"""Steps behind the checkpoint in storage."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], str]:
    """Losses and digest of a worker alone."""
    return undisturbed(tmp_path_factory.mktemp("reference") / "alone", STEPS)


@pytest.fixture(autouse=True)
def slow(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()


def memory_of(cluster: LauncherCluster) -> list[Path]:
    return sorted(Path("/dev/shm").glob(f"eagle-eye-*-{cluster.run}-*.memory"))


def check_went_on(cluster: LauncherCluster, home: Path, expected: tuple[list[float], str]) -> int:
    """From a step in memory, which it returns, and to the end with the bits of an undisturbed run."""
    lost = cluster.event("state.lost")
    reached, loaded = int(lost.attributes["step"]), int(lost.attributes["loaded"])
    assert loaded > SAVE_EVERY + 1, "the stored one was older"
    assert reached - loaded <= 2, "the one that was being copied, and the one before that was not told yet"
    (home / "slow").unlink()
    for launcher in cluster.launchers.values():
        wait_until("the end of the job", lambda each=launcher: each.poll() is not None)
    assert 0 in {launcher.returncode for launcher in cluster.launchers.values()}
    check_same(home, expected)
    return loaded


def check_same(home: Path, expected: tuple[list[float], str]) -> None:
    """All is done, with the bits of an undisturbed run."""
    losses, digest = expected
    steps = steps_of(home)
    assert all(each["loss"] == losses[each["step"]] for each in steps)
    assert steps[-1]["step"] == STEPS - 1
    assert set((home / "digests").read_text().split()) == {digest}


def test_all_workers_are_killed_between_two_stored_checkpoints(cluster: LauncherCluster, tmp_path: Path, expected: tuple[list[float], str]) -> None:
    kept = tmp_path / "kept"
    cluster.launch(0, nnodes=(1, 1), nproc=2, command=command(STEPS, SAVE_EVERY, 1), preload=TORCH, checkpoint_dir=kept)
    wait_until("steps after a checkpoint", lambda: len(steps_of(tmp_path)) > SAVE_EVERY + MORE)
    assert [entry.step for entry in checkpoint.entries(kept)] == [SAVE_EVERY]
    assert [path.name.rpartition("-")[2] for path in memory_of(cluster)] == ["0.memory"], "one worker keeps it for all of the node"
    for pid in cluster.pids(0):
        os.kill(pid, signal.SIGKILL)
    check_went_on(cluster, tmp_path, expected)
    assert not memory_of(cluster), "it goes with the job"


def test_a_job_that_was_ended_is_gone_on_with_from_the_step_in_memory(cluster: LauncherCluster, tmp_path: Path, expected: tuple[list[float], str]) -> None:
    kept = tmp_path / "kept"
    given = {"nnodes": (1, 1), "nproc": 2, "command": command(STEPS, SAVE_EVERY, 1), "preload": TORCH, "checkpoint_dir": kept}
    launcher = cluster.launch(0, **given)
    wait_until("steps after a checkpoint", lambda: len(steps_of(tmp_path)) > SAVE_EVERY + MORE)
    launcher.terminate()
    assert launcher.wait(DEADLINE_S)
    assert not memory_of(cluster)
    done = len(steps_of(tmp_path))
    (tmp_path / "slow").unlink()
    cluster.run = f"r{os.getpid()}"  # another run
    assert cluster.launch(0, **given).wait(DEADLINE_S) == 0
    assert SAVE_EVERY + 1 < steps_of(tmp_path)[done]["step"] <= done
    check_same(tmp_path, expected)


def test_a_node_whose_memory_is_gone_goes_on_with_that_of_another_one(cluster: LauncherCluster, tmp_path: Path, expected: tuple[list[float], str]) -> None:
    kept = tmp_path / "kept"
    cluster.both(nnodes=(2, 2), nproc=1, command=command(STEPS, SAVE_EVERY, 1), preload=TORCH, checkpoint_dir=kept)
    wait_until("steps after a checkpoint", lambda: len(steps_of(tmp_path)) > SAVE_EVERY + MORE)
    pids = cluster.pids(0) + cluster.pids(1)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for path in memory_of(cluster):
        if f"-{cluster.run}-n0-" in path.name:
            path.unlink()  # its copies, and those that it keeps for the other one
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    loaded = check_went_on(cluster, tmp_path, expected)
    [told] = [event for event in cluster.events("checkpoint.loaded") if event.attributes["step"] == str(loaded)]
    assert (told.attributes["tier"], told.attributes["source"]) == ("neighbour", "n1")
