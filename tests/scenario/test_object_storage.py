"""Checkpoints in a real S3 server: a job stores them while the server is stopped and comes back; writers that are killed in the middle."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from eagle_eye.app.cli import main
from eagle_eye.config import CheckpointsConfig
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import checkpoint_directory
from eagle_eye.training.object_path import ObjectPath
from fakes.elastic_processes import TORCH
from fakes.launchers import LauncherCluster, living, wait_until
from servers.s3 import BUCKET, S3Server

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # s3fs closes its connections when the process ends

SCRIPT = """
import os, time
from pathlib import Path
import torch
import eagle_eye

home = Path(__file__).parent
parameters = [torch.nn.Parameter(torch.zeros(1_500_000)) for _ in range(3)]
optimizer = torch.optim.SGD(parameters, lr=1.0)  # its step adds one
memory = eagle_eye.MemoryCheckpoints([optimizer])
state = lambda: {"model": parameters}
found = memory.load(state())
start = found.step if found else 0
assert all(bool((each == start).all()) for each in parameters)
(home / f"start-{os.environ['EAGLE_EYE_EPOCH']}").write_text(str(start))
memory.prepare(state())
for step in eagle_eye.monitor().steps(range(start, 100_000)):
    for each in parameters:
        each.grad = -torch.ones_like(each)
    optimizer.step()
    if (step + 1) % 5 == 0:
        memory.save(state(), step + 1)
        memory.finish()
        (home / "step").write_text(str(step + 1))
    time.sleep(0.02)
"""
WRITER = """
import sys, threading
from eagle_eye.training.checkpoint import checkpoint_directory, shard_file
from eagle_eye.training.object_path import storage_path

def part(begin, end):
    if end == 40_000_000:  # the last of five parts
        print("half", flush=True)
        threading.Event().wait()
    return bytes(end - begin)

name = checkpoint_directory.new_shard_name(20, 0, 0)
shard_file.write_tensors(storage_path(sys.argv[1]) / name, [shard_file.TensorContent("w", "F32", (10_000_000,), 40_000_000, part)])
"""
"""Of a shard, without torch, which takes its time to import."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    found = S3Server(tmp_path / "s3.log")
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("EAGLE_EYE_CHECKPOINT_DIR", "EAGLE_EYE_SOCKET", "EAGLE_EYE_RESUME_STEP"):
        monkeypatch.delenv(name, raising=False)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def test_a_job_trains_on_while_the_store_is_gone_and_goes_on_from_what_it_has_stored(cluster: LauncherCluster, server: S3Server) -> None:
    (cluster.directory / "train.py").write_text(SCRIPT)
    home = ObjectPath(f"s3://{BUCKET}/gpt")
    given = {
        "nnodes": (1, 1), "nproc": 1, "command": (sys.executable, "train.py"), "preload": TORCH, "checkpoint_dir": home, "backup": CheckpointsConfig(storage_interval_s=0.3),
        "environment": {**os.environ, **server.environment},
    }  # fmt: skip
    cluster.launch(0, **given)
    saved = wait_until("a checkpoint in the store", lambda: cluster.events("checkpoint.saved"))[0]
    assert Path(saved.attributes["path"]).name == f"step-{int(saved.attributes['step']):012d}.json"
    server.stop()
    told = wait_until("the failure", lambda: cluster.events("checkpoint.failed"))
    assert (told[0].attributes["path"], told[0].attributes["errno"], told[0].attributes["free_bytes"]) == (f"s3://{BUCKET}/gpt/memory", "EREMOTEIO", "-1")
    assert "Could not connect" in told[0].attributes["reason"]
    struck = int((cluster.directory / "step").read_text())
    wait_until("training to go on", lambda: int((cluster.directory / "step").read_text() or 0) > struck + 20)
    assert len(cluster.events("checkpoint.failed")) == 1, "told once"
    server.start()
    later = wait_until("a checkpoint after it", lambda: [event for event in cluster.events("checkpoint.saved") if int(event.attributes["step"]) > struck])
    assert len(cluster.events("checkpoint.failed")) == 1
    cluster.launchers[0].kill()
    cluster.launchers[0].wait()
    wait_until("the workers' end", lambda: not living(cluster.run))
    for path in Path("/dev/shm").glob(f"*{cluster.run}*.memory"):
        path.unlink()
    newest = [entry.step for entry in checkpoint.entries(home / "memory") if not entry.missing][-1]
    assert newest >= int(later[0].attributes["step"])
    cluster.launch(0, **given)
    begun = wait_until("the next epoch", lambda: next(iter(sorted(cluster.directory.glob("start-[2-9]"))), None))
    assert int(wait_until("what it has loaded", begun.read_text)) == newest
    cluster.launchers[0].terminate()
    wait_until("the end", lambda: cluster.launchers[0].poll() is not None)


def test_a_writer_that_is_killed_leaves_nothing_that_counts_and_its_upload_goes_later(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    home = f"s3://{BUCKET}/gpt"
    assert checkpoint.save({"w": torch.arange(4.0)}, 10, home) is not None
    before = server.keys
    writer = subprocess.Popen([sys.executable, "-c", WRITER, home], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"half\n"
    writer.kill()
    writer.communicate()
    assert (server.keys, len(server.unfinished)) == (before, 1)
    found = checkpoint.load(home)
    assert found is not None
    assert (found[1], found[0]["w"].tolist()) == (10, [0.0, 1.0, 2.0, 3.0])
    [begun] = server.client.call_s3("list_multipart_uploads", Bucket=BUCKET)["Uploads"]
    for age_s, left in ((3600.0, 1), (2 * checkpoint_directory.LEFT_IN_A_STORE_S, 0)):
        with monkeypatch.context() as then:
            then.setattr("time.time", lambda age_s=age_s: begun["Initiated"].timestamp() + age_s)
            assert checkpoint.save({"w": torch.ones(4)}, 30, home) is not None
        assert len(server.unfinished) == left, "it may still be someone's"


def test_a_part_of_a_large_shard_is_read_and_commands_work(server: S3Server, tmp_path: Path) -> None:
    whole = torch.arange(10_000_000, dtype=torch.float32)
    there, back = f"s3://{BUCKET}/gpt", tmp_path / "back"
    assert checkpoint.save({"w": whole}, 10, tmp_path / "here") is not None
    run = CliRunner()
    for words in (["copy", str(tmp_path / "here"), there], ["verify", there], ["copy", there, str(back)]):
        done = run.invoke(main, ["checkpoint", *words])
        assert done.exit_code == 0, done.output
    listed = json.loads(run.invoke(main, ["checkpoint", "ls", there, "--json"]).output)
    assert (listed["step"], listed["file"], listed["damage"]) == (10, f"{there}/step-000000000010.json", "")
    assert checkpoint.load(back)[0]["w"].equal(whole)
    part = {"w": checkpoint.LocalTensor(torch.zeros(1_000_000), checkpoint.Region((9_000_000,), (1_000_000,)), (10_000_000,))}
    assert checkpoint.restore(part, there) is not None
    assert torch.equal(part["w"].tensor, whole[9_000_000:])
    assert checkpoint.entries(there)[0].manifest.shards[0].chunks is not None
    missing = run.invoke(main, ["checkpoint", "copy", there, "s3://nobodys/gpt"])
    assert (missing.exit_code, "The specified bucket does not exist" in missing.output) == (1, True), missing.output
    server.stop()
    gone = run.invoke(main, ["checkpoint", "ls", there])
    assert (gone.exit_code, "Could not connect" in gone.output) == (1, True), gone.output
