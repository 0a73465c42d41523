"""Elastic workers as real processes, each running a script, and a launcher's end that plans as the launcher does.

A script finds its output redirected to a file; `said` reads the JSON lines of it.
"""

import json
import multiprocessing
import os
import runpy
import signal
from pathlib import Path

from eagle_eye.training.elastic.epoch_protocol import EpochAssignment
from eagle_eye.training.messages import ProbeMessage
from eagle_eye.types import WorkerStateReport
from fakes.elastic_members import layout_of
from fakes.launcher_sessions import FakeLauncher
from remediation.transition import plan_transition

FORKS = multiprocessing.get_context("forkserver")  # so that what all of them need is imported once
TORCH = ("torch", "torch.distributed", "torch._dynamo", "eagle_eye.training.elastic.api")
FORKS.set_forkserver_preload(list(TORCH))
START = """
import os
os.environ.update({environment})
os.chdir({folder!r})
for stream in (1, 2):
    os.dup2(os.open({out!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
"""


def said_in(output: Path) -> list[dict[str, object]]:
    """The JSON values of a worker's output so far."""
    text = output.read_text() if output.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"') and line.endswith("}")]


class Worker:
    """A process that runs a script."""

    def __init__(self, folder: Path, name: str, script: str, **environment: str) -> None:
        self._out, path = folder / f"{name}.out", folder / f"{name}.py"
        environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "EAGLE_EYE_CHECKPOINT_DIR": str(folder / "kept")}
        path.write_text(START.format(environment=environment, folder=str(folder), out=str(self._out)) + script)
        self._process = FORKS.Process(target=runpy.run_path, args=(str(path),))
        self._process.start()

    def said(self) -> list[dict[str, object]]:
        """The JSON values that it has printed."""
        return said_in(self._out)

    def end(self) -> list[dict[str, object]]:
        """What it has said once it has ended, which it has to do well."""
        self._process.join(90)
        assert self._process.exitcode == 0, self._out.read_text()
        return self.said()

    def kill(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGKILL)

    def close(self) -> None:
        self._process.kill()
        self._process.join()


class Job:
    """Workers, and the launcher's end."""

    def __init__(self, folder: Path, script: str) -> None:
        self.launcher = FakeLauncher(str(folder / "launcher.sock"), self._plan, patience_s=60)
        self._folder, self._script = folder, script
        self.workers: dict[str, Worker] = {}

    def start(self, slot: int, *faults: dict[str, object], **more: str) -> str:
        """Its environment is that of a launcher's worker, and says that there are four; and `more`."""
        name = f"run/n0/{slot}"
        self.workers[name] = Worker(
            self._folder, str(slot), self._script, EAGLE_EYE_ELASTIC_SOCKET=self.launcher.path, EAGLE_EYE_WORKER=name, EAGLE_EYE_NODE="n0",
            EAGLE_EYE_SLOT=str(slot), EAGLE_EYE_FAULTS=json.dumps([{"worker": slot} | fault for fault in faults]),
            RANK=str(slot), LOCAL_RANK=str(slot), WORLD_SIZE="4", **more,
        )  # fmt: skip
        return name

    def _plan(self, epoch: int, held_states: dict[str, ProbeMessage], join_requests: dict[str, ProbeMessage]) -> dict[str, EpochAssignment]:
        broken = self.launcher.received("broken")
        return plan(epoch, held_states, join_requests, {said["sender"]: said["layers"] for said in broken if said["sender"]})

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.launcher.close()


def plan(
    epoch: int, held_states: dict[str, ProbeMessage], join_requests: dict[str, ProbeMessage], torn: dict[str, list[int]] | None = None
) -> dict[str, EpochAssignment]:
    workers = list(held_states)
    held = [
        WorkerStateReport(**{"worker": name, "node": "n0"} | {key: said[key] for key in ("step", "done", "segments", "phase", "fresh")})
        for name, said in held_states.items()
    ]
    entry = join_requests[workers[0]]
    target = layout_of([(name, "n0") for name in workers], epoch)
    made = plan_transition(
        "job", epoch, target, held, micro_batches=entry["micro_batches"], segments=entry["segments"], layer_bytes=entry["layers"], torn=torn
    )
    return {
        name: EpochAssignment(epoch, rank, len(workers), tuple(workers), made.step, made.current, made.shares, made.finish, made.moves, made.source)
        for rank, name in enumerate(workers)
    }
