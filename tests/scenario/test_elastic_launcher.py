"""Real launchers with elastic workers that live on: kills, stops, joins, and a coordinator that dies. No torch."""

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.config import StallConfig
from eagle_eye.errors import TemporaryError
from eagle_eye.training import atomic_file
from eagle_eye.types import Event
from fakes.json_lines import json_lines
from fakes.launchers import DEADLINE_S, FakeLeader, LauncherCluster, wait_until
from remediation.launcher.launcher_settings import LauncherSettings

LOOP = Path(__file__).parent / "elastic_loop.py"


class ElasticCluster(LauncherCluster):
    """Nodes on this machine, and what their workers have committed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.commits = directory / "commits"
        self.commits.mkdir()

    def settings(self, node: int, /, until: int = 100_000, **changes: Any) -> LauncherSettings:
        command = (sys.executable, str(LOOP), str(until), str(self.commits))
        return super().settings(node, **{"command": command, "nproc": 3} | changes)

    def strike(self, how: str, step: int) -> None:
        """An order of elastic_loop.py, whole as soon as it is there: workers look for it all the time."""
        atomic_file.replace(self.commits / how, str(step).encode(), durable=False)

    def worker(self, node: int, slot: int) -> str:
        return f"{self.run}/n{node}/{slot}"

    def pid(self, node: int, slot: int) -> int:
        return next(each["pid"] for each in self.job(node)["workers"] if each["slot"] == slot)

    def said(self, worker: str) -> list[dict[str, Any]]:
        return json_lines(self.commits / f"{worker.replace('/', '_')}.jsonl")

    def newest(self, worker: str) -> dict[str, Any]:
        return next((words for words in reversed(self.said(worker)) if "step" in words), {"step": -1, "world": 0, "epoch": 0})

    def trains(self, world: int, worker: str) -> int:
        """Wait until that many workers have committed a step together, from the newest one on; returns its number.

        All steps since then are looked through: on a busy machine a lost worker may be replaced between two looks.
        """
        begin = max(0, len(self.said(worker)) - 1)

        def done() -> list[int]:
            return [words["step"] for words in self.said(worker)[begin:] if "step" in words and words["world"] == world]

        return int(wait_until(f"a step of {world}", done)[-1])

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
def cluster(tmp_path: Path) -> Iterator[ElasticCluster]:
    made = ElasticCluster(tmp_path)
    yield made
    made.close()


def test_a_killed_worker_is_left_out_at_once_and_replaced(cluster: ElasticCluster) -> None:
    launcher = cluster.launch(0, nnodes=(1, 1))
    first = cluster.worker(0, 0)
    cluster.trains(3, first)
    others = [cluster.pid(0, 0), cluster.pid(0, 2)]
    os.kill(cluster.pid(0, 1), signal.SIGKILL)
    cluster.trains(2, first)
    death = cluster.done("death")
    assert death.attributes["lost"] == cluster.worker(0, 1)
    assert death.attributes["cause"] == cluster.event("exit").id
    cluster.trains(3, first)
    assert [cluster.pid(0, 0), cluster.pid(0, 2)] == others, "the others have lived on"
    steps = [words["step"] for words in cluster.said(first) if "step" in words]
    assert steps == list(range(len(steps))), "no step is lost or done twice"
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(DEADLINE_S) == 130
    assert len(cluster.events("exit")) == 1


def test_who_tidies_up_the_run_directory_costs_no_worker_its_place(cluster: ElasticCluster) -> None:
    """The worker that was started next found no launcher."""
    cluster.launch(0, nnodes=(1, 1))
    first = cluster.worker(0, 0)
    cluster.trains(3, first)
    victim, sockets = cluster.pid(0, 1), {path.name for path in cluster.run_dir(0).glob("*-*.sock") if not path.name[-6].isdigit()}
    assert len(sockets) == 2, "the launcher's own"
    shutil.rmtree(cluster.run_dir(0))
    wait_until("its sockets", lambda: sockets <= {path.name for path in cluster.run_dir(0).glob("*.sock")})
    os.kill(victim, signal.SIGKILL)
    cluster.trains(2, first)
    cluster.trains(3, first)
    assert [event.attributes["pid"] for event in cluster.events("exit")] == [str(victim)]


def test_a_micro_batch_that_kills_whoever_computes_it_ends_the_job_after_two_with_its_exception(cluster: ElasticCluster) -> None:
    launcher = cluster.launch(0, nnodes=(1, 1))
    cluster.trains(3, cluster.worker(0, 0))
    step = cluster.newest(cluster.worker(0, 0))["step"] + 20
    cluster.strike("poison", step)
    assert launcher.wait(DEADLINE_S) == 1
    (failed,) = cluster.events("job.failed")
    assert re.search(rf"ValueError: negative length, at elastic_loop.py:\d+ in taste, step {step}: the same as of worker", failed.message)
    assert len(cluster.events("exit")) == 2
    assert cluster.event("exception").attributes["traceback"].count("elastic_loop.py") > 1


@pytest.mark.parametrize("code", [3, 1])
def test_a_micro_batch_that_ends_its_worker_with_an_exit_code_ends_the_job_after_two(cluster: ElasticCluster, code: int) -> None:
    launcher = cluster.launch(0, nnodes=(1, 1))
    cluster.trains(3, cluster.worker(0, 0))
    step = cluster.newest(cluster.worker(0, 0))["step"] + 20
    cluster.strike(f"leave-{code}", step)
    assert launcher.wait(DEADLINE_S) == 1
    (failed,) = cluster.events("job.failed")
    assert f"worker ended with code {code}, step {step}: the same as of worker" in failed.message
    assert len(cluster.events("exit")) == 2


def test_twin_workers_that_end_with_the_same_code_in_different_steps_are_replaced(cluster: ElasticCluster) -> None:
    cluster.launch(0, nnodes=(1, 1))
    first = cluster.worker(0, 0)
    step = cluster.trains(3, first) + 20
    for _ in range(2):
        cluster.strike("leave-once-3", step)
        step = wait_until("all of them again", lambda after=step: (now := cluster.newest(first))["world"] == 3 and now["step"] > after and now["step"]) + 20
    assert [event.attributes["code"] for event in cluster.events("exit")] == ["3", "3"]
    assert not cluster.events("job.failed")


def test_two_at_once_are_one_event(cluster: ElasticCluster) -> None:
    cluster.launch(0, nnodes=(1, 1), nproc=4)
    first = cluster.worker(0, 0)
    cluster.trains(4, first)
    for pid in [cluster.pid(0, 1), cluster.pid(0, 3)]:
        os.kill(pid, signal.SIGKILL)
    cluster.trains(2, first)
    assert cluster.done("death").attributes["lost"] == f"{cluster.worker(0, 1)},{cluster.worker(0, 3)}"
    cluster.trains(4, first)


def test_a_stopped_worker_is_left_out_and_may_come_back(cluster: ElasticCluster) -> None:
    cluster.launch(0, nnodes=(1, 1))
    first = cluster.worker(0, 0)
    cluster.trains(3, first)
    stopped = cluster.pid(0, 1)
    wait_until("some steps", lambda: cluster.newest(first)["step"] > 5)
    os.kill(stopped, signal.SIGSTOP)
    cluster.trains(2, first)
    assert cluster.done("stall").attributes["lost"] == cluster.worker(0, 1)
    os.kill(stopped, signal.SIGCONT)
    cluster.trains(3, first)
    assert cluster.pid(0, 1) == stopped, "it woke up in time"
    assert [words for words in cluster.said(cluster.worker(0, 1)) if "fenced" in words], "and found itself fenced"
    assert not cluster.events("exit")


def test_a_worker_that_hangs_for_good_is_replaced_by_a_new_one(cluster: ElasticCluster) -> None:
    cluster.launch(0, nnodes=(1, 1))
    first, name = cluster.worker(0, 0), cluster.worker(0, 1)
    cluster.trains(3, first)
    wait_until("some steps", lambda: cluster.newest(first)["step"] > 5)
    hanging = cluster.pid(0, 1)
    hang = cluster.commits / f"hang-{name.replace('/', '_')}"
    hang.touch()
    cluster.trains(2, first)
    assert cluster.event("worker.excluded").entity.name == name
    wait_until("another process", lambda: cluster.pid(0, 1) != hanging)
    cluster.trains(3, first)
    stacks = list((cluster.directory / "state" / "logs" / cluster.run / "n0").glob("1-excluded-*.json"))
    assert "elastic_loop.py" in stacks[0].read_text(), "what it did is kept"


def test_twin_one_that_only_cannot_answer_a_fence_is_left_out_and_not_ended(cluster: ElasticCluster) -> None:
    """It waits in one call of C, far longer than it may take to answer and to come back."""
    cluster.launch(0, nnodes=(1, 1), stall=StallConfig(answer_s=0.2, answer_longest_s=0.4, return_s=0.2))
    first, name = cluster.worker(0, 0), cluster.worker(0, 1)
    cluster.trains(3, first)
    busy, killed = cluster.pid(0, 1), cluster.pid(0, 2)
    order = cluster.commits / f"wait-{name.replace('/', '_')}"
    order.touch()
    wait_until("its call", lambda: not order.exists())
    os.kill(killed, signal.SIGKILL)
    assert cluster.event("worker.excluded").entity.name == name
    epoch = cluster.layouts()[-1].epoch
    wait_until("its return", lambda: cluster.newest(name)["epoch"] > epoch)
    cluster.trains(3, first)
    assert cluster.pid(0, 1) == busy, "it came back by itself"
    assert [event.attributes["pid"] for event in cluster.events("exit")] == [str(killed)]


def test_one_that_hangs_where_all_others_wait_is_found_by_meeting_again(cluster: ElasticCluster) -> None:
    cluster.launch(0, nnodes=(1, 1))
    first, name = cluster.worker(0, 0), cluster.worker(0, 1)
    cluster.trains(3, first)
    wait_until("some steps", lambda: cluster.newest(first)["step"] > 5)
    wedge = cluster.commits / f"wedge-{name.replace('/', '_')}"
    wedge.touch()
    cluster.trains(2, first)
    assert cluster.event("worker.excluded").entity.name == name
    cluster.trains(3, first)
    steps = [words["step"] for words in cluster.said(first) if "step" in words]
    assert steps == list(range(len(steps)))


def test_a_job_ends_with_its_workers(cluster: ElasticCluster) -> None:
    launcher = cluster.launch(0, nnodes=(1, 1), until=30)
    assert launcher.wait(DEADLINE_S) == 0
    assert cluster.newest(cluster.worker(0, 0))["step"] == 29
    assert cluster.events("job.finished")
    assert not cluster.events("exit")


def test_too_few_workers_are_a_stop_that_says_what_the_job_needs(cluster: ElasticCluster) -> None:
    launcher = cluster.launch(0, nnodes=(1, 1), min_workers=3)
    cluster.trains(3, cluster.worker(0, 0))
    os.kill(cluster.pid(0, 1), signal.SIGKILL)
    assert launcher.wait(DEADLINE_S) == 1
    assert "2 worker(s) are left, the job needs 3 (--min-workers)" in cluster.event("job.failed").message
    assert "the job needs 3" in cluster.said(cluster.worker(0, 0))[-1]["halted"]


def test_an_explicit_restart_is_respected(cluster: ElasticCluster) -> None:
    cluster.launch(0, nnodes=(1, 1), heal="restart:3")
    first = cluster.worker(0, 0)
    cluster.trains(3, first)
    pid = cluster.pid(0, 0)
    os.kill(cluster.pid(0, 1), signal.SIGKILL)
    wait_until("new processes", lambda: cluster.pids(0) and cluster.pid(0, 0) != pid)
    wait_until("training", lambda: cluster.newest(first).get("pid") not in (None, pid))


def test_two_nodes_go_on_when_the_coordinator_dies_and_take_it_back(cluster: ElasticCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address, nproc=2)
    survivor = cluster.worker(1, 0)
    cluster.trains(4, survivor)
    pids = [cluster.pid(1, 0), cluster.pid(1, 1)]
    cluster.launchers[0].kill()
    cluster.trains(2, survivor)
    cluster.launchers[0].wait()
    cluster.launch(0, leader=leader.address, nproc=2)
    cluster.trains(4, survivor)
    assert [cluster.pid(1, 0), cluster.pid(1, 1)] == pids, "they have lived on"
    wait_until("the newest layout's coordinator", lambda: cluster.layouts()[-1].coordinator == "n1")


def test_a_follower_dies_and_comes_back(cluster: ElasticCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address, nproc=2)
    first = cluster.worker(0, 0)
    cluster.trains(4, first)
    cluster.launchers[1].kill()
    cluster.trains(2, first)
    assert cluster.done("node lost").attributes["lost"] == f"{cluster.worker(1, 0)},{cluster.worker(1, 1)}"
    cluster.launchers[1].wait()
    cluster.launch(1, leader=leader.address, nproc=2)
    cluster.trains(4, first)


def test_two_launchers_that_lose_one_without_a_server_wait_and_then_stop_and_say_why(cluster: ElasticCluster) -> None:
    cluster.both(nproc=2, wait_nodes_s=5.0)
    cluster.trains(4, cluster.worker(0, 0))
    cluster.launchers[1].kill()
    wait_until("the loss to be known", lambda: cluster.events("coordinator.isolated"))
    assert cluster.launchers[0].poll() is None
    assert cluster.launchers[0].wait(DEADLINE_S) == 1
    assert "no server was there to say which half goes on" in cluster.event("job.failed").message


def test_workers_that_were_fenced_without_a_majority_go_on_with_the_same_processes_when_the_other_is_back(cluster: ElasticCluster) -> None:
    cluster.both(nproc=2)
    first = cluster.worker(0, 0)
    cluster.trains(4, first)
    pids = [cluster.pid(0, 0), cluster.pid(0, 1)]
    cluster.launchers[1].kill()
    wait_until("the loss to be known", lambda: cluster.events("coordinator.isolated"))
    cluster.launchers[1].wait()
    cluster.launch(1, nproc=2)
    cluster.trains(4, first)
    assert [cluster.pid(0, 0), cluster.pid(0, 1)] == pids


def test_a_worker_of_another_node_dies(cluster: ElasticCluster) -> None:
    cluster.both(nproc=2)
    first = cluster.worker(0, 0)
    cluster.trains(4, first)
    os.kill(cluster.pid(1, 1), signal.SIGKILL)
    os.kill(cluster.pid(0, 1), signal.SIGKILL)
    cluster.trains(2, first)
    cluster.trains(4, first)
    wait_until("the newest layout's nodes", lambda: cluster.layouts()[-1].nodes == ("n0", "n1"))


def test_rebalance_and_resize(cluster: ElasticCluster, leader: FakeLeader) -> None:
    cluster.launch(0, nnodes=(1, 1), leader=leader.address)
    first = cluster.worker(0, 0)
    cluster.trains(3, first)
    epoch = leader.command("rebalance", {"shares": {first: 1, cluster.worker(0, 1): 1, cluster.worker(0, 2): 6}}, epoch=0, step="a")["epoch"]
    cluster.done("rebalance")
    status = leader.command("status", {}, epoch=0, step="b")
    assert status["elastic"]
    assert status["micro_batches"] == 8
    assert {worker: len(mine) for worker, mine in status["shares"].items()} == {first: 1, cluster.worker(0, 1): 1, cluster.worker(0, 2): 6}
    leader.command("resize", {"workers": {"n0": 2}}, epoch=epoch, step="c")
    cluster.trains(2, first)
    leader.command("resize", {"workers": {"n0": 4}}, epoch=0, step="d")
    cluster.trains(4, first)
    assert not cluster.events("exit")


def test_a_node_is_left_out_while_the_others_train_on_and_comes_back_when_it_is_released(cluster: ElasticCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address, nproc=2)
    first = cluster.worker(0, 0)
    cluster.trains(4, first)
    stay, going = [cluster.pid(0, 0), cluster.pid(0, 1)], [cluster.pid(1, 0), cluster.pid(1, 1)]
    answer = leader.command("restart", {"exclude": ["n1"]}, epoch=0, step="a")
    layout = cluster.layouts()[-1]
    assert (layout.epoch, layout.in_place, layout.excluded, layout.nodes) == (answer["epoch"], True, ("n1",), ("n0",))
    cluster.trains(2, first)
    assert cluster.done("command").attributes["lost_micro_batches"] == "", "they went between two steps"
    wait_until("their end", lambda: not any(running(pid) for pid in going))
    halted = [words["halted"] for slot in (0, 1) for words in cluster.said(cluster.worker(1, slot)) if "halted" in words]
    assert halted == ["the job goes on without this worker"] * 2
    assert cluster.launchers[1].poll() is None, "the launcher waits"
    leader.command("release", {"node": "n1"}, epoch=0, step="b")
    cluster.trains(4, first)
    assert [cluster.pid(0, 0), cluster.pid(0, 1)] == stay, "the others have lived on"
    assert not {cluster.pid(1, 0), cluster.pid(1, 1)} & set(going)
    steps = [words["step"] for words in cluster.said(first) if "step" in words]
    assert steps == list(range(len(steps))), "no step is lost or done twice"
    assert not cluster.events("exit")
    assert cluster.launchers[0].poll() is None


def test_a_node_whose_workers_do_not_answer_is_left_out_at_once(cluster: ElasticCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address, nproc=2)
    first = cluster.worker(0, 0)
    cluster.trains(4, first)
    stay, going = [cluster.pid(0, 0), cluster.pid(0, 1)], [cluster.pid(1, 0), cluster.pid(1, 1)]
    for slot in (0, 1):
        (cluster.commits / f"hang-{cluster.worker(1, slot).replace('/', '_')}").touch()
    wait_until("standstill", lambda: cluster.stands(first))

    def taken() -> object:
        with suppress(TemporaryError):  # the others may just be leaving them out by themselves
            return leader.command("restart", {"exclude": ["n1"]}, epoch=0, step="a")
        return None

    wait_until("the command is taken", taken)
    wait_until("the newest layout's nodes", lambda: cluster.layouts()[-1].nodes == ("n0",))
    cluster.trains(2, first)
    wait_until("their end", lambda: not any(running(pid) for pid in going))
    excluded = {cluster.worker(1, 0), cluster.worker(1, 1)}
    wait_until("both to be told", lambda: {event.entity.name for event in cluster.events("worker.excluded")} == excluded)
    assert [cluster.pid(0, 0), cluster.pid(0, 1)] == stay
    steps = [words["step"] for words in cluster.said(first) if "step" in words]
    assert steps == list(range(len(steps)))


def test_a_frozen_coordinator_is_left_behind_and_what_thaws_writes_nothing(cluster: ElasticCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address, nproc=2)
    survivor, frozen = cluster.worker(1, 0), cluster.worker(0, 0)
    cluster.trains(4, survivor)
    pids = [cluster.launchers[0].pid, cluster.pid(0, 0), cluster.pid(0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    cluster.trains(2, survivor)
    others = cluster.layouts()[-1].epoch
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    wait_until("its return", lambda: cluster.layouts()[-1].nodes == ("n1", "n0"))
    cluster.trains(4, survivor)
    wait_until("the newest layout's coordinator", lambda: cluster.layouts()[-1].coordinator == "n1")
    epochs = [words["epoch"] for words in cluster.said(frozen) if "step" in words]
    assert not [epoch for epoch in epochs if 2 < epoch <= others], "no step without the others"
    layouts = [layout.epoch for layout in cluster.layouts()]
    assert len(layouts) == len(set(layouts)), "no epoch is there twice"
