"""Real launchers with real processes: kills, successions and returns. The script is plain Python, its ranks coupled by sockets."""

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from eagle_eye.errors import PermanentError, Stale
from eagle_eye.training import checkpoint
from eagle_eye.training.ring_buffer import RingReader
from fakes.launchers import DEADLINE_S, FakeLeader, Stage, living, wait_until


def test_a_killed_worker_is_one_event_and_a_new_epoch(stage: Stage) -> None:
    stage.both()
    os.kill(stage.pids(1)[0], signal.SIGKILL)
    begun = stage.began(2)
    exits = stage.events("exit")
    killed = [event for event in exits if event.entity.name == f"{stage.run}/n1/0"]
    assert begun.attributes["reason"] == "death"
    assert begun.attributes["cause"] in {event.id for event in exits}
    assert [event.attributes["signal"] for event in killed] == ["SIGKILL"], "one death, one event"
    assert stage.layouts()[-1].nodes == ("n0", "n1")
    stage.launchers[0].send_signal(signal.SIGINT)
    assert [launcher.wait(DEADLINE_S) for launcher in stage.launchers.values()] == [130, 130]
    assert len(stage.events("exit")) == len(exits), "exits that a launcher ordered are no events"
    assert not list(stage.run_dirs.glob("**/*.*")), "sockets and job files are removed"
    assert not list(Path("/dev/shm").glob(f"*{stage.run}*"))


def test_a_killed_launcher_takes_its_workers_along_and_nothing_else(stage: Stage) -> None:
    process = stage.launch(0, nnodes=(1, 1))
    stage.began(1)
    assert len(living(stage.run)) == 3, "a zygote and two workers"
    process.kill()
    wait_until("the workers' end", lambda: not living(stage.run))
    process.wait()
    again = stage.launch(0, nnodes=(1, 1))
    begun = stage.began(2)
    assert begun.attributes["reason"] == "node returned"
    again.send_signal(signal.SIGTERM)
    assert again.wait(DEADLINE_S) == 130


def test_two_jobs_of_the_same_name_on_one_machine_do_not_meet_in_its_shared_memory(stage: Stage) -> None:
    elsewhere = stage.directory / "elsewhere"
    stage.launch(0, nnodes=(1, 1))
    stage.launch(1, nnodes=(1, 1), node="n0", rendezvous="", state_dir=elsewhere, checkpoint_dir=elsewhere)
    rings = [
        wait_until("workers", lambda node=node: {Path(each["ring"]) for each in stage.job(node)["workers"]}) for node in (0, 1)
    ]
    assert not rings[0] & rings[1]
    stage.launchers[0].send_signal(signal.SIGTERM)
    assert stage.launchers[0].wait(DEADLINE_S) == 130
    wait_until("its own rings", lambda: all(ring.exists() for ring in rings[1]))
    assert not any(ring.exists() for ring in rings[0])


def test_half_of_the_launchers_go_on_with_the_leaders_voice_and_take_the_other_back(stage: Stage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address)
    stage.launchers[1].kill()
    begun = stage.began(2)
    assert begun.attributes["reason"] == "node lost"
    assert leader.asked[0]["missing"] == ["n1"]
    assert [event.entity.name for event in stage.events("peer.lost")] == ["n1"]
    stage.launchers[1].wait()
    stage.launch(1, leader=leader.address)
    wait_until("the node's return", lambda: stage.layouts()[-1].nodes == ("n0", "n1"))
    assert stage.layouts()[-1].reason == "node returned"


def test_the_coordinators_launcher_is_succeeded_and_joins_again(stage: Stage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address)
    stage.launchers[0].kill()
    stage.began(2)
    layout = stage.layouts()[-1]
    assert (layout.coordinator, layout.nodes) == ("n1", ("n1",))
    assert leader.known["node"] == "n1"
    stage.launchers[0].wait()
    stage.launch(0, leader=leader.address)
    wait_until("the old coordinator's return", lambda: set(stage.layouts()[-1].nodes) == {"n0", "n1"})
    assert stage.layouts()[-1].coordinator == "n1", "it joined; it did not begin a second job"


def test_half_without_a_voice_ends_its_workers_and_waits(stage: Stage) -> None:
    stage.both()
    workers = set(stage.pids(0) + stage.pids(1))
    stage.launchers[0].kill()
    wait_until("the end of the workers without a majority", lambda: not workers & set(living(stage.run)))
    assert stage.launchers[1].poll() is None
    assert [layout.epoch for layout in stage.layouts()] == [1]
    wait_until("an empty list of workers", lambda: stage.job(1)["workers"] == [])
    stage.launchers[0].wait()
    stage.launch(0)
    wait_until("both again", lambda: len(stage.layouts()) > 1 and set(stage.layouts()[-1].nodes) == {"n0", "n1"})
    assert stage.layouts()[-1].epoch > 1


def test_commands_of_the_leader_exclude_release_and_are_refused_when_stale(stage: Stage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address)
    wait_until("the leader to know", lambda: leader.known)
    answer = leader.command("restart", {"exclude": ["n0"], "own": False}, epoch=1, step="a")
    layout = stage.layouts()[-1]
    assert (layout.epoch, layout.nodes, layout.excluded) == (answer["epoch"], ("n1",), ("n0",))
    assert layout.restarts == 0, "a command spends nothing of the job's own budget"
    assert stage.pids(0) == []
    assert leader.command("restart", {"exclude": ["n0"], "own": False}, epoch=1, step="a") == answer, "done once"
    with pytest.raises(Stale, match=r"epoch 1 .* is over"):
        leader.command("restart", {}, epoch=1, step="b")
    dump = leader.command("dump", {"workers": []}, epoch=2, step="c")
    assert set(dump) == {f"{stage.run}/n1/0", f"{stage.run}/n1/1"}
    assert "train.py" in dump[f"{stage.run}/n1/0"]["stack"]
    stopped = psutil.Process(stage.pids(1)[0])
    stopped.suspend()
    wait_until("it to stop", lambda: stopped.status() == psutil.STATUS_STOPPED)
    assert leader.command("reattempt", {"workers": []}, epoch=2, step="d") == {"continued": [f"{stage.run}/n1/0"]}
    leader.command("release", {"node": "n0"}, epoch=2, step="e")
    assert stage.layouts()[-1].nodes == ("n1", "n0")


def test_a_roll_back_to_where_nothing_is_kept_is_refused(stage: Stage, leader: FakeLeader) -> None:
    checkpoints = stage.directory / "checkpoints"
    checkpoints.mkdir()
    manifest = {"version": checkpoint.VERSION, "step": 320, "data": "x", "bytes": 0, "crc32": 0, "finite": True, "epoch": 1}
    (checkpoints / "step-000000000320.json").write_text(json.dumps(manifest))
    stage.launch(0, nnodes=(1, 1), leader=leader.address, checkpoint_dir=checkpoints)
    stage.began(1)
    wait_until("the leader to know", lambda: leader.known)
    with pytest.raises(PermanentError, match="the oldest is 320"):
        leader.command("restart", {"resume_step": 310, "own": False}, epoch=1, step="a")
    assert leader.command("restart", {"resume_step": 320, "own": False}, epoch=1, step="b") == {"epoch": 2, "budget_left": 3}


def test_a_script_that_dies_at_import_fails_at_once_and_says_why(stage: Stage) -> None:
    (stage.directory / "train.py").write_text("import eagle_eye\neagle_eye.monitor()\nraise ValueError('token=abcdef no such model')\n")
    process = stage.launch(0, nnodes=(1, 1))
    assert process.wait(DEADLINE_S) == 1
    failed = stage.events("job.failed")[0]
    assert "ValueError" in failed.message
    assert "no such model" in failed.message
    assert "abcdef" not in failed.message, "secrets stay on the node"
    assert not stage.events("epoch.started")[1:], "no restart was spent on it"


def test_a_script_that_knows_nothing_of_steps_is_restarted_once_it_has_lived(stage: Stage) -> None:
    (stage.directory / "plain.py").write_text(
        "import os, time; epoch = os.environ['EAGLE_EYE_EPOCH']; time.sleep(0 if epoch != '1' else 5.5); raise SystemExit(int(epoch == '1'))"
    )
    launcher = stage.launch(0, nproc=1, nnodes=(1, 1), command=(sys.executable, "plain.py"))
    stage.began(2)
    assert launcher.wait(DEADLINE_S) == 0
    assert [event.attributes["code"] for event in stage.events("exit")] == ["1"]


def test_a_finished_job_ends_every_launcher_with_zero(stage: Stage) -> None:
    for node in (0, 1):
        stage.launch(node, command=(sys.executable, "train.py", "5"))
    assert [launcher.wait(DEADLINE_S) for launcher in stage.launchers.values()] == [0, 0]
    assert len(stage.events("job.finished")) == 1
    kept = sorted(path.name for path in (stage.directory / "state" / "votes").iterdir())
    assert kept == [f"{stage.run}-n0.json", f"{stage.run}-n1.json"], "the memory of commands is of no use now"
    assert list((stage.directory / "state" / "checkpoints").iterdir()) == []
    assert len(list((stage.directory / "state" / "logs" / stage.run).iterdir())) == 2


def test_a_spent_budget_is_told_and_ends_the_job(stage: Stage) -> None:
    process = stage.launch(0, nnodes=(1, 1), heal="none")
    stage.began(1)
    os.kill(stage.pids(0)[0], signal.SIGKILL)
    assert process.wait(DEADLINE_S) == 1
    assert stage.events("budget.exhausted")[0].attributes["heal"] == "none"


def test_a_launcher_that_is_silent_while_the_steps_go_on_is_not_lost(stage: Stage) -> None:
    stage.both()
    stage.launchers[1].send_signal(signal.SIGSTOP)
    wait_until("the loss of the session", lambda: stage.events("peer.lost"))
    steps = [progress(stage, 0)]
    wait_until("further steps", lambda: progress(stage, 0) > steps[0] + 60)
    stage.launchers[1].send_signal(signal.SIGCONT)
    wait_until("further steps", lambda: progress(stage, 0) > steps[0] + 90)
    assert [layout.epoch for layout in stage.layouts()] == [1]


def test_a_frozen_node_is_lost_and_what_thaws_is_ended(stage: Stage, leader: FakeLeader) -> None:
    stage.both(leader=leader.address)
    frozen = stage.pids(1)
    for pid in (stage.launchers[1].pid, *frozen):
        os.kill(pid, signal.SIGSTOP)
    assert stage.began(2).attributes["reason"] == "node lost"
    assert stage.layouts()[-1].nodes == ("n0",)
    for pid in (stage.launchers[1].pid, *frozen):
        os.kill(pid, signal.SIGCONT)
    wait_until("the node's return", lambda: stage.layouts()[-1].nodes == ("n0", "n1"))
    assert not set(frozen) & set(living(stage.run))


def progress(stage: Stage, node: int) -> int:
    """The step that a node's first worker is in."""
    with RingReader.open(stage.job(node)["workers"][0]["ring"]) as ring:
        return ring.now().step


def test_the_workers_find_what_torchrun_would_give_them(stage: Stage) -> None:
    (stage.directory / "train.py").write_text(
        "import json, os\nprint(json.dumps(dict(os.environ)), flush=True)\n"
    )  # fmt: skip
    for node in (0, 1):
        stage.launch(node)
    assert [launcher.wait(DEADLINE_S) for launcher in stage.launchers.values()] == [0, 0]
    logs = stage.directory / "state" / "logs" / stage.run
    found = [json.loads((logs / f"n{node}" / f"{slot}.log").read_text()) for node in (0, 1) for slot in (0, 1)]
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3"]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "1", "0", "1"]
    assert [each["GROUP_RANK"] for each in found] == ["0", "0", "1", "1"]
    assert {each["WORLD_SIZE"] for each in found} == {"4"}
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found}) == 1
    assert found[0]["GLOO_SOCKET_IFNAME"] == "lo"
    assert found[0]["TORCHELASTIC_RUN_ID"] == stage.run


def test_who_comes_second_to_the_meeting_place_listens_beside_it(stage: Stage) -> None:
    meeting = f"127.0.0.1:{stage.ports[0]}"
    for node in (0, 1):
        stage.launch(node, address=meeting, rendezvous=meeting, or_any_port=True, nnodes=(2, 2))
    stage.began(1)
    assert len(stage.layouts()[-1].placements) == 4
    assert len(set(stage.layouts()[-1].launchers.values())) == 2


def test_a_missing_script_is_refused_before_anything_starts(stage: Stage) -> None:
    process = stage.launch(0, command=(sys.executable, "missing.py"))
    assert process.wait(DEADLINE_S) == 1
    said = (stage.directory / "launcher0.log").read_text()
    assert "'missing.py' does not exist" in said
    assert not stage.records()
