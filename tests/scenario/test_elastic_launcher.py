"""Real launchers with elastic workers that live on: kills, stops, joins, and a coordinator that dies. No torch."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.errors import TemporaryError
from eagle_eye.types import Event
from fakes.launchers import FakeLeader, Stage, wait_until
from remediation.launcher.launcher_settings import LauncherSettings

LOOP = Path(__file__).parent / "elastic_loop.py"


class ElasticStage(Stage):
    """Nodes on this machine, and what their workers have committed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.commits = directory / "commits"
        self.commits.mkdir()

    def settings(self, node: int, /, until: int = 100_000, **changes: Any) -> LauncherSettings:
        command = (sys.executable, str(LOOP), str(until), str(self.commits))
        return super().settings(node, **{"command": command, "nproc": 3} | changes)

    def worker(self, node: int, slot: int) -> str:
        return f"{self.run}/n{node}/{slot}"

    def pid(self, node: int, slot: int) -> int:
        return next(each["pid"] for each in self.job(node)["workers"] if each["slot"] == slot)

    def said(self, worker: str) -> list[dict[str, Any]]:
        path = self.commits / f"{worker.replace('/', '_')}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def newest(self, worker: str) -> dict[str, Any]:
        return next((words for words in reversed(self.said(worker)) if "step" in words), {"step": -1, "world": 0, "epoch": 0})

    def trains(self, world: int, worker: str) -> int:
        """Wait until that many workers have committed a step together; returns its number."""
        wait_until(f"a step of {world}", lambda: self.newest(worker)["world"] == world)
        return int(self.newest(worker)["step"])

    def stands(self, worker: str) -> bool:
        """No step for several times as long as one takes."""
        before = self.newest(worker)["step"]
        threading.Event().wait(0.2)
        return bool(self.newest(worker)["step"] == before)

    def done(self, reason: str) -> Event:
        """Wait for the account of a transition."""
        return wait_until(
            f"a transition ({reason})",
            lambda: next((event for event in self.events("transition.done") if event.attributes["reason"] == reason), None),
        )


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ElasticStage]:
    made = ElasticStage(tmp_path)
    yield made
    made.close()


def test_a_killed_worker_is_left_out_at_once_and_replaced(stage: ElasticStage) -> None:
    launcher = stage.launch(0, nnodes=(1, 1))
    first = stage.worker(0, 0)
    stage.trains(3, first)
    others = [stage.pid(0, 0), stage.pid(0, 2)]
    os.kill(stage.pid(0, 1), signal.SIGKILL)
    stage.trains(2, first)
    death = stage.done("death")
    assert death.attributes["lost"] == stage.worker(0, 1)
    assert death.attributes["cause"] == stage.events("exit")[0].id
    stage.trains(3, first)
    assert [stage.pid(0, 0), stage.pid(0, 2)] == others, "the others have lived on"
    steps = [words["step"] for words in stage.said(first) if "step" in words]
    assert steps == list(range(len(steps))), "no step is lost or done twice"
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(20) == 130
    assert len(stage.events("exit")) == 1


def test_two_at_once_are_one_event(stage: ElasticStage) -> None:
    stage.launch(0, nnodes=(1, 1), nproc=4)
    first = stage.worker(0, 0)
    stage.trains(4, first)
    for pid in [stage.pid(0, 1), stage.pid(0, 3)]:
        os.kill(pid, signal.SIGKILL)
    stage.trains(2, first)
    assert stage.done("death").attributes["lost"] == f"{stage.worker(0, 1)},{stage.worker(0, 3)}"
    stage.trains(4, first)


def test_a_stopped_worker_is_left_out_and_may_come_back(stage: ElasticStage) -> None:
    stage.launch(0, nnodes=(1, 1))
    first = stage.worker(0, 0)
    stage.trains(3, first)
    stopped = stage.pid(0, 1)
    wait_until("some steps", lambda: stage.newest(first)["step"] > 5)
    os.kill(stopped, signal.SIGSTOP)
    stage.trains(2, first)
    assert stage.done("stall").attributes["lost"] == stage.worker(0, 1)
    os.kill(stopped, signal.SIGCONT)
    stage.trains(3, first)
    assert stage.pid(0, 1) == stopped, "it woke up in time"
    assert [words for words in stage.said(stage.worker(0, 1)) if "fenced" in words], "and found itself fenced"
    assert not stage.events("exit")


def test_a_worker_that_hangs_for_good_is_replaced_by_a_new_one(stage: ElasticStage) -> None:
    stage.launch(0, nnodes=(1, 1))
    first, name = stage.worker(0, 0), stage.worker(0, 1)
    stage.trains(3, first)
    wait_until("some steps", lambda: stage.newest(first)["step"] > 5)
    hanging = stage.pid(0, 1)
    hang = stage.commits / f"hang-{name.replace('/', '_')}"
    hang.touch()
    stage.trains(2, first)
    assert stage.events("worker.excluded")[0].entity.name == name
    wait_until("another process", lambda: stage.pid(0, 1) != hanging)
    hang.unlink()
    stage.trains(3, first)
    stacks = list((stage.directory / "state" / "logs" / stage.run / "n0").glob("1-excluded-*.json"))
    assert "elastic_loop.py" in stacks[0].read_text(), "what it did is kept"


def test_one_that_hangs_where_all_others_wait_is_found_by_meeting_again(stage: ElasticStage) -> None:
    stage.launch(0, nnodes=(1, 1))
    first, name = stage.worker(0, 0), stage.worker(0, 1)
    stage.trains(3, first)
    wait_until("some steps", lambda: stage.newest(first)["step"] > 5)
    wedge = stage.commits / f"wedge-{name.replace('/', '_')}"
    wedge.touch()
    stage.trains(2, first)
    assert stage.events("worker.excluded")[0].entity.name == name
    wedge.unlink()
    stage.trains(3, first)
    steps = [words["step"] for words in stage.said(first) if "step" in words]
    assert steps == list(range(len(steps)))


def test_a_job_ends_with_its_workers(stage: ElasticStage) -> None:
    launcher = stage.launch(0, nnodes=(1, 1), until=30)
    assert launcher.wait(30) == 0
    assert stage.newest(stage.worker(0, 0))["step"] == 29
    assert stage.events("job.finished")
    assert not stage.events("exit")


def test_too_few_workers_are_a_stop_that_says_what_the_job_needs(stage: ElasticStage) -> None:
    launcher = stage.launch(0, nnodes=(1, 1), min_workers=3)
    stage.trains(3, stage.worker(0, 0))
    os.kill(stage.pid(0, 1), signal.SIGKILL)
    assert launcher.wait(30) == 1
    assert "2 worker(s) are left, the job needs 3 (--min-workers)" in stage.events("job.failed")[0].message
    assert "the job needs 3" in stage.said(stage.worker(0, 0))[-1]["halted"]


def test_an_explicit_restart_is_respected(stage: ElasticStage) -> None:
    stage.launch(0, nnodes=(1, 1), heal="restart:3")
    first = stage.worker(0, 0)
    stage.trains(3, first)
    pid = stage.pid(0, 0)
    os.kill(stage.pid(0, 1), signal.SIGKILL)
    wait_until("new processes", lambda: stage.pids(0) and stage.pid(0, 0) != pid)
    wait_until("training", lambda: stage.newest(first).get("pid") not in (None, pid))


def test_two_nodes_go_on_when_the_coordinator_dies_and_take_it_back(stage: ElasticStage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address, nproc=2)
    survivor = stage.worker(1, 0)
    stage.trains(4, survivor)
    pids = [stage.pid(1, 0), stage.pid(1, 1)]
    stage.launchers[0].kill()
    stage.trains(2, survivor)
    stage.launchers[0].wait()
    stage.launch(0, leader=leader.address, nproc=2)
    stage.trains(4, survivor)
    assert [stage.pid(1, 0), stage.pid(1, 1)] == pids, "they have lived on"
    assert stage.layouts()[-1].coordinator == "n1"


def test_a_follower_dies_and_comes_back(stage: ElasticStage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address, nproc=2)
    first = stage.worker(0, 0)
    stage.trains(4, first)
    stage.launchers[1].kill()
    stage.trains(2, first)
    assert stage.done("node lost").attributes["lost"] == f"{stage.worker(1, 0)},{stage.worker(1, 1)}"
    stage.launchers[1].wait()
    stage.launch(1, leader=leader.address, nproc=2)
    stage.trains(4, first)


def test_two_launchers_that_lose_one_without_a_server_stop_and_say_why(stage: ElasticStage) -> None:
    stage.both(nproc=2)
    stage.trains(4, stage.worker(0, 0))
    stage.launchers[1].kill()
    assert stage.launchers[0].wait(30) == 1
    assert "no server was there to say which half goes on" in stage.events("job.failed")[0].message


def test_a_worker_of_another_node_dies(stage: ElasticStage) -> None:
    stage.both(nproc=2)
    first = stage.worker(0, 0)
    stage.trains(4, first)
    os.kill(stage.pid(1, 1), signal.SIGKILL)
    os.kill(stage.pid(0, 1), signal.SIGKILL)
    stage.trains(2, first)
    stage.trains(4, first)
    assert stage.layouts()[-1].nodes == ("n0", "n1")


def test_rebalance_and_resize(stage: ElasticStage, leader: FakeLeader) -> None:
    stage.launch(0, nnodes=(1, 1), leader=leader.address)
    first = stage.worker(0, 0)
    stage.trains(3, first)
    epoch = leader.command("rebalance", {"shares": {first: 1, stage.worker(0, 1): 1, stage.worker(0, 2): 6}}, epoch=0, step="a")["epoch"]
    stage.done("rebalance")
    status = leader.command("status", {}, epoch=0, step="b")
    assert status["elastic"]
    assert status["micro_batches"] == 8
    assert {worker: len(mine) for worker, mine in status["shares"].items()} == {first: 1, stage.worker(0, 1): 1, stage.worker(0, 2): 6}
    leader.command("resize", {"workers": {"n0": 2}}, epoch=epoch, step="c")
    stage.trains(2, first)
    leader.command("resize", {"workers": {"n0": 4}}, epoch=0, step="d")
    stage.trains(4, first)
    assert not stage.events("exit")


def test_a_node_is_left_out_while_the_others_train_on_and_comes_back_when_it_is_released(stage: ElasticStage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address, nproc=2)
    first = stage.worker(0, 0)
    stage.trains(4, first)
    stay, going = [stage.pid(0, 0), stage.pid(0, 1)], [stage.pid(1, 0), stage.pid(1, 1)]
    answer = leader.command("restart", {"exclude": ["n1"]}, epoch=0, step="a")
    layout = stage.layouts()[-1]
    assert (layout.epoch, layout.in_place, layout.excluded, layout.nodes) == (answer["epoch"], True, ("n1",), ("n0",))
    stage.trains(2, first)
    assert stage.done("command").attributes["lost_micro_batches"] == "", "they went between two steps"
    wait_until("their end", lambda: not any(running(pid) for pid in going))
    halted = [words["halted"] for slot in (0, 1) for words in stage.said(stage.worker(1, slot)) if "halted" in words]
    assert halted == ["the job goes on without this worker"] * 2
    assert stage.launchers[1].poll() is None, "the launcher waits"
    leader.command("release", {"node": "n1"}, epoch=0, step="b")
    stage.trains(4, first)
    assert [stage.pid(0, 0), stage.pid(0, 1)] == stay, "the others have lived on"
    assert not {stage.pid(1, 0), stage.pid(1, 1)} & set(going)
    steps = [words["step"] for words in stage.said(first) if "step" in words]
    assert steps == list(range(len(steps))), "no step is lost or done twice"
    assert not stage.events("exit")
    assert stage.launchers[0].poll() is None


def test_a_node_whose_workers_do_not_answer_is_left_out_at_once(stage: ElasticStage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address, nproc=2)
    first = stage.worker(0, 0)
    stage.trains(4, first)
    stay, going = [stage.pid(0, 0), stage.pid(0, 1)], [stage.pid(1, 0), stage.pid(1, 1)]
    for slot in (0, 1):
        (stage.commits / f"hang-{stage.worker(1, slot).replace('/', '_')}").touch()
    wait_until("standstill", lambda: stage.stands(first))

    def taken() -> object:
        with suppress(TemporaryError):  # the others may just be leaving them out by themselves
            return leader.command("restart", {"exclude": ["n1"]}, epoch=0, step="a")
        return None

    wait_until("the command is taken", taken)
    assert stage.layouts()[-1].nodes == ("n0",)
    stage.trains(2, first)
    wait_until("their end", lambda: not any(running(pid) for pid in going))
    assert {event.entity.name for event in stage.events("worker.excluded")} == {stage.worker(1, 0), stage.worker(1, 1)}
    assert [stage.pid(0, 0), stage.pid(0, 1)] == stay
    steps = [words["step"] for words in stage.said(first) if "step" in words]
    assert steps == list(range(len(steps)))


def test_a_frozen_coordinator_is_left_behind_and_what_thaws_writes_nothing(stage: ElasticStage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address, nproc=2)
    survivor, frozen = stage.worker(1, 0), stage.worker(0, 0)
    stage.trains(4, survivor)
    pids = [stage.launchers[0].pid, stage.pid(0, 0), stage.pid(0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    stage.trains(2, survivor)
    others = stage.layouts()[-1].epoch
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    wait_until("its return", lambda: stage.layouts()[-1].nodes == ("n1", "n0"))
    stage.trains(4, survivor)
    assert stage.layouts()[-1].coordinator == "n1"
    epochs = [words["epoch"] for words in stage.said(frozen) if "step" in words]
    assert not [epoch for epoch in epochs if 2 < epoch <= others], "no step without the others"
    layouts = [layout.epoch for layout in stage.layouts()]
    assert len(layouts) == len(set(layouts)), "no epoch is there twice"
