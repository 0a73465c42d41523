"""What dead owners left is taken away, and nothing else."""

import contextlib
import json
import os
import socket
import struct
from pathlib import Path

from collectors.agent.garbage_collector import MEMORY_KEPT_S, YOUNG_S, _has_no_listener, collect_garbage
from collectors.agent.job_directory import JobDirectory
from collectors.worker.procfs import ProcessHandle, alive
from eagle_eye.clock import FakeClock
from eagle_eye.training.checkpoint import memory_segment
from eagle_eye.training.ring_buffer import RingWriter, start_time_of
from eagle_eye.types import digest_of
from fakes.no_descriptors import no_descriptors
from fakes.ring_trainer import DEAD_PID, Trainer, write_listing


def test_a_recycled_pid_is_another_process() -> None:
    assert ProcessHandle.open(os.getpid(), start_time_of(os.getpid()) + 1) is None
    process = ProcessHandle.open(os.getpid(), start_time_of(os.getpid()))
    assert process is not None
    look = process.read()
    assert look is not None
    assert look.cpu_s > 0
    process.close()


def test_what_a_killed_launcher_left_is_swept(tmp_path: Path, clock: FakeClock) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    dead, living = Trainer(tmp_path, 0, clock, pid=DEAD_PID), Trainer(tmp_path, 1, clock)
    home = digest_of(str(tmp_path))[:8]
    stray, elsewhere = shared / f"eagle-eye-0-r0-n1-{home}-0-1.ring", shared / f"eagle-eye-0-r0-n2-{home}-0-1.ring"
    of_others = shared / "eagle-eye-0-r0-n1-12345678-0-1.ring"
    for path, worker in ((stray, "r0/n1/0"), (elsewhere, "r0/n2/0"), (of_others, "r0/n1/0")):
        RingWriter.create(path, pid=DEAD_PID, worker=worker, start_time=1).close()
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "precious").touch()
    dead_socket = tmp_path / "r1-0-1.sock"
    listening = socket.socket(socket.AF_UNIX)
    with listening, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(dead_socket))
        beside = {tmp_path / "r1-0-1.sock.fr", tmp_path / "r1-0-1.sock.groups"}
        for path in beside:
            path.touch()
        listening.bind(str(tmp_path / "r2-launcher.sock"))
        listening.listen()
        write_listing(tmp_path, dead, living, launcher=DEAD_PID)
        (listing,) = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*.json")]
        listing["workers"][0]["socket"] = str(outside / "precious")
        (tmp_path / "jobs" / "r1.json").write_text(json.dumps(listing))
        jobs = JobDirectory(tmp_path).read()
        later = max(path.stat().st_mtime for path in tmp_path.rglob("*")) + 120
        removed = collect_garbage(tmp_path, jobs, later, "n1", shared)
    assert set(removed) == {dead.path, stray, dead_socket, *beside}
    assert living.path.exists()
    assert elsewhere.exists()
    assert of_others.exists(), "of another run directory: its launcher may live"
    assert (outside / "precious").exists(), "a listing cannot make us remove anything outside our folders"
    assert (tmp_path / "r2-launcher.sock").exists()


def test_checkpoints_in_memory_outlive_a_killed_launcher_for_a_time(tmp_path: Path, clock: FakeClock) -> None:
    shared, home = tmp_path / "shared", digest_of(str(tmp_path))[:8]
    shared.mkdir()
    names = {"r0-n1": "r0/n1/0", "r1-n1": "r1/n1/0", "r0-n2": "r0/n2/0", "r2-n1": "r2/n1/0"}
    paths = {worker: shared / f"eagle-eye-0-{name}-{home}-0.memory" for name, worker in names.items()}
    reserved = shared / f"eagle-eye-0-r0-n1-{home}-1.memory.77.new"
    for worker, path in {**paths, "r0/n1/1": reserved}.items():
        path.write_bytes(header(worker, os.getpid() if worker == "r2/n1/0" else DEAD_PID))
    (shared / f"eagle-eye-0-r0-n1-{home}-2.memory").write_text("nothing of ours")
    write_listing(tmp_path, Trainer(tmp_path, 0, clock), launcher=os.getpid())  # of run r1
    jobs, now = JobDirectory(tmp_path).read(), reserved.stat().st_mtime
    assert collect_garbage(tmp_path, jobs, now + MEMORY_KEPT_S - 60, "n1", shared) == [], "its launcher may be started again"
    assert collect_garbage(tmp_path, jobs, now + MEMORY_KEPT_S + 60, "n1", shared) == [paths["r0/n1/0"], reserved]


def test_what_workers_shared_for_a_moment_goes_after_a_minute(tmp_path: Path, clock: FakeClock) -> None:
    """Whoever left it: of an object that was loaded no more than a part lies there."""
    shared, home = tmp_path / "shared", digest_of(str(tmp_path))[:8]
    shared.mkdir()
    left, elsewhere = shared / f"eagle-eye-0-r1-n1-{home}-0123abcd.chunk", shared / "eagle-eye-0-r1-n1-76543210-0123abcd.chunk"
    for path in (left, elsewhere):
        path.write_bytes(b"content")
    write_listing(tmp_path, Trainer(tmp_path, 0, clock), launcher=os.getpid())
    jobs, now = JobDirectory(tmp_path).read(), left.stat().st_mtime
    assert collect_garbage(tmp_path, jobs, now + YOUNG_S - 10, "n1", shared) == []
    assert collect_garbage(tmp_path, jobs, now + YOUNG_S + 10, "n1", shared) == [left]


def header(worker: str, pid: int) -> bytes:
    """The first page of a segment of checkpoints."""
    path = Path(f"/proc/{pid}")
    start = start_time_of(pid) if path.exists() else 1
    name = worker.encode()
    return struct.pack("<8s5q", memory_segment.MAGIC, memory_segment.VERSION, 0, pid, start, len(name)).ljust(128, b"\0") + name.ljust(4096 - 128, b"\0")


def test_what_a_killed_launcher_itself_listened_on_goes_at_once(tmp_path: Path, clock: FakeClock) -> None:
    dead = Trainer(tmp_path, 0, clock, pid=DEAD_PID)
    write_listing(tmp_path, dead, launcher=DEAD_PID)
    names = ("r1-launcher.sock", "r1-elastic.sock", "r2-launcher.sock")
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(tmp_path / name))
        removed = collect_garbage(tmp_path, JobDirectory(tmp_path).read(), 0.0, "n1", tmp_path / "shared")
    assert removed == [dead.path, tmp_path / "r1-launcher.sock", tmp_path / "r1-elastic.sock"], "the young one may be about to listen"


def test_a_process_that_cannot_be_looked_at_for_want_of_descriptors_is_not_dead(tmp_path: Path) -> None:
    """The ring of a worker that trains was removed, as its launcher and it seemed to be dead."""
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "r1-launcher.sock"))
        with no_descriptors():
            seen = alive(os.getpid(), start_time=1), _has_no_listener(tmp_path / "r1-launcher.sock")
        assert seen == (True, False)
        assert (alive(os.getpid(), start_time=1), alive(DEAD_PID)) == (False, False), "twin: with a descriptor it is known to be another"
        assert _has_no_listener(tmp_path / "r1-launcher.sock")


def test_nothing_of_a_living_launcher_is_swept(tmp_path: Path, clock: FakeClock) -> None:
    dead = Trainer(tmp_path, 0, clock, pid=DEAD_PID)
    write_listing(tmp_path, dead)
    jobs = JobDirectory(tmp_path).read()
    assert collect_garbage(tmp_path, jobs, 1e12, "n1", tmp_path) == []
