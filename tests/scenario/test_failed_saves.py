"""Checkpoints that storage refuses, with real launchers: the job trains on, is not restarted, and saves again once there is room."""

import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detectors.checkpoint_saves import CheckpointSaves
from detectors.exceptions import Exceptions
from detectors.exits import Exits
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import IncidentRecord
from eagle_eye.training import checkpoint
from eagle_eye.types import Claim
from fakes import elastic_script
from fakes.elastic_processes import TORCH
from fakes.launchers import DEADLINE_S, LauncherCluster, wait_until
from fakes.synthetic_events import claims_of, cut_frame

LITTLE = 16_384
"""Bytes that a file may have on the full disk: enough for logs, and not for the state."""

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import eagle_eye
from eagle_eye.training import checkpoint

home, slow = Path(__file__).parent, Path(__file__).with_name("slow-disk")
real = os.fsync

def fsync(file):
    if slow.exists():
        time.sleep(2.0)
    real(file)

os.fsync = fsync
state = {"weights": torch.zeros(20_000)}
monitor = eagle_eye.monitor()
for step in monitor.steps(range(10**9)):
    time.sleep(0.02)
    written = home / f"step.{os.environ['RANK']}"
    written.write_text(str(step))
    written.replace(home / "step")
    if os.environ["RANK"] == "0" and (step + 1) % 10 == 0:
        with monitor.phase("checkpoint"):
            checkpoint.save(state, step + 1)
    if (home / "stop").exists():
        break
"""


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def fill(pid: int, size: int) -> None:
    """From now on no file of the process can grow beyond `size` bytes, as if the disk were full."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))


def plain(cluster: LauncherCluster, kept: Path) -> Callable[[], int]:
    """A plain script on two workers; returns what reads its step."""
    (cluster.directory / "train.py").write_text(SCRIPT)
    cluster.launch(0, nnodes=(1, 1), nproc=2, command=(sys.executable, "train.py"), checkpoint_dir=kept, preload=TORCH)
    told = cluster.directory / "step"
    return lambda: int(told.read_text()) if told.exists() else 0


def elastic(cluster: LauncherCluster, kept: Path) -> Callable[[], int]:
    """An elastic job on two workers."""
    (cluster.directory / "train.py").write_text(elastic_script.SCRIPT)
    (cluster.directory / "slow").touch()
    command = elastic_script.command(10**9, 5)
    cluster.launch(0, nnodes=(1, 1), nproc=2, command=command, checkpoint_dir=kept, preload=TORCH)
    return lambda: len(elastic_script.steps_of(cluster.directory))


CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[engine]
mode = "auto"
"""


@pytest.fixture
def deployed() -> Iterator[DemoJob]:
    """A plain script with server, agents and launchers, whatever an engine may do allowed."""
    with tempfile.TemporaryDirectory(prefix="saves") as folder:  # short: paths of unix sockets are limited
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        made = DemoJob(folder=Path(folder), config=CONFIG, command=(sys.executable, str(script)), job="test/saves", clock=SystemClock())
        try:
            made.start()
            yield made
        finally:
            made.stop()


def claims(cluster: LauncherCluster) -> list[Claim]:
    """What the detector makes of what the launchers wrote."""
    events = sorted(cluster.events("checkpoint.failed") + cluster.events("checkpoint.saved"), key=lambda event: event.number)
    return claims_of(CheckpointSaves(), [cut_frame(event.time, event) for event in events])


def undisturbed(cluster: LauncherCluster) -> bool:
    """No worker ended or raised, and no epoch was begun but those with which a job begins."""
    reasons = {event.attributes["reason"] for event in cluster.events("epoch.started")}
    return not cluster.events("exit") and not cluster.events("exception") and reasons <= {"start", "join"}


@pytest.mark.parametrize("start", [plain, elastic])
def test_a_full_disk_stops_no_training_and_it_saves_again_once_there_is_room(
    start: Callable[[LauncherCluster, Path], Callable[[], int]], cluster: LauncherCluster, kept: Path
) -> None:
    step = start(cluster, kept)
    wait_until("a checkpoint", lambda: cluster.events("checkpoint.saved"))
    pids = cluster.pids(0)
    for pid in pids:
        fill(pid, LITTLE)
    failed = cluster.event("checkpoint.failed")
    assert (failed.attributes["path"], failed.attributes["errno"]) == (str(kept), "EFBIG")
    assert failed.attributes["worker"] == f"{cluster.run}/n0/0"
    assert int(failed.attributes["free_bytes"]) > 0
    struck, newest = step(), checkpoint.entries(kept)[-1].step
    wait_until("training to go on", lambda: step() > struck + 25)
    assert checkpoint.entries(kept)[-1].step == newest, "nothing was saved"
    assert (checkpoint.load(kept) or ({}, -1))[1] == newest, "and what was saved before is whole"
    assert [claim.active for claim in claims(cluster)] == [True]
    assert cluster.pids(0) == pids

    for pid in pids:
        fill(pid, resource.RLIM_INFINITY)
    wait_until("a later checkpoint", lambda: checkpoint.entries(kept)[-1].step > newest)
    wait_until("its end", lambda: [claim.active for claim in claims(cluster)][-1] is False)
    assert [claim.active for claim in claims(cluster)] == [True, False]
    assert undisturbed(cluster)


def test_a_script_that_ends_without_room_ends_well_after_a_while_and_says_what_is_lost(cluster: LauncherCluster, kept: Path) -> None:
    plain(cluster, kept)
    launcher = cluster.launchers[0]
    wait_until("a checkpoint", lambda: cluster.events("checkpoint.saved"))
    for pid in cluster.pids(0):
        fill(pid, LITTLE)
    wait_until("a word", lambda: cluster.events("checkpoint.failed"))
    (cluster.directory / "stop").touch()
    assert launcher.wait(60) == 0
    assert undisturbed(cluster)
    log = next((cluster.directory / "state" / "logs").glob("*/n0/0.log")).read_text()
    assert f"was never written to {kept}: its state is lost" in log


def test_twin_a_slow_save_is_no_failed_one(cluster: LauncherCluster, kept: Path) -> None:
    step = plain(cluster, kept)
    saved = len(wait_until("a checkpoint", lambda: cluster.events("checkpoint.saved")))
    (cluster.directory / "slow-disk").touch()
    wait_until("slow checkpoints", lambda: len(cluster.events("checkpoint.saved")) > saved + 1)
    assert step() > 0
    assert not cluster.events("checkpoint.failed")
    assert claims(cluster) == []
    assert undisturbed(cluster)
    cluster.launchers[0].send_signal(signal.SIGTERM)


def test_the_incident_names_path_error_and_room_accuses_nobody_and_closes_with_the_next_save(deployed: DemoJob) -> None:
    def wait(what: str, condition: Callable[[], bool]) -> None:
        assert deployed.wait(condition, DEADLINE_S), f"{what}\n{[(each.incident.cause, each.state) for each in deployed.record.kept]}"

    def storage_errors() -> list[IncidentRecord]:
        return [kept for kept in deployed.record.kept if kept.incident.cause == "storage error"]

    wait("a job that trains and has saved", lambda: deployed.full() and bool(list(deployed.cluster.state_dir.glob("checkpoints/**/step-*.json"))))
    workers = deployed.workers()
    for worker in workers:
        fill(worker.pid, LITTLE)
    wait("the incident", lambda: bool(storage_errors()))
    assert deployed.wait_steps(60, DEADLINE_S), "training goes on"
    (opened,) = storage_errors()
    assert opened.state == "open"
    assert opened.incident.culprits == ()
    text = opened.incident.evidence[0].text
    for words in (str(deployed.cluster.state_dir / "checkpoints"), "EFBIG: File too large", " are free there", "it needs "):
        assert words in text
    for worker in workers:
        fill(worker.pid, resource.RLIM_INFINITY)
    wait("its end", lambda: {kept.state for kept in storage_errors()} == {"closed"})
    layout = deployed.record.trace.layout
    assert layout is not None
    assert layout.excluded == ()
    assert {worker.pid for worker in deployed.workers()} == {worker.pid for worker in workers}, "no worker was restarted"


OWN_SAVE = f"""
import os, resource
import torch
import eagle_eye

for step in eagle_eye.monitor().steps(range(10)):
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, ({LITTLE}, resource.RLIM_INFINITY))
torch.save({{"weights": torch.zeros(20_000)}}, os.environ["EAGLE_EYE_CHECKPOINT_DIR"] + "/mine.pt")
"""


def test_a_scripts_own_save_without_room_is_told_with_path_and_room(cluster: LauncherCluster, kept: Path) -> None:
    (cluster.directory / "train.py").write_text(OWN_SAVE)
    cluster.launch(0, nnodes=(1, 1), nproc=1, command=(sys.executable, "train.py"), checkpoint_dir=kept, preload=TORCH, heal="none")
    raised = cluster.event("exception")
    assert raised.attributes["path"] == str(kept / "mine.pt")
    assert int(raised.attributes["free_bytes"]) > 0
    (claim, *_) = claims_of(Exceptions(), [cut_frame(raised.time, raised)])
    assert claim.evidence[0].status == "storage error"
    assert str(kept / "mine.pt") in claim.evidence[1].text


WRITES = f"""
import os, resource, traceback
import eagle_eye

for step in eagle_eye.monitor().steps(range(10)):
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, ({LITTLE}, resource.RLIM_INFINITY))

def save():
    with open(os.environ["EAGLE_EYE_CHECKPOINT_DIR"] + "/mine.bin", "wb") as file:
        file.write(bytes(200_000))

"""
WRAPPED = """
try:
    save()
except OSError as error:
    raise RuntimeError("the callback failed") from error
"""
SURVIVED = """
try:
    save()
except OSError:
    traceback.print_exc()
raise ValueError("negative length")
"""


@pytest.mark.parametrize(
    ("end", "statuses"), [(WRAPPED, ("storage error", "storage error")), (SURVIVED, ("other software error", "exited abnormally"))], ids=["wrapped", "survived"]
)
def test_a_save_without_room_is_told_below_the_scripts_own_exception_and_not_if_it_was_survived(
    cluster: LauncherCluster, kept: Path, end: str, statuses: tuple[str, str]
) -> None:
    (cluster.directory / "train.py").write_text(WRITES + end)
    cluster.launch(0, nnodes=(1, 1), nproc=1, command=(sys.executable, "train.py"), checkpoint_dir=kept, heal="none")
    raised = cluster.event("exception")
    ended = cluster.event("exit")
    assert "the callback failed" in raised.message or "negative length" in raised.message
    (exception,) = claims_of(Exceptions(), [cut_frame(raised.time, raised)])
    (left,) = claims_of(Exits(), [cut_frame(ended.time, ended)])
    assert (exception.evidence[0].status, left.evidence[0].status) == statuses
