"""`eagle-eye stacks` on real processes: one in a lock, two asleep in one function, one that computes, one stopped, one that waits for another."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training.ring_buffer import start_time_of

SCRIPT = """
import pathlib, socket, sys, threading, time
lock = threading.Lock()
def locked():
    lock.acquire(); lock.acquire()
def pause():
    time.sleep(3600)
def asleep():
    pause()
def fold(n):
    return n if n < 2 else fold(n - 1) + fold(n - 2)
def computes():
    while True: fold(12)
def serves():
    server = socket.create_server(("127.0.0.1", 0))
    port = pathlib.Path(sys.argv[2]) / "port"
    port.with_suffix(".new").write_text(str(server.getsockname()[1])); port.with_suffix(".new").rename(port)
    there, _ = server.accept()
    pause()
def receives():
    port = pathlib.Path(sys.argv[2]) / "port"
    while not port.exists(): time.sleep(0.01)
    socket.create_connection(("127.0.0.1", int(port.read_text()))).recv(1)
globals()[sys.argv[1]]()
"""
RANKS = ("locked", "asleep", "asleep", "computes", "asleep", "serves", "receives")
STOPPED = 4
ATTEMPTS = 60


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[int]]]:
    """(run directory, pids by rank)."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(SCRIPT)
    running = [subprocess.Popen([sys.executable, folder / "train.py", what, str(folder)]) for what in RANKS]
    workers = [{"worker": f"r1/node-a/{rank}", "slot": rank, "rank": rank, "pid": each.pid, "start_time": start_time_of(each.pid)} for rank, each in enumerate(running)]
    (folder / "jobs").mkdir()
    (folder / "jobs" / "r1.json").write_text(json.dumps({"job": "team/gpt/r1", "run": "r1", "node": "node-a", "workers": workers}))
    try:
        yield folder, [each.pid for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()


def stacks(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "eagle_eye.app.cli", "stacks", "gpt", "--run-dir", str(folder), "--state-dir", str(folder / "state"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | {"COLUMNS": "80"})


def settled(folder: Path, ready: Callable[[Mapping[str, Any]], bool], *words: str) -> dict[str, Any]:
    """What it shows once the processes have come to their places."""
    for _ in range(ATTEMPTS):
        found: dict[str, Any] = json.loads(stacks(folder, "--json", *words).stdout)
        if ready(found):
            return found
    raise AssertionError(found)


def place_of(found: Mapping[str, Any], rank: int) -> str:
    """Function of the user's innermost frame."""
    return next((str(group["place"]["function"]) for group in found["groups"] if str(rank) in group["members"] and group["place"]), "")


@pytest.fixture(scope="module")
def found(job: tuple[Path, list[int]]) -> dict[str, Any]:
    """Once all are where they stay, with the last one stopped."""
    folder, pids = job
    places = {0: "locked", 1: "pause", 2: "pause", 4: "pause", 5: "pause", 6: "receives"}
    settled(folder, lambda found: all(place_of(found, rank) == place for rank, place in places.items()))
    os.kill(pids[STOPPED], signal.SIGSTOP)
    return settled(folder, lambda found: {each["name"]: each["state"] for each in found["processes"]}[str(STOPPED)] == "T", "--open-files")


def group_of(found: Mapping[str, Any], rank: int) -> dict[str, Any]:
    return next(group for group in found["groups"] if str(rank) in group["members"])


def test_two_that_sleep_in_one_function_are_the_largest_group(found: dict[str, Any]) -> None:
    first = found["groups"][0]
    assert (first["members"], first["motion"], first["place"]["function"]) == (["1", "2"], "stands", "pause")
    assert [frame["function"] for frame in first["frames"]] == ["<module>", "asleep", "pause"]


def test_who_came_to_the_same_place_another_way_parts_where_it_did(found: dict[str, Any]) -> None:
    group = group_of(found, 5)
    assert group["members"] == ["5"]
    assert (group["like"], group["shared"]) == (0, 1)


def test_who_is_in_a_lock_stands_there_and_waits_for_it(found: dict[str, Any]) -> None:
    assert (group_of(found, 0)["motion"], group_of(found, 0)["place"]["function"]) == ("stands", "locked")
    assert found["processes"][0]["waits_for"] == "a lock of Python"


def test_who_is_stopped_is_told_from_those_that_sleep_at_the_same_place(found: dict[str, Any]) -> None:
    group = group_of(found, STOPPED)
    assert (group["members"], group["motion"], group["place"]["function"]) == ([str(STOPPED)], "stopped", "pause")


def test_twin_who_computes_is_shown_as_moving(found: dict[str, Any], job: tuple[Path, list[int]]) -> None:
    """On a busy machine it may get no processor between two looks: it is looked at again, and stands in none."""
    seen: list[str] = []

    def moves(found: Mapping[str, Any]) -> bool:
        seen.append(group_of(found, 3)["motion"])
        return seen[-1] == "moves"

    group = group_of(settled(job[0], moves), 3)
    assert group["members"] == ["3"]
    assert group["frames"][0]["function"] == "<module>"
    assert {each["place"]["function"] for each in group["places"]} <= {"fold", "computes"}
    assert "stands" not in seen


def test_a_socket_is_told_with_its_other_end_and_whose_that_is(found: dict[str, Any]) -> None:
    waits = found["processes"][6]["waits_for"]
    assert waits.startswith("socket tcp 127.0.0.1:")
    assert waits.endswith("(rank 5)")
    mine = [each["ends"] for each in found["processes"][6]["open_files"] if each["ends"]]
    theirs = [each["ends"] for each in found["processes"][5]["open_files"] if each["ends"] and each["ends"]["remote"]]
    assert [(ends["remote"], ends["local"]) for ends in mine] == [(ends["local"], ends["remote"]) for ends in theirs]


def test_what_a_person_reads_fits_the_terminal(found: dict[str, Any], job: tuple[Path, list[int]]) -> None:
    shown = stacks(job[0], "--open-files")
    assert shown.returncode == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "team/gpt/r1 on node-a: 7 ranks, 3 looks, 0.2 s apart" in shown.stdout
    assert "ranks 1-2 (2 of 7): standing in train.py" in shown.stdout
    assert "state T (stopped by a signal)" in shown.stdout


def test_nobody_is_stopped_by_being_looked_at(found: dict[str, Any], job: tuple[Path, list[int]]) -> None:
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in job[1]]
    assert [state in ("T", "t") for state in states] == [rank == STOPPED for rank in range(len(RANKS))]


def test_a_worker_that_has_ended_and_was_not_waited_for_is_a_zombie(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        command = [sys.executable, "-m", "eagle_eye.app.cli", "stacks", "--pid", str(process.pid), "--json", "--state-dir", str(tmp_path)]
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        found = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120).stdout)
    assert (found["groups"][0]["motion"], found["processes"][0]["state"]) == ("ended", "Z")


def test_ctrl_c_leaves_no_py_spy_behind(job: tuple[Path, list[int]], tmp_path: Path) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    # whoever is started in the background of a shell ignores the signal, and so do its children
    command = ["env", "--default-signal=INT", sys.executable, "-m", "eagle_eye.app.cli", "stacks", "--pid", str(job[1][0]), "--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as process:
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complaint.strip() == "Aborted!"
    started = int((tmp_path / "pid").read_text())
    assert start_time_of(started) == 0, "it is gone with the command"
