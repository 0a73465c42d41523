"""An elastic job that loses a worker and is then resized by its driver, in place: every bit of an undisturbed run."""

import os
import signal
from pathlib import Path

import msgspec

from eagle_eye.clock import SystemClock
from eagle_eye.types import Layout, WorkerStateReport
from fakes.elastic_processes import TORCH
from fakes.elastic_script import SCRIPT, command, steps_of, undisturbed  # noqa: F401 - the cluster writes SCRIPT
from fakes.launchers import DEADLINE_S, FakeLeader, LauncherCluster, wait_until
from fakes.single_job_commander import LeaderCommands
from remediation.frameworks import ElasticWorkers
from remediation.transition import plan_transition

STEPS = 120


def smaller(layout: Layout, workers: int) -> Layout:
    return msgspec.structs.replace(layout, epoch=layout.epoch + 1, placements=layout.placements[:workers], plan="smaller")


def test_a_killed_and_resized_job_ends_with_the_bits_of_an_undisturbed_one(cluster: LauncherCluster, leader: FakeLeader, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    cluster.launch(0, nnodes=(1, 1), nproc=3, command=command(STEPS), preload=TORCH, leader=leader.address)
    wait_until("three workers", lambda: any(each["workers"] == 3 for each in steps_of(tmp_path)))
    os.kill(next(each["pid"] for each in cluster.job(0)["workers"] if each["slot"] == 1), signal.SIGKILL)
    wait_until("two to go on", lambda: any(each["workers"] == 2 for each in steps_of(tmp_path)))
    wait_until("a replacement", lambda: steps_of(tmp_path)[-1]["workers"] == 3)

    layout = cluster.layouts()[-1]
    target = smaller(layout, 2)
    held = [WorkerStateReport(worker=place.worker, node=place.node, step=steps_of(tmp_path)[-1]["step"]) for place in target.placements]
    wanted = plan_transition(layout.job, target.epoch, target, held, micro_batches=6, segments=1, layer_bytes=[1, 0, 1])
    outcome = ElasticWorkers(commander=LeaderCommands(leader), clock=SystemClock()).apply(wanted)
    assert (outcome.state, outcome.plan) == ("done", "smaller"), outcome.detail
    wait_until("two workers", lambda: steps_of(tmp_path)[-1]["workers"] == 2)
    (tmp_path / "slow").unlink()
    assert cluster.launchers[0].wait(DEADLINE_S) == 0

    losses, digest = undisturbed(tmp_path / "alone", STEPS)
    assert [each["step"] for each in steps_of(tmp_path)] == list(range(STEPS)), "no step is lost or done twice"
    assert [each["loss"] for each in steps_of(tmp_path)] == losses
    assert set((tmp_path / "digests").read_text().split()) == {digest}
