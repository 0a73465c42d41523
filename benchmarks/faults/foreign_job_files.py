"""Attempts of another user of a node (`nobody`) in the run directory that its launchers share, read by a real agent. Needs root."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.attempt import Answer, Kind
from benchmarks.faults.server_process import ANSWER_S, until
from eagle_eye import wire
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.training.ring_buffer import RingWriter, start_time_of
from eagle_eye.types import Event
from tests.fakes.other_user import USER

NODE = "node-a"
JOB = "team-a/gpt/r1"
CONFIG = """\
[server]
listen = "127.0.0.1:9"
http = ""

[agent]
idle = true
"""
DEAD = {"pid": 2**22 - 1, "start_time": 1}


class SharedNode(NamedTuple):
    """A node whose agent reads a run directory of several users; `ours` and `theirs` are processes of root and of nobody."""

    run_dir: Path
    state: Path
    ours: int
    theirs: int

    def register(self, name: str, user: int, job: str, launcher: int, *workers: dict[str, object]) -> None:
        """Write a job file as a user, whole."""
        run = job.rpartition("/")[2]
        listed = [{"worker": f"{run}/{NODE}/{slot}", "slot": slot, "rank": slot} | worker for slot, worker in enumerate(workers)]
        body = {
            "version": 1, "job": job, "run": run, "node": NODE, "launcher_pid": launcher,
            "launcher_start_time": start_time_of(launcher) if launcher != DEAD["pid"] else 1, "workers": listed,
        }  # fmt: skip
        unfinished = self.run_dir / "jobs" / f"{name}.new"
        unfinished.write_text(json.dumps(body))
        os.chown(unfinished, user, user)
        unfinished.replace(self.run_dir / "jobs" / name)

    def events(self) -> list[Event]:
        """All that the agent has written."""
        reader, found = wire.RecordReader(), list[Event]()
        stream = EmbeddedStream(self.state / "stream")
        try:
            for message in stream.read(OBSERVATIONS, 0, 0, 100_000):
                record = reader.read(message.value)
                if isinstance(record, Event):
                    found.append(record)
        finally:
            stream.close()
        return found

    async def told(self, words: str) -> str:
        """The agent's event that holds these words; '' if none comes."""

        def found() -> str:
            with suppress(Exception):  # the stream is not there yet
                return next((event.message for event in self.events() if words in event.message), "")
            return ""

        with suppress(TimeoutError):
            await until(found, ANSWER_S)
        return found()


@asynccontextmanager
async def shared_node(folder: Path) -> AsyncIterator[SharedNode]:
    """A real agent beside a run directory as the unit makes it."""
    with tempfile.TemporaryDirectory(prefix="faults") as name:
        run_dir = Path(name) / NODE
        (run_dir / "jobs").mkdir(parents=True)
        for path in (run_dir, run_dir / "jobs"):
            path.chmod(0o1770)
            os.chown(path, 0, USER)
        file = folder / "eagle-eye.toml"
        file.write_text(CONFIG)
        cluster = LocalCluster(folder=folder, config_file=file, clock=SystemClock(), state_dir=folder / "state")
        sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
        ours = subprocess.Popen(sleeping)
        theirs = subprocess.Popen(["sleep", "600"], user=USER, group=USER, extra_groups=[])
        process = cluster.start_agent(NODE, "--run-dir", str(run_dir))
        try:
            yield SharedNode(run_dir, folder / "state", ours.pid, theirs.pid)
        finally:
            for each in (process, ours, theirs):
                each.terminate()
                each.wait()


async def _another_s_process(node: SharedNode) -> Answer:
    worker: dict[str, object] = {"pid": node.ours, "start_time": start_time_of(node.ours)}
    node.register("r2.json", USER, "team-b/gpt/r2", node.theirs, worker)
    told = await node.told(f"process {node.ours}, is another user's")
    return Answer(not any(event.job == "team-b/gpt/r2" and str(node.ours) in event.message for event in node.events() if event.name != "claim.refused"), told)


async def _another_s_run(node: SharedNode) -> Answer:
    node.register("r1.json", 0, JOB, node.ours, {"pid": node.ours, "start_time": start_time_of(node.ours)})
    await until(lambda: any(event.job == JOB for event in node.events()) or True, ANSWER_S)
    node.register(f"r1.{USER}.json", USER, JOB, node.theirs, {"pid": node.theirs, "start_time": start_time_of(node.theirs)})
    told = await node.told("the run r1 is of the user 0")
    return Answer(bool(told), told)


async def _another_s_ring(node: SharedNode) -> Answer:
    ring = node.run_dir / "ours.ring"
    RingWriter.create(ring, pid=node.ours, worker=f"r3/{NODE}/0", start_time=start_time_of(node.ours)).close()
    alive: dict[str, object] = {"pid": node.theirs, "start_time": start_time_of(node.theirs), "ring": str(ring)}
    node.register("r4.json", USER, "team-b/gpt/r4", node.theirs, alive, {**DEAD, "ring": str(ring)})
    told = await node.told(f"ring {ring}: it is not of the user {USER}")
    return Answer(ring.exists(), told)


KIND = Kind(
    "job files",
    shared_node,
    {
        "another user's job file names the job's process": _another_s_process,
        "another user's job file claims the job's run": _another_s_run,
        "another user's job file names the job's ring, to read or to have it removed": _another_s_ring,
    },
)
