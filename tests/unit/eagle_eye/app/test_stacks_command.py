"""`eagle-eye stacks` on files from other nodes, and what it says where there is nothing to look at."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eagle_eye import config
from eagle_eye.app.cli import main
from eagle_eye.training.ring_buffer import start_time_of

Cli = Callable[..., Result]
STEP = ("step", "/home/ada/train.py", 33)
ALL_REDUCE = ("all_reduce", "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 3000)
LOAD = ("load", "/home/ada/data.py", 12)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Type `eagle-eye stacks WORDS` on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "SEARCHED", (tmp_path / "eagle-eye.toml",))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")

    def typed(*words: str) -> Result:
        result = CliRunner().invoke(main, ["stacks", *words, "--run-dir", str(tmp_path / "run")])
        assert result.exception is None or isinstance(result.exception, SystemExit), "a bug shows its traceback"
        return result

    return typed


def dump(*frames: tuple[str, str, int], thread: int = 7, name: str = "MainThread") -> dict[str, object]:
    """A thread as py-spy 0.4 writes it."""
    listed = [{"name": function, "filename": file, "module": None, "short_filename": file.rpartition("/")[2], "line": line, "locals": None} for function, file, line in frames]
    return {"pid": 7, "thread_id": 140333369404288, "thread_name": name, "os_thread_id": thread, "active": False, "owns_gil": False, "frames": listed, "process_info": None}


def write(folder: Path, **files: list[dict[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    for name, threads in files.items():
        (folder / f"{name}.json").write_text(json.dumps(threads))


def test_files_of_other_nodes_are_merged_by_rank(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "d", **{f"node{rank % 2}_rank{rank}": [dump(ALL_REDUCE, STEP)] for rank in range(12) if rank != 5}, node1_rank5=[dump(LOAD, STEP)])
    shown = cli("d").output
    assert "Ranks 0-4,6-11 wait for their peers; rank 5 does not." in shown
    assert "2. rank 5 (1 of 12): in data.py:12 load" in shown
    found = json.loads(cli("d", "--json").output)
    assert [(group["members"][-1], group["awaits_peers"]) for group in found["groups"]] == [("11", True), ("5", False)]
    assert found["groups"][1]["frames"][-1] == {"file": "/home/ada/data.py", "line": 12, "function": "load"}


def test_the_main_thread_comes_first_whatever_its_place_in_the_file(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "d", r0=[dump(LOAD, thread=8, name="loader"), dump(STEP)])
    assert "1. rank 0: in train.py:33 step" in cli("d").output


def test_files_of_one_rank_are_told_apart_by_their_paths(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "d", rank0=[dump(STEP)])
    write(tmp_path / "d" / "later", rank0=[dump(STEP)])
    assert "processes d/later/rank0,d/rank0" in cli("d").output.replace("[", "").replace("]", "")


def test_what_is_no_stack_is_named_and_the_others_count(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "d", rank0=[dump(STEP)], rank1=[])
    (tmp_path / "d" / "rank2.json").write_bytes(b'[{"frames": [{"na')
    (tmp_path / "d" / "rank3.json").write_bytes(b"\xff\xfe" * 100)
    (tmp_path / "d" / "rank4.json").write_text('[{"frames": 7}]')
    (tmp_path / "d" / "rank6.json").write_bytes(b"[" * 100_000)
    os.mkfifo(tmp_path / "d" / "rank5.json")
    result = cli("d")
    assert "1 rank in 7 files" in result.output
    assert result.stderr.count("left out:") == 6
    assert "rank5.json: it is no regular file" in result.stderr


def test_a_folder_without_stacks_says_how_to_collect_them(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    result = cli("d")
    assert result.exit_code == 1
    assert "py-spy dump --nonblocking --json --pid PID > rank-N.json" in result.stderr


def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(cli: Cli, tmp_path: Path) -> None:
    deep = [(f"a_function_with_a_rather_long_name_{level}", f"/home/ada/a_module_with_a_rather_long_name_{level}.py", level) for level in range(9)]
    write(tmp_path / "d", rank0=[dump(*deep), dump(*deep, thread=9, name="a thread of ours that has a name of many words")], rank1=[dump(*deep[2:])])
    lines = cli("d").output.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("a_function_with_a_rather_long_name_3") for line in lines)


# --- jobs ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "600"])
    pause = threading.Event()
    while not Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("S"):  # on a busy machine it is still being loaded
        pause.wait(0.001)
    yield process.pid
    process.kill()
    process.wait()


def register(run_dir: Path, job: str, *pids: int, state: str = "running") -> None:
    run = job.rpartition("/")[2]
    workers = [{"worker": f"{run}/node-a/{rank}", "slot": rank, "rank": rank, "pid": pid, "start_time": start_time_of(pid)} for rank, pid in enumerate(pids)]
    (run_dir / "jobs").mkdir(parents=True, exist_ok=True)
    (run_dir / "jobs" / f"{run}.json").write_text(json.dumps({"job": job, "run": run, "node": "node-a", "workers": workers, "state": state}))


def test_where_no_job_runs_it_says_where_it_looked(cli: Cli, tmp_path: Path) -> None:
    result = cli()
    assert result.exit_code == 1
    assert f"looked in {tmp_path / 'run'}" in result.stderr


def test_of_several_jobs_one_is_to_be_named(cli: Cli, tmp_path: Path, sleeper: int) -> None:
    register(tmp_path / "run", "team/gpt/r1", sleeper, sleeper)
    register(tmp_path / "run", "team/vit/r2", sleeper)
    register(tmp_path / "run", "team/old/r3", sleeper, state="stopped")
    result = cli()
    assert "several jobs run here: name one of team/gpt/r1 (2 workers), team/vit/r2 (1 worker)" in result.stderr
    assert "no job other runs on this node; here run team/gpt/r1 (2 workers), team/vit/r2 (1 worker)" in cli("other").stderr


def test_a_process_that_runs_no_python_shows_what_the_kernel_knows(cli: Cli, tmp_path: Path, sleeper: int) -> None:
    register(tmp_path / "run", "team/gpt/r1", sleeper, 1 << 22)
    result = cli("gpt", "--samples", "1")
    assert result.exit_code == 1
    assert "team/gpt/r1 on node-a: 1 rank, 1 look" in result.output
    assert "state S (sleeps)" in result.output
    assert "no stack of rank 0: it runs no Python, or has just begun or ended" in result.stderr
    assert "gone: rank 1" in result.stderr


def test_without_py_spy_it_says_how_to_install_it(cli: Cli, sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    result = cli("--pid", str(sleeper), "--samples", "1")
    assert result.exit_code == 1
    assert "py-spy is not installed; install it: pip install 'eagle-eye[node]'" in result.stderr


def test_where_it_may_not_look_it_says_what_to_allow(cli: Cli, sleeper: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "py-spy"
    refusing.write_text("#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = cli("--pid", str(sleeper), "--samples", "1")
    assert result.exit_code == 1
    assert "this user may not look into it; run it as the user of the job, or as root: sudo $(which eagle-eye) stacks" in result.stderr


def test_processes_and_a_job_are_not_named_together(cli: Cli) -> None:
    assert cli("team/gpt", "--pid", "1").exit_code == 2
    assert "there is no process 4194304" in cli("--pid", str(1 << 22)).stderr
