"""Real launchers with real processes: kills, successions and returns. The script is plain Python, its ranks coupled by sockets."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from eagle_eye.errors import PermanentError, RingError, Stale
from eagle_eye.training.ring_buffer import RingReader
from fakes.launchers import DEADLINE_S, FakeLeader, LauncherCluster, living, wait_until


def test_a_killed_worker_is_one_event_and_a_new_epoch(cluster: LauncherCluster) -> None:
    cluster.both()
    os.kill(cluster.pids(1)[0], signal.SIGKILL)
    begun = cluster.began(2)
    exits = cluster.events("exit")
    killed = [event for event in exits if event.entity.name == f"{cluster.run}/n1/0"]
    assert begun.attributes["reason"] == "death"
    assert begun.attributes["cause"] in {event.id for event in exits}
    assert [event.attributes["signal"] for event in killed] == ["SIGKILL"], "one death, one event"
    assert cluster.layouts()[-1].nodes == ("n0", "n1")
    cluster.launchers[0].send_signal(signal.SIGINT)
    assert [launcher.wait(DEADLINE_S) for launcher in cluster.launchers.values()] == [130, 130]
    assert len(cluster.events("exit")) == len(exits), "exits that a launcher ordered are no events"
    assert not list(cluster.run_dirs.glob("**/*.*")), "sockets and job files are removed"
    assert not list(Path("/dev/shm").glob(f"*{cluster.run}*"))


def test_a_killed_launcher_takes_its_workers_along_and_nothing_else(cluster: LauncherCluster) -> None:
    process = cluster.launch(0, nnodes=(1, 1))
    cluster.began(1)
    assert len(living(cluster.run)) == 3, "a zygote and two workers"
    process.kill()
    wait_until("the workers' end", lambda: not living(cluster.run))
    process.wait()
    again = cluster.launch(0, nnodes=(1, 1))
    begun = cluster.began(2)
    assert begun.attributes["reason"] == "node returned"
    again.send_signal(signal.SIGTERM)
    assert again.wait(DEADLINE_S) == 130


def test_two_jobs_of_the_same_name_on_one_machine_do_not_meet_in_its_shared_memory(cluster: LauncherCluster) -> None:
    elsewhere = cluster.directory / "elsewhere"
    cluster.launch(0, nnodes=(1, 1))
    cluster.launch(1, nnodes=(1, 1), node="n0", rendezvous="", state_dir=elsewhere, checkpoint_dir=elsewhere)
    rings = [
        wait_until("workers", lambda node=node: {Path(each["ring"]) for each in cluster.job(node)["workers"]}) for node in (0, 1)
    ]
    assert not rings[0] & rings[1]
    cluster.launchers[0].send_signal(signal.SIGTERM)
    assert cluster.launchers[0].wait(DEADLINE_S) == 130
    wait_until("its own rings", lambda: all(ring.exists() for ring in rings[1]))
    assert not any(ring.exists() for ring in rings[0])


def test_half_of_the_launchers_go_on_with_the_leaders_voice_and_take_the_other_back(cluster: LauncherCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address)
    cluster.launchers[1].kill()
    begun = cluster.began(2)
    assert begun.attributes["reason"] == "node lost"
    assert leader.asked[0]["missing"] == ["n1"]
    assert [event.entity.name for event in cluster.events("peer.lost")] == ["n1"]
    cluster.launchers[1].wait()
    cluster.launch(1, leader=leader.address)
    wait_until("the node's return", lambda: cluster.layouts()[-1].nodes == ("n0", "n1"))
    assert cluster.layouts()[-1].reason == "node returned"


def test_the_coordinators_launcher_is_succeeded_and_joins_again(cluster: LauncherCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address)
    cluster.launchers[0].kill()
    cluster.began(2)
    layout = cluster.layouts()[-1]
    assert (layout.coordinator, layout.nodes) == ("n1", ("n1",))
    assert leader.known["node"] == "n1"
    cluster.launchers[0].wait()
    cluster.launch(0, leader=leader.address)
    wait_until("the old coordinator's return", lambda: set(cluster.layouts()[-1].nodes) == {"n0", "n1"})
    assert cluster.layouts()[-1].coordinator == "n1", "it joined; it did not begin a second job"


def test_half_without_a_voice_begins_nothing_and_waits(cluster: LauncherCluster) -> None:
    cluster.both()
    cluster.launchers[0].kill()
    wait_until("the loss to be known", lambda: cluster.events("coordinator.isolated"))
    assert cluster.launchers[1].poll() is None
    assert [layout.epoch for layout in cluster.layouts()] == [1]
    cluster.launchers[0].wait()
    cluster.launch(0)
    wait_until("both again", lambda: len(cluster.layouts()) > 1 and set(cluster.layouts()[-1].nodes) == {"n0", "n1"})
    assert cluster.layouts()[-1].epoch > 1


def test_commands_of_the_leader_exclude_release_and_are_refused_when_stale(cluster: LauncherCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address)
    wait_until("the leader to know", lambda: leader.known)
    answer = leader.command("restart", {"exclude": ["n0"], "own": False}, epoch=1, step="a")
    layout = cluster.layouts()[-1]
    assert (layout.epoch, layout.nodes, layout.excluded) == (answer["epoch"], ("n1",), ("n0",))
    assert layout.restarts == 0, "a command spends nothing of the job's own budget"
    assert cluster.pids(0) == []
    assert leader.command("restart", {"exclude": ["n0"], "own": False}, epoch=1, step="a") == answer, "done once"
    with pytest.raises(Stale, match=r"epoch 1 .* is over"):
        leader.command("restart", {}, epoch=1, step="b")
    tries = count()

    def dump() -> dict[str, Any]:
        return leader.command("dump", {"workers": []}, epoch=2, step=f"c{next(tries)}")

    assert set(dump()) == {f"{cluster.run}/n1/0", f"{cluster.run}/n1/1"}
    wait_until("the worker to be in its script", lambda: "train.py" in dump()[f"{cluster.run}/n1/0"]["stack"])
    stopped = psutil.Process(cluster.pids(1)[0])
    stopped.suspend()
    wait_until("it to stop", lambda: stopped.status() == psutil.STATUS_STOPPED)
    assert leader.command("reattempt", {"workers": []}, epoch=2, step="d") == {"continued": [f"{cluster.run}/n1/0"]}
    leader.command("release", {"node": "n0"}, epoch=2, step="e")
    wait_until("the newest layout's nodes", lambda: cluster.layouts()[-1].nodes == ("n1", "n0"))


def test_a_roll_back_to_where_nothing_is_kept_is_refused(cluster: LauncherCluster, leader: FakeLeader) -> None:
    checkpoints = cluster.directory / "checkpoints"
    checkpoints.mkdir()
    manifest = {"version": 1, "step": 320, "data": "x", "bytes": 0, "crc32": 0, "finite": True, "epoch": 1}
    (checkpoints / "step-000000000320.json").write_text(json.dumps(manifest))
    cluster.launch(0, nnodes=(1, 1), leader=leader.address, checkpoint_dir=checkpoints)
    cluster.began(1)
    wait_until("the leader to know", lambda: leader.known)
    with pytest.raises(PermanentError, match="the oldest is 320"):
        leader.command("restart", {"resume_step": 310, "own": False}, epoch=1, step="a")
    assert leader.command("restart", {"resume_step": 320, "own": False}, epoch=1, step="b") == {"epoch": 2, "budget_left": 3}


def test_a_roll_back_that_the_disk_does_not_take_is_an_epoch_that_failed(cluster: LauncherCluster, leader: FakeLeader) -> None:
    """The job was told to begin again, and waited for ever for workers that nobody started."""
    checkpoints = cluster.directory / "checkpoints"
    in_the_way = checkpoints / "step-000000000320.json.discarded" / "x"
    in_the_way.mkdir(parents=True)
    for step in (310, 320):
        manifest = {"version": 1, "step": step, "data": "x", "bytes": 0, "crc32": 0, "finite": True, "epoch": 1}
        (checkpoints / f"step-{step:012d}.json").write_text(json.dumps(manifest))
    cluster.launch(0, nnodes=(1, 1), leader=leader.address, checkpoint_dir=checkpoints)
    cluster.began(1)
    wait_until("the leader to know", lambda: leader.known)
    leader.command("restart", {"resume_step": 310, "own": False}, epoch=1, step="a")
    cluster.began(3)
    shutil.rmtree(in_the_way.parent)
    wait_until("the roll-back", lambda: not (checkpoints / "step-000000000320.json").exists())
    assert {layout.resume_step for layout in cluster.layouts()[1:]} == {310}, "what it was told still stands"
    assert cluster.launchers[0].poll() is None


def test_a_script_that_dies_at_import_fails_at_once_and_says_why(cluster: LauncherCluster) -> None:
    (cluster.directory / "train.py").write_text("import eagle_eye\neagle_eye.monitor()\nraise ValueError('token=abcdef no such model')\n")
    process = cluster.launch(0, nnodes=(1, 1))
    assert process.wait(DEADLINE_S) == 1
    failed = cluster.event("job.failed")
    assert "ValueError" in failed.message
    assert "no such model" in failed.message
    assert "abcdef" not in failed.message, "secrets stay on the node"
    assert not cluster.events("epoch.started")[1:], "no restart was spent on it"


def test_a_script_that_knows_nothing_of_steps_is_restarted_once_it_has_lived(cluster: LauncherCluster) -> None:
    (cluster.directory / "plain.py").write_text("import os; raise SystemExit(int(os.environ['EAGLE_EYE_EPOCH'] == '1'))")
    launcher = cluster.launch(0, nproc=1, nnodes=(1, 1), command=(sys.executable, "plain.py"), start_s=0.0)
    cluster.began(2)
    assert launcher.wait(DEADLINE_S) == 0
    assert [event.attributes["code"] for event in cluster.events("exit")] == ["1"]


def test_a_finished_job_ends_every_launcher_with_zero(cluster: LauncherCluster) -> None:
    for node in (0, 1):
        cluster.launch(node, command=(sys.executable, "train.py", "5"), gpus=(f"GPU-{node}0", f"GPU-{node}1"), parallel="tp=2")
    assert [launcher.wait(DEADLINE_S) for launcher in cluster.launchers.values()] == [0, 0]
    assert len(cluster.events("job.finished")) == 1
    places = cluster.layouts()[-1].placements
    assert [(place.gpu, place.tp, place.dp) for place in places] == [("GPU-00", 0, 0), ("GPU-01", 1, 0), ("GPU-10", 0, 1), ("GPU-11", 1, 1)]
    assert sorted(event.entity.name for event in cluster.events("worker.finished")) == [f"{cluster.run}/n{node}/{slot}" for node in (0, 1) for slot in (0, 1)]
    kept = sorted(path.name for path in (cluster.directory / "state" / "votes").rglob("*.json"))
    assert kept == ["n0.json", "n1.json"], "the memory of commands is of no use now"
    assert list((cluster.directory / "state" / "checkpoints").iterdir()) == []
    assert len(list((cluster.directory / "state" / "logs" / cluster.run).iterdir())) == 2


def test_a_spent_budget_is_told_and_ends_the_job(cluster: LauncherCluster) -> None:
    process = cluster.launch(0, nnodes=(1, 1), heal="none")
    cluster.began(1)
    os.kill(cluster.pids(0)[0], signal.SIGKILL)
    assert process.wait(DEADLINE_S) == 1
    assert cluster.event("budget.exhausted").attributes["heal"] == "none"


def test_a_launcher_that_is_silent_while_the_steps_go_on_is_not_lost(cluster: LauncherCluster) -> None:
    cluster.both()
    cluster.launchers[1].send_signal(signal.SIGSTOP)
    wait_until("the loss of the session", lambda: cluster.events("peer.lost"))
    steps = [progress(cluster, 0)]
    wait_until("further steps", lambda: progress(cluster, 0) > steps[0] + 60)
    cluster.launchers[1].send_signal(signal.SIGCONT)
    wait_until("further steps", lambda: progress(cluster, 0) > steps[0] + 90)
    assert [layout.epoch for layout in cluster.layouts()] == [1]


def test_a_session_that_is_gone_while_nobody_makes_a_step_ends_nobody(cluster: LauncherCluster) -> None:
    """A launcher that is silent for longer than a lease while a worker evaluates, and all others wait for it."""
    (cluster.directory / "pause-0").touch()
    cluster.both()
    wait_until("the pause", (cluster.directory / "paused").exists)
    workers = cluster.pids(0) + cluster.pids(1)
    cluster.launchers[1].send_signal(signal.SIGSTOP)
    wait_until("the loss of the session", lambda: cluster.events("peer.lost"))
    wait_until("as long as several leases", lambda: cluster.events("coordinator.isolated"))
    cluster.launchers[1].send_signal(signal.SIGCONT)
    (cluster.directory / "pause-0").unlink()
    steps = progress(cluster, 0)
    wait_until("further steps", lambda: progress(cluster, 0) > steps + 30)
    assert cluster.pids(0) + cluster.pids(1) == workers
    assert [layout.epoch for layout in cluster.layouts()] == [1]


def test_a_frozen_node_is_lost_and_what_thaws_is_ended(cluster: LauncherCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address)
    frozen = cluster.pids(1)
    for pid in (cluster.launchers[1].pid, *frozen):
        os.kill(pid, signal.SIGSTOP)
    assert cluster.began(2).attributes["reason"] == "node lost"
    assert cluster.layouts()[-1].nodes == ("n0",)
    for pid in (cluster.launchers[1].pid, *frozen):
        os.kill(pid, signal.SIGCONT)
    wait_until("the node's return", lambda: cluster.layouts()[-1].nodes == ("n0", "n1"))
    assert not set(frozen) & set(living(cluster.run))


def progress(cluster: LauncherCluster, node: int) -> int:
    """The step that a node's first worker is in; -1 while it has made no mark."""
    with contextlib.suppress(RingError), RingReader.open(cluster.job(node)["workers"][0]["ring"]) as ring:
        return ring.now().step
    return -1


def test_the_workers_find_what_torchrun_would_give_them(cluster: LauncherCluster) -> None:
    (cluster.directory / "train.py").write_text(
        "import json, os, resource\nprint(json.dumps({**os.environ, 'open files': resource.getrlimit(resource.RLIMIT_NOFILE)}), flush=True)\n"
    )  # fmt: skip
    for node in (0, 1):
        cluster.launch(node)
    assert [launcher.wait(DEADLINE_S) for launcher in cluster.launchers.values()] == [0, 0]
    logs = cluster.directory / "state" / "logs" / cluster.run
    found = [json.loads((logs / f"n{node}" / f"{slot}.log").read_text()) for node in (0, 1) for slot in (0, 1)]
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3"]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "1", "0", "1"]
    assert [each["GROUP_RANK"] for each in found] == ["0", "0", "1", "1"]
    assert {each["WORLD_SIZE"] for each in found} == {"4"}
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found}) == 1
    assert found[0]["GLOO_SOCKET_IFNAME"] == "lo"
    assert found[0]["TORCHELASTIC_RUN_ID"] == cluster.run
    assert {tuple(each["open files"]) for each in found} == {resource.getrlimit(resource.RLIMIT_NOFILE)}, "the launcher may open more than they may"


def test_who_comes_second_to_the_meeting_place_listens_beside_it(cluster: LauncherCluster) -> None:
    meeting = f"127.0.0.1:{cluster.ports[0]}"
    for node in (0, 1):
        cluster.launch(node, address=meeting, rendezvous=meeting, or_any_port=True, nnodes=(2, 2))
    cluster.began(1)
    assert len(cluster.layouts()[-1].placements) == 4
    assert len(set(cluster.layouts()[-1].launchers.values())) == 2


def test_a_missing_script_is_refused_before_anything_starts(cluster: LauncherCluster) -> None:
    process = cluster.launch(0, command=(sys.executable, "missing.py"))
    assert process.wait(DEADLINE_S) == 1
    said = (cluster.directory / "launcher0.log").read_text()
    assert "'missing.py' does not exist" in said
    assert not cluster.records()


def test_a_checkpoint_directory_that_cannot_be_made_is_one_line(cluster: LauncherCluster) -> None:
    (cluster.directory / "file").write_text("")
    process = cluster.launch(0, checkpoint_dir=cluster.directory / "file" / "saved")
    assert process.wait(DEADLINE_S) == 1
    said = (cluster.directory / "launcher0.log").read_text()
    assert "file/saved cannot be made" in said
    assert "name another directory with --checkpoint-dir" in said
    assert "Traceback" not in said


def test_no_worker_starts_on_a_node_that_another_job_was_evicted_from(cluster: LauncherCluster, leader: FakeLeader) -> None:
    leader.cordons["n0"] = {"job": "test/gpt/7", "reason": "ecc error on GPU 5", "since": 1_700_000_000.0}
    process = cluster.launch(0, leader=leader.address, cordon_answer_s=60.0)
    assert process.wait(DEADLINE_S) == 1
    said = (cluster.directory / "launcher0.log").read_text()
    assert "n0 is cordoned since" in said
    assert "evicted from test/gpt/7 (ecc error on GPU 5)" in said
    assert "eagle-eye release n0" in said
    assert not cluster.events("epoch.started")


def test_a_cordon_can_be_ignored_and_binds_no_other_node(cluster: LauncherCluster, leader: FakeLeader) -> None:
    leader.cordons["n0"] = {"job": "test/gpt/7", "reason": "ecc error on GPU 5", "since": 1_700_000_000.0}
    cluster.launch(0, leader=leader.address, cordon_answer_s=60.0, ignore_cordon=True, nnodes=(2, 2))
    cluster.launch(1, leader=leader.address, cordon_answer_s=60.0, nnodes=(2, 2))
    cluster.began(1)
    assert len(cluster.layouts()[-1].nodes) == 2


def test_a_server_that_nobody_reaches_keeps_no_job_from_starting(cluster: LauncherCluster) -> None:
    cluster.launch(0, leader="127.0.0.1:9", cordon_answer_s=0.1, nnodes=(1, 1))
    cluster.began(1)
    assert "the server could not be asked whether n0 is cordoned" in (cluster.directory / "launcher0.log").read_text()


def test_a_server_that_starts_together_with_the_job_is_asked_nothing(cluster: LauncherCluster) -> None:
    cluster.launch(0, leader="127.0.0.1:9", new_server=True, nnodes=(1, 1))
    cluster.began(1)
    assert "the server" not in (cluster.directory / "launcher0.log").read_text()


@pytest.mark.parametrize(
    ("fault", "words"),
    [("poison-40", "ValueError: negative length, at train.py:"), ("poison-all-40", "ValueError: negative length, at train.py:"), ("leave-40", "exit code 0 while the other workers needed it, step 40: the same as of worker")],
)
def test_a_fault_of_the_program_that_comes_back_after_a_restart_ends_the_job_with_its_place(cluster: LauncherCluster, fault: str, words: str) -> None:
    (cluster.directory / fault).touch()
    cluster.both()
    wait_until("the job's end", lambda: cluster.events("job.failed"))
    reason = cluster.event("job.failed").message
    assert words in reason
    assert "the program or its data fails" in reason
    assert [each.wait(DEADLINE_S) for each in cluster.launchers.values()] == [1, 1]
    assert len(cluster.events("epoch.started")) <= 3, "a peer's broken connection may be reported first; that is no reason for a second restart"


def test_a_sample_that_ends_whichever_rank_gets_it_with_an_exit_code_ends_the_job(cluster: LauncherCluster) -> None:
    (cluster.directory / "moving-exit-40").touch()
    cluster.both()
    wait_until("the job's end", lambda: cluster.events("job.failed"))
    assert "worker ended with code 3, step 40: the same as of worker" in cluster.event("job.failed").message
    assert len(cluster.events("epoch.started")) <= 3, "a peer's broken connection may be told first"


def test_twin_a_node_whose_worker_ends_again_and_again_in_one_step_is_left_to_the_budget(cluster: LauncherCluster) -> None:
    """The peers are healthy: it may be the machine."""
    (cluster.directory / "exit-40").touch()
    cluster.both(heal="restart:2")
    wait_until("the job's end", lambda: cluster.events("job.failed"))
    assert "may not heal itself again (--heal restart:2)" in cluster.event("job.failed").message
    assert len(cluster.events("epoch.started")) == 3


def test_twin_an_outage_that_all_ranks_see_at_once_costs_one_restart(cluster: LauncherCluster) -> None:
    (cluster.directory / "outage-40").touch()
    cluster.both()
    cluster.began(2)
    wait_until("steps beyond the outage", lambda: progress(cluster, 0) > 60)
    assert [layout.epoch for layout in cluster.layouts()] == [1, 2]
    assert not cluster.events("job.failed")


def test_a_job_that_may_skip_one_step_goes_on_after_it_and_ends_at_the_second(cluster: LauncherCluster) -> None:
    for step in (40, 80):
        (cluster.directory / f"poison-{step}").touch()
    cluster.both(max_skipped_steps=1, heal="restart:10")
    wait_until("the job's end", lambda: cluster.events("job.failed"))
    (skipped,) = cluster.events("step.skipped")
    assert skipped.attributes["step"] == "40"
    assert "ValueError: negative length, at train.py:" in skipped.message
    assert "1 steps are skipped already (--max-skipped-steps 1)" in cluster.event("job.failed").message
    assert {event.attributes["step"] for event in cluster.events("exception") if event.attributes["type"] == "ValueError"} == {"40", "80"}


CRASHES = """
import os, signal, time
import eagle_eye

for step in eagle_eye.monitor().steps(range(1000)):
    time.sleep(0.01)
    if step == 5 + int(os.path.exists("progress")) * int(os.environ["EAGLE_EYE_EPOCH"]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def crash_loop(cluster: LauncherCluster, heal: str) -> subprocess.Popen[bytes]:
    (cluster.directory / "crashes.py").write_text(CRASHES)
    return cluster.launch(0, nproc=1, nnodes=(1, 1), heal=heal, command=(sys.executable, "crashes.py"))


def delays(cluster: LauncherCluster) -> list[str]:
    return [event.attributes["seconds"] for event in cluster.events("restart.delayed")]


def test_a_crash_loop_backs_off_and_ends_with_the_job_failed_and_the_reason_told(cluster: LauncherCluster) -> None:
    assert crash_loop(cluster, "restart:3").wait(DEADLINE_S) == 1
    assert len(cluster.events("epoch.started")) == 4
    assert delays(cluster) == ["1", "2"], "the first restart is immediate"
    assert "worker ended by SIGKILL, and the job may not heal itself again (--heal restart:3)" in cluster.event("job.failed").message


def test_a_job_that_makes_progress_between_its_failures_is_never_delayed(cluster: LauncherCluster) -> None:
    (cluster.directory / "progress").touch()
    assert crash_loop(cluster, "restart:3").wait(DEADLINE_S) == 1
    assert len(cluster.events("epoch.started")) == 4
    assert delays(cluster) == []


def test_a_job_that_is_stopped_while_it_backs_off_ends_at_once(cluster: LauncherCluster) -> None:
    launcher = crash_loop(cluster, "restart:100")
    wait_until("a delay of some seconds", lambda: "8" in delays(cluster))
    wait_until("the workers' end", lambda: cluster.job(0)["workers"] == [])
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(DEADLINE_S) == 130
    assert len(cluster.events("epoch.started")) == 5, "it did not start its workers again to end them"


def test_a_command_of_the_leader_does_not_wait_for_a_back_off(cluster: LauncherCluster, leader: FakeLeader) -> None:
    (cluster.directory / "crashes.py").write_text(CRASHES)
    cluster.launch(0, nproc=1, nnodes=(1, 1), heal="restart:100", command=(sys.executable, "crashes.py"), leader=leader.address)
    wait_until("a delay of some seconds", lambda: "8" in delays(cluster))
    assert leader.command("restart", {"own": False}, epoch=5, step="a")["epoch"] == 6
    assert next(layout for layout in cluster.layouts() if layout.epoch == 6).reason == "command"


def test_a_server_whose_answers_cannot_be_read_ends_no_job(cluster: LauncherCluster, leader: FakeLeader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version, or confused: whoever reads its answers takes them for none."""

    asked: list[str] = []

    async def confused(_peer: object, kind: str, _body: object) -> dict[str, Any]:
        asked.append(kind)
        return {"epoch": "seven"} if kind == "coordinator_of" else {"known": True, "granted": [], "present": "perhaps"} if kind in ("present", "grant") else {}

    monkeypatch.setattr(leader, "request", confused)
    cluster.both(leader=leader.address)
    os.kill(cluster.pids(1)[0], signal.SIGKILL)
    cluster.began(2)
    cluster.launchers[1].kill()
    wait_until("its word on a silent node and on half of the job", lambda: {"coordinator_of", "grant"} <= set(asked))
    cluster.launchers[1].wait()
    cluster.launch(1, leader=leader.address)
    wait_until("both again", lambda: cluster.layouts()[-1].epoch > 2 and set(cluster.layouts()[-1].nodes) == {"n0", "n1"})
    assert cluster.launchers[0].poll() is None


def test_a_run_that_is_started_with_another_script_than_the_last_one_says_so(cluster: LauncherCluster) -> None:
    kept = cluster.settings(0).last_start
    for changed in (False, True):
        if changed:
            script = cluster.directory / "train.py"
            script.write_text(f"{script.read_text()}\n# another one\n")
        cluster.launch(0, nnodes=(1, 1), job=f"test/loop/{cluster.run}{'b' if changed else ''}")
        wait_until("what it was started with", lambda run="b" if changed else "": kept.exists() and f'"{cluster.run}{run}"' in kept.read_text())
        if not changed:
            cluster.launchers[0].send_signal(signal.SIGTERM)
            assert cluster.launchers[0].wait(DEADLINE_S) == 130
            assert not cluster.events("job.changed")
    told = cluster.event("job.changed")
    assert (told.attributes["what"], told.job) == ("file train.py", f"test/loop/{cluster.run}b")
