"""The small parts of a launcher: commands, exits, /proc, promises, presence, settings."""

import asyncio
import errno
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from psutil import net_if_addrs

from eagle_eye.config import CheckpointsConfig, NodesConfig, TopologyConfig
from eagle_eye.errors import ConfigError, LaunchError
from eagle_eye.open_file_limit import raise_open_file_limit, tell_no_room_seldom
from eagle_eye.place_file import write_place
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.training.checkpoint.checkpoint_retention import NEWEST_KEPT, CheckpointRetention
from eagle_eye.training.object_path import ObjectPath
from eagle_eye.types import Layout, NodePlace, RankPlacement
from fakes.no_descriptors import no_descriptors
from fakes.paper_settings import settings
from remediation.launcher import own_place
from remediation.launcher.__main__ import read_settings, settings_json
from remediation.launcher.coordinator.failure_signature import signal_name
from remediation.launcher.coordinator.quorum import Electorate
from remediation.launcher.launcher import clean_up, make_directories
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.own_place import OwnPlace
from remediation.launcher.training_command import parse_training_command
from remediation.launcher.vote_log import VoteLog
from remediation.launcher.worker.death_watch import DeathWatch, parse_stat, process_stat
from remediation.launcher.worker.worker_environment import (
    INTERFACE_VARIABLE,
    StoreAddress,
    WorkerPaths,
    interface_of,
    with_gloo_interface,
    worker_environment,
)
from remediation.launcher.worker.worker_exit import code_of, died_at_start
from remediation.launcher.worker.worker_socket import WorkerSocket
from remediation.launcher.worker.workers import Workers


def test_a_python_command_runs_under_its_own_interpreter(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    command = parse_training_command((sys.executable, "train.py", "--lr", "1"), tmp_path)
    assert (command.interpreter, command.python) == (sys.executable, True)
    assert parse_training_command(("train.py",), tmp_path).argv == (sys.executable, "train.py")
    assert parse_training_command((sys.executable, "-m", "package.train"), tmp_path).python
    assert not parse_training_command(("sh", "-c", "true"), tmp_path).python


def test_the_interpreter_behind_a_shim_is_found(tmp_path: Path) -> None:
    shim = tmp_path / "python3"
    shim.write_text(f"#!/bin/sh\nexec {sys.executable} \"$@\"\n")
    shim.chmod(0o755)
    (tmp_path / "train.py").write_text("")
    command = parse_training_command((str(shim), "train.py"), tmp_path)
    assert (command.interpreter, command.argv) == (sys.executable, (sys.executable, "train.py"))


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "no training command"), (("no-such-program",), "'no-such-program' does not exist"),
     (("missing.py",), "'missing.py' does not exist in"), ((sys.executable, "-u", "missing.py"), "'missing.py' does not exist in"),
     ((sys.executable,), "no script")],
)  # fmt: skip
def test_a_command_that_cannot_run_is_refused_by_name(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        parse_training_command(words, tmp_path)


def test_a_launcher_knows_the_place_of_its_node_by_the_agent_else_by_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_place, "LOOK_S", 0.001)
    topology = TopologyConfig(nodes=(NodesConfig(hosts="n[0-3]", switch="leaf-1"),))
    own = OwnPlace("n1", tmp_path, topology)
    assert own.now() == NodePlace(switch="leaf-1", source="configuration")
    reports: list[tuple[str, dict]] = []

    async def until_told(count: int) -> None:
        async with asyncio.timeout(30):
            watch = asyncio.create_task(own.watch(lambda kind, body: reports.append((kind, body))))
            while len(reports) < count:
                await asyncio.sleep(0.001)
            watch.cancel()

    place = NodePlace(switch="leaf-2", rack="a07", source="lldp")
    write_place(tmp_path, "n1", place)
    asyncio.run(until_told(1))
    assert own.now() == place
    write_place(tmp_path, "n1", NodePlace(switch="leaf-3"))
    asyncio.run(until_told(2))
    assert [(kind, body["place"]["switch"], body["lasting"]) for kind, body in reports] == [("place", "leaf-2", True), ("place", "leaf-3", True)], "once each"


def test_two_jobs_have_two_folders_of_checkpoints(tmp_path: Path) -> None:
    """They would load and delete each other's."""
    jobs = ("a_b/c/d", "a/b_c/d", "a/b/c_d", "a_b_c/d/e", "a/b/c.d")
    folders = [settings(tmp_path, job=job).checkpoints for job in jobs]
    assert len(set(folders)) == len(jobs)
    assert not any(folder in other.parents for folder in folders for other in folders)


def test_checkpoints_in_memory_are_stored_where_a_directory_is_named_for_them(tmp_path: Path) -> None:
    given, never = settings(tmp_path, checkpoint_dir=tmp_path / "gpt"), CheckpointsConfig(storage_interval_s=0)
    assert given.stored_copies == tmp_path / "gpt" / "memory"
    assert settings(tmp_path).stored_copies is None, "the state directory is not filled with them"
    assert settings(tmp_path, checkpoint_dir=tmp_path / "gpt", backup=never).stored_copies is None
    assert [each.copies_in_memory for each in (given, settings(tmp_path))] == [3, 2], "a slot more, which is taken while another is written"
    assert given.checkpoint_directories == (tmp_path / "gpt", tmp_path / "gpt" / "memory"), "a roll-back counts both"
    assert given.stored_retention == NEWEST_KEPT
    configured = CheckpointsConfig(storage_keep=5, storage_keep_steps=1000, storage_keep_hours=24, memory_steps=4)
    assert settings(tmp_path, backup=configured).stored_retention == CheckpointRetention(newest=5, each_steps=1000, each_hours=24.0)
    assert settings(tmp_path, backup=configured).copies_in_memory == 4


def test_a_directory_of_checkpoints_may_be_a_url(tmp_path: Path) -> None:
    given = settings(tmp_path, checkpoint_dir=ObjectPath("memory://models/gpt"))
    assert given.stored_copies == ObjectPath("memory://models/gpt/memory")
    assert read_settings(settings_json(given)) == given
    make_directories(given)
    with pytest.raises(LaunchError, match=r"--checkpoint-dir nothing://gpt cannot be used: Protocol not known"):
        make_directories(settings(tmp_path, checkpoint_dir=ObjectPath("nothing://gpt")))
    assert not list(tmp_path.glob("**/models")), "no folder of that name"


def test_settings_refuse_what_cannot_work(tmp_path: Path) -> None:
    for wrong in ({"job": "name"}, {"node": "a/b"}, {"node": ".."}, {"job": "a/b/.."}, {"job": "a/b/*"}, {"nproc": 0}, {"nnodes": (3, 2)}):
        with pytest.raises(ConfigError):
            settings(tmp_path, **wrong)
    with pytest.raises(ConfigError, match=r"--min-workers 5 is more than the job can have.*--nproc-per-node.*lower it"):
        settings(tmp_path, nproc=2, min_workers=5)
    assert settings(tmp_path, nproc=2, min_workers=2).nproc == 2
    assert settings(tmp_path, nproc=2, min_workers=5, nnodes=(1, 2)).nproc == 2, "the other node may have more"
    assert read_settings(settings_json(settings(tmp_path, nnodes=(1, 2)))) == settings(tmp_path, nnodes=(1, 2))


def test_a_second_launcher_of_a_run_is_refused_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    first = WorkerSocket(tmp_path / "7-launcher.sock", lambda _: None)

    async def both() -> None:
        first.check_free()
        await first.start()
        with pytest.raises(LaunchError, match="--run-dir each"):
            WorkerSocket(tmp_path / "7-launcher.sock", lambda _: None).check_free()
        await first.stop()

    asyncio.run(both())
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "7-launcher.sock"))
    first.check_free()


def test_a_launcher_removes_the_sockets_of_its_own_run_alone(tmp_path: Path) -> None:
    given = settings(tmp_path, job="t/n/7")
    workers = Workers(given, parse_training_command((sys.executable, "-m", "x"), tmp_path), {}, lambda *_: None)
    for name in ("7-0-1.sock", "7-0-1.sock.fr", "7-1-0-1.sock", "7-launcher.sock"):
        (tmp_path / name).touch()
    workers.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7-1-0-1.sock", "7-launcher.sock"]


def test_exits_in_words() -> None:
    assert code_of(3 << 8) == 3
    assert signal_name(code_of(signal.SIGKILL)) == "SIGKILL"
    assert [code_of(code << 8) for code in (137, 143, 139, 255, 128)] == [-9, -15, -11, 255, 128], "a shell passes a signal on"
    assert (code_of(None), signal_name(None), signal_name(1)) == (None, "", "")


@pytest.mark.parametrize(
    ("code", "completed", "young", "early"),
    [(1, 0, False, True), (1, 3, True, False), (-9, 0, True, False), (-15, None, True, False), (-11, 0, True, True),
     (1, None, True, True), (1, None, False, False), (None, 0, True, False)],
)  # fmt: skip
def test_who_never_began(code: int | None, completed: int | None, young: bool, early: bool) -> None:
    assert died_at_start(code, completed, young=young) is early


def test_the_flag_of_a_dying_process_is_read() -> None:
    living = process_stat(1)
    assert living is not None
    assert not living.exiting
    fields = ["S"] + ["0"] * 49
    fields[6], fields[19], fields[49] = str(0x400100 | 4), "77", "9"
    seen = parse_stat("12 (a name) with) " + " ".join(fields))
    assert (seen.exiting, seen.start_time, seen.status) == (True, 77, 9)
    fields[6] = str(0x400100)
    assert parse_stat("12 (x) " + " ".join(fields)).status is None


def test_each_death_is_told_once_with_its_status() -> None:
    async def watch() -> list[tuple[int, int | None]]:
        told: list[tuple[int, int | None]] = []
        heard = asyncio.Event()

        def hear(pid: int, status: int | None) -> None:
            told.append((pid, status))
            heard.set()

        deaths = DeathWatch(hear, look_s=0.002)
        child = subprocess.Popen(["sleep", "60"])
        deaths.watch(child.pid)
        looking = asyncio.create_task(deaths.run())
        child.kill()
        async with asyncio.timeout(5):
            await heard.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        child.wait()
        looking.cancel()
        deaths.close()
        return told

    told = asyncio.run(watch())
    assert len(told) == 1
    assert told[0][1] in (signal.SIGKILL, None), "the kernel shows the status at once, or not at all"


def test_a_worker_that_cannot_be_watched_for_want_of_descriptors_is_not_dead() -> None:
    """Its death was told, and all workers were started again."""

    async def watch() -> list[int]:
        told: list[int] = []
        heard = asyncio.Event()

        def hear(pid: int, _status: int | None) -> None:
            told.append(pid)
            heard.set()

        deaths = DeathWatch(hear, look_s=0.002)
        child = subprocess.Popen(["sleep", "60"])
        with no_descriptors():
            deaths.watch(child.pid)
            deaths.look()
            await asyncio.sleep(0)
        assert told == []
        deaths.look()
        child.kill()
        async with asyncio.timeout(60):
            await heard.wait()
        child.wait()
        deaths.watch(child.pid)
        await asyncio.sleep(0)
        deaths.close()
        return told

    told = asyncio.run(watch())
    assert len(told) == 2, "twin: one that is gone is told at once"


def test_a_launcher_may_open_more_files_than_its_workers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_open_file_limit() == (256, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_that_cannot_be_accepted_are_told_seldom() -> None:
    """asyncio logged 6 MB of tracebacks in a minute."""

    async def run() -> list[str]:
        loop, told = asyncio.get_running_loop(), list[str]()
        loop.default_exception_handler = lambda context: told.append(context["message"])  # type: ignore[method-assign]
        tell_no_room_seldom(loop)
        for _ in range(100):
            loop.call_exception_handler({"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
        for _ in range(2):
            loop.call_exception_handler({"message": "twin", "exception": OSError(errno.EPIPE, "Broken pipe")})
        return told

    assert asyncio.run(run()) == ["accept", "twin", "twin"]


def left_by(given: LauncherSettings, *files: Path) -> list[str]:
    """What lies in the state directory after the end of a run that had left this much."""
    fence, terms = CommandFence(given.state_dir / "votes" / given.job / "n0"), VoteLog(given.state_dir, given.job, given.node)
    fence.admit_term(2)
    terms.promise(Electorate(epoch=3, ballot="a"))
    terms.end()
    for directory in (given.logs, given.checkpoints):
        directory.mkdir(parents=True)
    for file in (given.logs / "0.log", *files):
        file.touch()
    clean_up(given, fence)
    return sorted(str(path.relative_to(given.state_dir)) for path in given.state_dir.rglob("*"))


def test_a_run_that_is_over_leaves_its_log_and_its_vote(tmp_path: Path) -> None:
    left = left_by(settings(tmp_path))
    assert left == ["checkpoints", "logs", "logs/r", "logs/r/n0", "logs/r/n0/0.log", "votes", "votes/t", "votes/t/n", "votes/t/n/r", "votes/t/n/r/n0.json"]
    assert VoteLog(tmp_path, "t/n/r", "n0").record.promised == 3, "a start of the same run id begins above"


def test_a_checkpoint_or_a_directory_of_the_users_is_never_swept(tmp_path: Path) -> None:
    given = settings(tmp_path)
    assert "checkpoints/t/n/r/step-1" in left_by(given, given.checkpoints / "step-1")
    chosen = settings(tmp_path / "other", checkpoint_dir=tmp_path / "other" / "mine")
    assert "mine" in left_by(chosen)


def test_a_vote_is_given_once_and_outlives_the_launcher(tmp_path: Path) -> None:
    file = VoteLog(tmp_path, "r", "n0")
    assert file.promise(Electorate(epoch=3, ballot="a"))
    assert not VoteLog(tmp_path, "r", "n0").promise(Electorate(epoch=3, ballot="b")), "it names a layout, not a number"
    assert VoteLog(tmp_path, "r", "n0").promise(Electorate(epoch=3, ballot="a")), "the answer was lost, and it is asked for again"
    assert not VoteLog(tmp_path, "r", "n0").promise(Electorate(epoch=2, ballot="a"))
    file.valid(Layout(job="t/n/r", epoch=3, time=0.0, coordinator="n0", launchers={}, placements=()))
    again = VoteLog(tmp_path, "r", "n0").record
    assert again.last is not None
    assert (again.promised, again.last.epoch, again.over) == (3, 3, False)
    file.end()
    assert VoteLog(tmp_path, "r", "n0").record.over


def test_the_environment_of_a_worker() -> None:
    places = tuple(
        RankPlacement(worker=f"r/n{node}/{slot}", node=f"n{node}", rank=2 * node + slot, local_rank=slot)
        for node in (0, 1) for slot in (0, 1)
    )  # fmt: skip
    layout = Layout(
        job="t/n/r", epoch=5, time=0.0, coordinator="n0", launchers={"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"},
        placements=places, resume_step=40, skipped=(41, 43), rolled_back=((2, 30), (5, 40)),
    )  # fmt: skip
    paths = WorkerPaths(inbox="i", ring="ring", probe="p", checkpoints="c", memory="m", copies=3)
    found = worker_environment({"PATH": "x"}, layout, places[3], StoreAddress(host="127.0.0.1", port=77), paths, "secret", 3)
    assert (found["RANK"], found["LOCAL_RANK"], found["GROUP_RANK"], found["WORLD_SIZE"]) == ("3", "1", "1", "4")
    assert (found["MASTER_PORT"], found["TORCHELASTIC_USE_AGENT_STORE"], found["PATH"]) == ("77", "True", "x")
    assert (found["EAGLE_EYE_WORKER"], found["EAGLE_EYE_EPOCH"]) == ("r/n1/1", "5")
    assert (found["EAGLE_EYE_RESUME_STEP"], found["EAGLE_EYE_SKIP_STEPS"], found["EAGLE_EYE_ROLLED_BACK"]) == ("40", "41,43", "2:30,5:40")
    assert (found["EAGLE_EYE_CHECKPOINT_DIR"], found["EAGLE_EYE_CHECKPOINT_MEMORY"], found["EAGLE_EYE_CHECKPOINT_COPIES"]) == ("c", "m", "3")
    assert found["GLOO_SOCKET_IFNAME"] == "lo"
    elsewhere = msgspec.structs.replace(layout, launchers={"n0": "10.0.0.1:1", "n1": "10.0.0.2:1"})
    assert "GLOO_SOCKET_IFNAME" not in worker_environment({}, elsewhere, places[0], StoreAddress(host="h", port=1), paths, "", 3)


def test_gloo_uses_the_interface_that_the_launcher_listens_on() -> None:
    assert interface_of("127.0.0.1:29400") == interface_of("localhost:0") == "lo"
    assert interface_of("192.0.2.1:29400") == "", "an address of documentation (RFC 5737): of no machine"
    assert interface_of("no-such-host.invalid:29400") == ""
    assert with_gloo_interface({"PATH": "x"}, "127.0.0.1:29400") == {"PATH": "x"}, "where all are on loopback the layout says so"
    assert with_gloo_interface({INTERFACE_VARIABLE: "ib0"}, "192.0.2.1:1") == {INTERFACE_VARIABLE: "ib0"}, "the user's choice"
    own = next((f"{end.address}:1", name) for name, ends in net_if_addrs().items() for end in ends if end.family == socket.AF_INET)
    assert interface_of(own[0]) == own[1]
